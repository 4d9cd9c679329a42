"""Which pods to start and which to stop. Pure.

A replica has one pod at a time: the next is started when the one before has gone, so that two never need memory at
once. Pods that failed stay as evidence, and their replica waits longer each time. What a kubelet refused to one replica
it would refuse to the others: then one replica alone tries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ballast_operator.control.pods import Pod
from ballast_operator.resources.pod import Attempt

MAX_FAILED_KEPT = 3
FIRST_RETRY_S = 10.0
MAX_RETRY_S = 300.0
MAX_HOLD_S = 60.0
"""How long the others wait for the kubelet's answer to the one replica that tries."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One step towards the spec."""

    start: tuple[Attempt, ...] = ()
    stop: tuple[Pod, ...] = ()
    forget: tuple[Pod, ...] = ()
    """Failed pods that are no longer needed as evidence."""
    retry_in_s: float | None = None
    """When a replica may be tried again."""
    outdated: tuple[Pod, ...] = ()
    """Pods of another spec that still run."""
    leaving: tuple[Pod, ...] = ()
    """Pods that drain or end."""
    predecessors: tuple[Pod, ...] = ()
    """Pods of an earlier service of the same name that replicas wait for."""
    strangers: tuple[Pod, ...] = ()
    """Pods of others that have the names of replicas."""


def plan_rollout(
    replicas: int,
    spec_hash: str,
    pods: Sequence[Pod],
    now: datetime,
    nodes_changed: datetime | None = None,
    *,
    predecessors: Sequence[Pod] = (),
    strangers: Sequence[Pod] = (),
) -> Rollout:
    """The step to take for these pods. `nodes_changed`: when a node last became different, which ends a long wait.

    `predecessors` and `strangers`: pods that are not this service's and have names of its pods. While one runs, its
    replica gets no pod.
    """
    alive = [pod for pod in pods if not pod.over]
    leaving = tuple(pod for pod in alive if pod.terminating)
    present = [pod for pod in alive if not pod.terminating]
    surplus = [pod for pod in present if pod.replica >= replicas]
    doubled = _doubled(present, spec_hash)
    outdated = [pod for pod in present if pod.replica < replicas and pod.spec_hash != spec_hash and pod not in doubled]
    failed = [pod for pod in pods if pod.over and not pod.terminating]

    current_failed = [pod for pod in failed if pod.spec_hash == spec_hash]
    refused = [pod for pod in current_failed if pod.refused]
    empty = set(range(replicas)) - {pod.replica for pod in alive}
    before, foreign = (
        tuple(pod for pod in others if not pod.over and pod.replica in empty) for others in (predecessors, strangers)
    )
    missing = sorted(empty - {pod.replica for pod in (*before, *foreign)})
    history = {number: [pod for pod in current_failed if pod.refused or pod.replica == number] for number in missing}
    waits_s = {number: _wait_s(history[number], now, nodes_changed) for number in missing}
    due = [number for number in missing if waits_s[number] <= 0]
    if refused and any(_is_tried(pod, spec_hash, now) for pod in present):
        due = []  # its fate decides for the others
    start = [_attempt(number, pods, history[number]) for number in due]

    return Rollout(
        start=tuple(start[:1] if refused else start),
        stop=(*surplus, *doubled, *_take_down(outdated, present, replicas, spec_hash)),
        forget=tuple(_forgettable(failed, present, replicas, spec_hash)),
        retry_in_s=min((wait_s for wait_s in waits_s.values() if wait_s > 0), default=None),
        outdated=tuple(outdated),
        leaving=leaving,
        predecessors=before,
        strangers=foreign,
    )


def _doubled(present: Sequence[Pod], spec_hash: str) -> list[Pod]:
    """All but one pod of each replica. There should be none; should two ever be, the wanted and older one stays."""
    kept: dict[int, Pod] = {}
    extra = []
    for pod in sorted(present, key=lambda pod: (pod.spec_hash != spec_hash, pod.created, pod.name)):
        if pod.replica in kept:
            extra.append(pod)
        kept.setdefault(pod.replica, pod)
    return extra


def _take_down(outdated: Sequence[Pod], present: Sequence[Pod], replicas: int, spec_hash: str) -> list[Pod]:
    """Outdated pods to stop now: all that serve nobody, and one that serves once every other replica serves."""
    idle = [pod for pod in outdated if not pod.ready]
    serving = [pod for pod in outdated if pod.ready]
    current_ready = {pod.replica for pod in present if pod.ready and pod.spec_hash == spec_hash}
    if not idle and serving and len(current_ready) + len(serving) >= replicas:
        return [max(serving, key=lambda pod: pod.replica)]
    return idle


def _is_tried(pod: Pod, spec_hash: str, now: datetime) -> bool:
    """Whether a kubelet may still refuse it. A pod that stays Pending for long waits for something else."""
    young = (now - pod.created).total_seconds() < MAX_HOLD_S
    return pod.phase == "Pending" and pod.spec_hash == spec_hash and young


def _attempt(replica: int, pods: Sequence[Pod], failed: Sequence[Pod]) -> Attempt:
    """The replica's next pod, under a name that none of its pods has."""
    number = 1 + max((pod.attempt for pod in pods if pod.replica == replica), default=-1)
    return Attempt(replica, number, 1 + max((pod.failures for pod in failed), default=-1))


def _wait_s(failed: Sequence[Pod], now: datetime, nodes_changed: datetime | None) -> float:
    """Seconds until another attempt may be made; not positive when it may be now."""
    if not failed:
        return 0.0
    last = max(failed, key=lambda pod: pod.created)
    delay_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(last.failures, 10))
    if nodes_changed is not None and nodes_changed > last.created:
        delay_s = FIRST_RETRY_S
    return (last.created + timedelta(seconds=delay_s) - now).total_seconds()


def _forgettable(failed: Sequence[Pod], present: Sequence[Pod], replicas: int, spec_hash: str) -> list[Pod]:
    """Failed pods beyond the newest few, of another spec, of replicas that work again, and of replicas that are no
    more. The last of a replica stays where it alone says how long that replica waits."""
    recovered = {pod.replica for pod in present if pod.ready and pod.spec_hash == spec_hash}
    useless = [
        pod for pod in failed if pod.replica in recovered or pod.replica >= replicas or pod.spec_hash != spec_hash
    ]
    rest = [pod for pod in failed if pod not in useless]
    rest.sort(key=lambda pod: (pod.created, pod.attempt), reverse=True)
    last = {pod.replica: pod.name for pod in reversed(rest) if not pod.refused}
    return [*useless, *(pod for pod in rest[MAX_FAILED_KEPT:] if last.get(pod.replica) != pod.name)]
