"""Chooses the pods to stop in a rollout or when a service is scaled down. Pure.

The invariant: by the operator's own action, never more than `rollout.maxUnavailable` of the pods that were serving are
down simultaneously; and until a pod of the new spec has served, at most one of them is replaced. A pod that was serving
and is not ready for a moment counts as one that was serving.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ballast_operator.api.rollout import RolloutPolicy
from ballast_operator.control.deciding.live_pod import Pod

SETTLE_S = 20.0
"""Kubelets report every 10 s and the node controller acts every 5 s: a state that lasts this long is no leftover of a
stall."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Durations about the pods that the operator read, in seconds of its own clock.

    The clocks of API servers and nodes are not used.
    """

    ages_s: Mapping[str, float] = field(default_factory=dict)
    """Since each pod was first seen, by uid."""
    unready_s: Mapping[str, float] = field(default_factory=dict)
    """Since each pod that is not ready was first seen so, by uid."""
    undisturbed_s: float = float("inf")
    """Since the API server last failed to answer a read, or answered late."""
    nodes_changed_s: float | None = None
    """Since a node last changed, which ends a long wait; None where none did."""

    def settles_in_s(self, pod: Pod) -> float:
        """Seconds until the pod's state is settled; zero or less if it is."""
        unready_s = SETTLE_S if pod.ready else self.unready_s.get(pod.uid, 0.0)
        return SETTLE_S - min(unready_s, self.undisturbed_s)


def choose_outdated(
    outdated: Sequence[Pod],
    current: Sequence[Pod],
    replicas: int,
    policy: RolloutPolicy,
    observation: Observation,
) -> list[Pod]:
    """The pods of an earlier spec to stop now. `current`: the pods of the newest spec.

    Pods that never served are stopped immediately. Pods that served are stopped within the limit, unready ones first.
    """
    if policy.paused:
        return []
    idle = [pod for pod in outdated if not pod.has_served]
    served = [pod for pod in outdated if pod.has_served]
    proved = any(pod.has_served for pod in current)
    floor = max(0, replicas - (policy.max_unavailable if proved else min(1, policy.max_unavailable)))
    num_ready = sum(pod.ready for pod in (*current, *served))
    # A served pod that is not ready is not down by our action: it may come back, and so counts as there.
    budget = sum(pod.ready for pod in current) + len(served) - floor
    settled = [pod for pod in served if observation.settles_in_s(pod) <= 0]
    unready = [pod for pod in settled if not pod.ready][: max(0, budget)]
    ready = sorted((pod for pod in settled if pod.ready), key=lambda pod: -pod.replica)
    return [*idle, *unready, *ready[: max(0, min(budget - len(unready), num_ready - floor))]]


def choose_surplus(surplus: Sequence[Pod], others: Sequence[Pod], replicas: int, policy: RolloutPolicy) -> list[Pod]:
    """The pods beyond `replicas` to stop now: a ready one stays while too few of the `others` are ready."""
    floor = max(0, replicas - policy.max_unavailable)
    ready = sorted((pod for pod in surplus if pod.ready), key=lambda pod: pod.replica)
    num_kept = max(0, floor - sum(pod.ready for pod in others))
    return [*(pod for pod in surplus if not pod.ready), *ready[num_kept:]]


def settles_in_s(served: Sequence[Pod], observation: Observation) -> float | None:
    """Seconds until the state of each of these pods is settled; None if it is."""
    return max((left_s for pod in served if (left_s := observation.settles_in_s(pod)) > 0), default=None)
