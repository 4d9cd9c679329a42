"""`ballast-operator why`: explains on one screen why a service is not ready."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import EVENT, INFERENCE_SERVICE, LEASE, MODEL_CACHE, POD, Kind
from ballast_operator.control.deciding.live_pod import Pod
from ballast_operator.control.deciding.ownership import controller_of
from ballast_operator.control.observing.installs import watches
from ballast_operator.control.reporting.conditions import READY
from ballast_operator.control.reporting.findings import STOPPED
from ballast_operator.errors import InputError
from ballast_operator.names import LABEL_INSTALL, Ref, pod_selector, selector_text

MAX_EVENTS = 8
MAX_PODS = 8
REASONS = "docs/kubernetes/troubleshooting.md"
ALIVE_S = 60.0
"""The operator of a Lease that was renewed within this time is considered running."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The objects of one service. A kind that could not be read is empty, and `unread` has the reason."""

    service: Mapping[str, Any]
    pods: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]
    leases: Sequence[Mapping[str, Any]]
    cache: Mapping[str, Any] | None
    """The ModelCache of the service's model; None if it uses none or if it is missing."""
    unread: Sequence[str]
    now: datetime


async def look(api: Api, ref: Ref) -> Seen:
    """Read everything. Raises ApiError if the service itself cannot be read, InputError if it does not exist."""
    service = await api.get(INFERENCE_SERVICE, ref.namespace, ref.name)
    if service is None:
        raise InputError(f"there is no InferenceService {ref.name} in namespace {ref.namespace}")
    unread: list[str] = []

    async def listed(kind: Kind, namespace: str | None, selector: str = "") -> list[dict[str, Any]]:
        try:
            return await api.list_all(kind, namespace, selector) or []
        except ApiError as error:
            unread.append(f"{kind.plural} cannot be read: {error.message}")
            return []

    pods = await listed(POD, ref.namespace, selector_text(pod_selector(ref.name)))
    names = {ref.name, *(pod["metadata"]["name"] for pod in pods)}
    events = [it for it in await listed(EVENT, ref.namespace) if it["involvedObject"].get("name") in names]
    leases = await listed(LEASE, None, f"{LABEL_INSTALL}=true")
    cache = None
    if (source := _cached_source(service)) is not None:
        try:
            cache = await api.get(MODEL_CACHE, ref.namespace, source["name"])
        except ApiError as error:
            unread.append(f"ModelCache {source['name']} cannot be read: {error.message}")
    return Seen(service, pods, events, leases, cache, unread, datetime.now(UTC))


def is_ready(seen: Seen) -> bool:
    """Whether the service is ready for its newest spec."""
    ready = _conditions(seen).get(READY)
    return ready is not None and ready["status"] == "True" and not _is_stale(seen)


def explain(seen: Seen, width: int) -> Iterator[str]:
    """The lines of the screen, each at most `width` characters long but the first."""
    yield _headline(seen)
    parts = (
        ("OPERATOR", _operator(seen)),
        ("CONDITIONS", _condition_lines(seen)),
        ("MODEL CACHE", _cache_lines(seen)),
        ("PODS", _pod_lines(seen)),
        ("EVENTS", _event_lines(seen)),
        ("NOT READ", seen.unread),
    )
    for title, lines in parts:
        found = [f"  {line}" for line in lines]
        if found:
            yield ""
            yield title
            yield from (line if len(line) <= width else f"{line[: width - 1]}…" for line in found)


def _headline(seen: Seen) -> str:
    metadata, status = seen.service["metadata"], seen.service.get("status") or {}
    name, ready = f"{metadata['namespace']}/{metadata['name']}", _conditions(seen).get(READY)
    if ready is None:
        return f"{name}: no operator has processed it yet"
    count = f"{status.get('readyReplicas', 0)} of {seen.service['spec'].get('replicas', 1)} replicas answer"
    if ready["status"] == "True":
        return f"{name}: ready, {count}"
    if ready["reason"] == STOPPED.reason:
        return f"{name}: scaled to zero; it starts when spec.replicas is raised, by hand or by an autoscaler"
    return f"{name}: not ready, {count}\n{ready['reason']}: {ready.get('message', '')}\nSee {REASONS} for what to do."


def _operator(seen: Seen) -> Iterator[str]:
    """Reasons why the status may be out of date; none if an operator has processed the newest spec."""
    namespace = seen.service["metadata"]["namespace"]
    if not any("leases" in line for line in seen.unread):
        watching = [lease for lease in seen.leases if watches(lease, namespace)]
        alive = [lease for lease in watching if _is_held(lease, seen.now)]
        if not watching:
            yield "no operator that watches this namespace has a Lease: is one installed?"
        elif not alive:
            for lease in watching:
                named = f"{lease['metadata']['namespace']}/{lease['metadata']['name']}"
                since = _age(lease["spec"].get("renewTime"), seen.now)
                yield f"the operator of Lease {named} does not run: it last renewed the Lease {since} ago"
    if _is_stale(seen) and seen.service.get("status"):
        newest = seen.service["metadata"]["generation"]
        yield f"the conditions describe generation {_generation(seen)} of the spec; the newest is {newest}"


def _condition_lines(seen: Seen) -> Iterator[str]:
    for kind, found in _conditions(seen).items():
        if kind != READY:
            since = _age(found.get("lastTransitionTime"), seen.now)
            yield f"{kind:14} {found['status']:7} {since:>4}  {found['reason']}: {found.get('message', '')}"


def _cached_source(service: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The reference to a model of a ModelCache; None for other sources."""
    source: Mapping[str, Any] | None = ((service["spec"].get("model") or {}).get("source") or {}).get("cache")
    return source


def _cache_lines(seen: Seen) -> Iterator[str]:
    """The state of the service's model in its ModelCache: the cache's conditions, then each place that has it."""
    source = _cached_source(seen.service)
    if source is None:
        return
    name, model = source["name"], source["model"]
    if seen.cache is None:
        if not any(line.startswith("ModelCache") for line in seen.unread):
            yield f"ModelCache {name} does not exist"
        return
    status = seen.cache.get("status") or {}
    for found in status.get("conditions") or ():
        since = _age(found.get("lastTransitionTime"), seen.now)
        yield f"{name}: {found['type']} {found['status']} {since}  {found['reason']}: {found.get('message', '')}"
    for place in status.get("places") or ():
        for held in place.get("models") or ():
            if held["name"] == model:
                message = f": {held['message']}" if held.get("message") else ""
                yield f"{model} on {place['name']}: {held['state']}{message}"


def _pod_lines(seen: Seen) -> Iterator[str]:
    uid = seen.service["metadata"]["uid"]
    ours = [body for body in seen.pods if (controller_of(body) or {}).get("uid") == uid]
    pods = sorted(map(Pod.from_api, ours), key=lambda pod: (pod.ready, pod.replica, pod.attempt))
    placements = {found["pod"]: found for found in (seen.service.get("status") or {}).get("placement") or ()}
    for pod in pods[:MAX_PODS]:
        age = _age(pod.body["metadata"].get("creationTimestamp"), seen.now)
        gpus = _gpus(placements.get(pod.name, {})) if pod.ready else ""
        yield f"{pod.name:20} {age:>4}  on {pod.node or 'no node'}: {_state(pod)}{gpus}"
    if len(pods) > MAX_PODS:
        yield f"and {len(pods) - MAX_PODS} more"


def _gpus(placement: Mapping[str, Any]) -> str:
    """The GPUs of a pod with their NUMA nodes; empty without any."""
    return "".join(
        f", {gpu['name']} on NUMA node {gpu.get('numaNode', 'unknown')}" for gpu in placement.get("gpus") or ()
    )


def _state(pod: Pod) -> str:
    """The state of a pod; faults come first."""
    restarts = f", {pod.restarts} restarts" if pod.restarts else ""
    ended = f", last ended with {pod.last_exit.exit_code} {pod.last_exit.reason}" if pod.last_exit is not None else ""
    if pod.terminating:
        return "is being deleted" + (f", waits for {', '.join(pod.finalizers)}" if pod.finalizers else "")
    if pod.over:
        return ": ".join(filter(None, (pod.phase, pod.reason, pod.message)))
    if pod.ready:
        return f"ready{restarts}"
    if pod.unschedulable is not None:
        return f"no node fits: {pod.unschedulable}"
    for found in (pod.blocked, pod.waiting):
        if found is not None:
            return ": ".join(filter(None, found)) + restarts + ended
    return f"{'runs, but is not ready' if pod.running else pod.phase}{restarts}{ended}"


def _event_lines(seen: Seen) -> Iterator[str]:
    for event in sorted(seen.events, key=_when)[-MAX_EVENTS:]:
        times = f" ({event['count']} times)" if (event.get("count") or 1) > 1 else ""
        name, age = event["involvedObject"]["name"], _age(_when(event), seen.now)
        yield f"{age:>4}  {event.get('type', ''):7} {name}: {event.get('reason')}{times}: {event.get('message', '')}"


def _when(event: Mapping[str, Any]) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(event.get("lastTimestamp") or series or event.get("eventTime") or event["metadata"]["creationTimestamp"])


def _conditions(seen: Seen) -> dict[str, Mapping[str, Any]]:
    found: Iterable[Mapping[str, Any]] = (seen.service.get("status") or {}).get("conditions") or ()
    return {condition["type"]: condition for condition in found}


def _generation(seen: Seen) -> int:
    return int((seen.service.get("status") or {}).get("observedGeneration", 0))


def _is_stale(seen: Seen) -> bool:
    return _generation(seen) < int(seen.service["metadata"].get("generation", 0))


def _is_held(lease: Mapping[str, Any], now: datetime) -> bool:
    spec = lease.get("spec") or {}
    return bool(spec.get("holderIdentity")) and _age_s(spec.get("renewTime"), now) <= ALIVE_S


def _age_s(stamp: str | None, now: datetime) -> float:
    return float("inf") if not stamp else max(0.0, (now - datetime.fromisoformat(stamp)).total_seconds())


def _age(stamp: str | None, now: datetime) -> str:
    """An age as kubectl writes it, in the largest unit."""
    seconds = _age_s(stamp, now)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if length * 2 <= seconds < float("inf"):
            return f"{seconds // length:.0f}{unit}"
    return "?" if seconds == float("inf") else f"{seconds:.0f}s"
