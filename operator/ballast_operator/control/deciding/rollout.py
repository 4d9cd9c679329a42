"""Decides which pods to start and which to stop. Pure.

A replica has one pod at a time: the next one starts when the previous one has ended, so that two never use memory at
the same time.
With `rollout.maxSurge`, a rollout uses further replica numbers, from `replicas` on, until it ends.
Failed pods stay for a while as evidence, and their replica waits longer after each. A kubelet that rejected one replica
would reject the others too, so only one replica tries then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ballast_operator.api.rollout import RolloutPolicy
from ballast_operator.backoff import backoff_s
from ballast_operator.control.deciding.live_pod import Pod
from ballast_operator.control.deciding.take_down import Observation, choose_outdated, choose_surplus, settles_in_s
from ballast_operator.resources.pod import Attempt

MAX_FAILED_KEPT = 3
FIRST_RETRY_S = 10.0
MAX_RETRY_S = 300.0
MAX_HOLD_S = 60.0
"""Time that the other replicas wait for the kubelet's answer to the first attempt."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One step of the rollout: the actions now, and what the next step waits for."""

    start: tuple[Attempt, ...] = ()
    stop: tuple[Pod, ...] = ()
    forget: tuple[Pod, ...] = ()
    """Failed pods that are no longer needed as evidence."""
    retry_in_s: float | None = None
    """Seconds until a replica may be tried again."""
    settles_in_s: float | None = None
    """Seconds until the observation is settled; None if no decision waits for it."""
    outdated: tuple[Pod, ...] = ()
    """Running pods of an earlier spec."""
    leaving: tuple[Pod, ...] = ()
    """Pods that drain or end."""
    earlier_owner_pods: tuple[Pod, ...] = ()
    """Pods of an earlier service of the same name that replicas wait for."""
    foreign_pods: tuple[Pod, ...] = ()
    """Pods with the name of a replica that have no owner or another one."""


def plan_rollout(
    replicas: int,
    spec_hash: str,
    pods: Sequence[Pod],
    observation: Observation,
    policy: RolloutPolicy,
    *,
    earlier_owner_pods: Sequence[Pod] = (),
    foreign_pods: Sequence[Pod] = (),
) -> Rollout:
    """The step to take for these pods.

    `earlier_owner_pods` and `foreign_pods`: pods with the name of a replica that belong to something else. While one
    runs, its replica gets no pod.
    """
    ages_s = observation.ages_s
    alive = [pod for pod in pods if not pod.over]
    leaving = tuple(pod for pod in alive if pod.terminating)
    present = [pod for pod in alive if not pod.terminating]
    doubled = _doubled(present, spec_hash)
    single = [pod for pod in present if pod not in doubled]
    outdated = [pod for pod in single if pod.replica < replicas and pod.spec_hash != spec_hash]
    served = [] if policy.paused else [pod for pod in outdated if pod.has_served]
    wanted = range(replicas + min(policy.max_surge, len(served)))
    surplus = [
        pod for pod in single if pod.replica not in wanted or (pod.replica >= replicas and pod.spec_hash != spec_hash)
    ]
    failed = [pod for pod in pods if pod.over and not pod.terminating]

    current_failed = [pod for pod in failed if pod.spec_hash == spec_hash]
    refused = [pod for pod in current_failed if pod.refused]
    empty = set(wanted) - {pod.replica for pod in alive}
    before, foreign = (
        tuple(pod for pod in others if not pod.over and pod.replica in empty)
        for others in (earlier_owner_pods, foreign_pods)
    )
    missing = sorted(empty - {pod.replica for pod in (*before, *foreign)})
    history = {number: [pod for pod in current_failed if pod.refused or pod.replica == number] for number in missing}
    waits_s = {number: _wait_s(history[number], ages_s, observation.nodes_changed_s) for number in missing}
    due = [number for number in missing if waits_s[number] <= 0]
    if refused and any(_is_tried(pod, spec_hash, ages_s) for pod in present):
        due = []  # the others wait for its result
    start = [_attempt(number, pods, history[number]) for number in due]
    current = [pod for pod in single if pod.spec_hash == spec_hash and pod not in surplus]
    dropped = choose_surplus(surplus, [*outdated, *current], replicas, policy)

    return Rollout(
        start=tuple(start[:1] if refused else start),
        stop=(*dropped, *doubled, *choose_outdated(outdated, current, replicas, policy, observation)),
        forget=tuple(_forgettable(failed, present, len(wanted), spec_hash)),
        retry_in_s=min((wait_s for wait_s in waits_s.values() if wait_s > 0), default=None),
        settles_in_s=settles_in_s(served, observation),
        outdated=tuple(outdated),
        leaving=leaving,
        earlier_owner_pods=before,
        foreign_pods=foreign,
    )


def next_attempt(replica: int, pods: Sequence[Pod]) -> Attempt:
    """The replica's next pod if none of its pods failed, with an unused name."""
    return _attempt(replica, pods, ())


def _doubled(present: Sequence[Pod], spec_hash: str) -> list[Pod]:
    """The pods beyond one per replica; there should be none. A ready pod stays, then one of the current spec, then
    the older one."""
    kept: dict[int, Pod] = {}
    extra = []
    for pod in sorted(present, key=lambda pod: (not pod.ready, pod.spec_hash != spec_hash, pod.created, pod.name)):
        if pod.replica in kept:
            extra.append(pod)
        kept.setdefault(pod.replica, pod)
    return extra


def _is_tried(pod: Pod, spec_hash: str, ages_s: Mapping[str, float]) -> bool:
    """Whether a kubelet may still reject the pod. A pod that is Pending for long waits for something else."""
    young = ages_s.get(pod.uid, 0.0) < MAX_HOLD_S
    return pod.phase == "Pending" and pod.spec_hash == spec_hash and young


def _attempt(replica: int, pods: Sequence[Pod], failed: Sequence[Pod]) -> Attempt:
    """The replica's next pod, with an unused name."""
    number = 1 + max((pod.attempt for pod in pods if pod.replica == replica), default=-1)
    return Attempt(replica, number, 1 + max((pod.failures for pod in failed), default=-1))


def _wait_s(failed: Sequence[Pod], ages_s: Mapping[str, float], nodes_changed_s: float | None) -> float:
    """Seconds until another attempt is allowed; zero or less if it is allowed now."""
    if not failed:
        return 0.0
    last = max(failed, key=lambda pod: (pod.created, pod.attempt))
    age_s = ages_s.get(last.uid, 0.0)
    delay_s = backoff_s(FIRST_RETRY_S, MAX_RETRY_S, last.failures)
    if nodes_changed_s is not None and nodes_changed_s < age_s:
        delay_s = FIRST_RETRY_S
    return delay_s - age_s


def _forgettable(failed: Sequence[Pod], present: Sequence[Pod], replicas: int, spec_hash: str) -> list[Pod]:
    """The failed pods to delete: all but the newest few, and all of other specs and of replicas that serve or are gone.

    A replica's last failed pod stays where only it tells how long the replica waits.
    """
    recovered = {pod.replica for pod in present if pod.ready and pod.spec_hash == spec_hash}
    useless = [
        pod for pod in failed if pod.replica in recovered or pod.replica >= replicas or pod.spec_hash != spec_hash
    ]
    rest = [pod for pod in failed if pod not in useless]
    rest.sort(key=lambda pod: (pod.created, pod.attempt), reverse=True)
    last = {pod.replica: pod.name for pod in reversed(rest) if not pod.refused}
    return [*useless, *(pod for pod in rest[MAX_FAILED_KEPT:] if last.get(pod.replica) != pod.name)]
