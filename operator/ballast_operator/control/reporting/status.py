"""Builds the status of a service from the evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.api.status import MAX_DEVICE, Device, Effective, InferenceServiceStatus, RolloutFailure
from ballast_operator.control.deciding.live_pod import Pod, current_pods
from ballast_operator.control.reporting.conditions import READY, STALLED, Finding, merge, timestamp
from ballast_operator.control.reporting.evidence import Evidence
from ballast_operator.control.reporting.findings import find, find_rivals
from ballast_operator.names import pod_selector, selector_text
from ballast_operator.resources.command import requested_device
from ballast_operator.resources.service import external_url, service_url
from ballast_operator.spec_hash import spec_hash


def build_status(
    service: InferenceService, seen: Evidence, before: Mapping[str, Any], now: datetime
) -> InferenceServiceStatus:
    """The status now. `before`: the status in the object, for the times of its conditions."""
    current = current_pods(service, seen.pods)
    found, present = find(service, seen), spec_hash(service.spec)
    reports = [seen.reports[pod.uid] for _, pod in sorted(current.items()) if pod.uid in seen.reports]
    return InferenceServiceStatus(
        observed_generation=service.generation,
        updated_replicas=len(current),
        **_of_pods(seen.pods),
        selector=selector_text(pod_selector(service.ref.name)),
        url=service_url(service),
        external_url=external_url(service, seen.addresses),
        effective=next((report.effective for report in reports if report.effective), None),
        device=_device(service, [report.device for report in reports if report.device]),
        placement=[report.placement for report in reports if report.placement] or None,
        spec_hash=present,
        last_failure=_last_failure(found, present, before.get("lastFailure"), now),
        conditions=merge(found, before.get("conditions") or [], service.generation, now),
    )


def _last_failure(
    found: Mapping[str, Finding], present: str, before: Mapping[str, Any] | None, now: datetime
) -> RolloutFailure | None:
    """The failure of the spec with the hash `present` if it has failed, otherwise the known one."""
    known = None if before is None else RolloutFailure.model_validate(before)
    if STALLED not in found:
        return known
    ready = found[READY]
    if known is not None and (known.spec_hash, known.reason) == (present, ready.reason):
        return known
    return RolloutFailure(spec_hash=present, reason=ready.reason, message=ready.message, time=timestamp(now))


def _of_pods(pods: Iterable[Pod]) -> dict[str, Any]:
    """The fields of the status about pods of any spec."""
    alive = [pod for pod in pods if not pod.over]
    images = sorted({pod.image for pod in alive if pod.image})
    return {
        "replicas": len(alive),
        "ready_replicas": sum(pod.ready and not pod.terminating for pod in alive),
        "images": images or None,
        "image": ", ".join(images) or None,
        "nodes": ", ".join(sorted({pod.node for pod in alive if pod.node})) or None,
    }


def refused_status(
    refused: Mapping[str, Finding], pods: Iterable[Pod], generation: int, before: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """The status for a spec that the operator does not act on: conditions and pods. The rest stays as in `before`."""
    conditions = merge(refused, before.get("conditions") or [], generation, now)
    found = InferenceServiceStatus(**_of_pods(pods)).to_api()
    of_pods = ("replicas", "readyReplicas", "images", "image", "nodes")
    return {
        **{name: value for name, value in before.items() if name not in of_pods},
        **{name: found[name] for name in of_pods if name in found},
        "observedGeneration": generation,
        "conditions": [condition.to_api() for condition in conditions],
    }


def yielded_status(rivals: str, generation: int, before: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The part of the status that an install writes if it leaves the service to another install."""
    conditions = merge(find_rivals(rivals), before.get("conditions") or [], generation, now)
    return {"conditions": [condition.to_api() for condition in conditions]}


def _device(service: InferenceService, used: list[str]) -> Device:
    return Device(asked=requested_device(service.spec), used="; ".join(sorted(set(used))) or None)


def read_device(state: Mapping[str, Any]) -> str | None:
    """The engine's device from the runtime's /debug/state; None for older runtimes, which do not report it."""
    device = state.get("device")
    return device[:MAX_DEVICE] if isinstance(device, str) else None


def _mebibytes(state: Mapping[str, Any], where: str) -> str | None:
    """The planned memory there, rounded up; None for older runtimes, which do not report it."""
    planned = (state.get("planned_bytes") or {}).get(where)
    return None if planned is None else f"{-(-int(planned) // 2**20)}Mi"


def read_effective(service: InferenceService, state: Mapping[str, Any]) -> Effective:
    """The effective settings in a report of the runtime's /debug/state. Raises MALFORMED (of numa_findings)."""
    numbers = state["numbers"]
    slots, capacity = int(numbers["batch_slots"]), int(numbers["capacity_tokens"])
    new_tokens = int(numbers.get("max_new_tokens", service.spec.engine.max_new_tokens))
    concurrency = min(slots, capacity // new_tokens)
    return Effective(
        max_new_tokens=new_tokens,
        kv_cache_tokens=capacity,
        planned_memory=_mebibytes(state, "host"),
        planned_gpu_memory=_mebibytes(state, "device"),
        guaranteed_concurrency=concurrency,
        guaranteed_prompt_tokens=max(0, capacity // concurrency - new_tokens) if concurrency else 0,
    )
