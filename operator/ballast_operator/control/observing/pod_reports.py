"""Queries the running pods for reports, and caches them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.control.deciding.live_pod import Pod
from ballast_operator.control.observing.probe import ProbeError, Prober
from ballast_operator.control.reporting.evidence import PodReport
from ballast_operator.control.reporting.numa_findings import MALFORMED, judge_pinning, read_placement, unknown
from ballast_operator.control.reporting.status import read_device, read_effective
from ballast_operator.control.state import ServiceState

MAX_REPORT_AGE_S = 60.0


async def gather_reports(
    prober: Prober, service: InferenceService, pods: Sequence[Pod], state: ServiceState, clock: Callable[[], float]
) -> dict[str, PodReport]:
    """The report of each pod that runs and has an address, by the pod's uid."""
    probed = [pod for pod in pods if pod.ip is not None and (pod.running or pod.ready)]
    reports = await asyncio.gather(*(_report(prober, service, pod, state, clock) for pod in probed))
    state.reports = {
        incarnation: kept
        for incarnation, kept in state.reports.items()
        if incarnation in {pod.incarnation for pod in probed}
    }
    return {pod.uid: report for pod, report in zip(probed, reports, strict=True)}


async def reach_service(
    prober: Prober,
    live: Mapping[str, Any] | None,
    port: int,
    pods: Sequence[Pod],
    behind: frozenset[str],
    state: ServiceState,
) -> str | None:
    """The reason why the engine cannot be reached through the Service; None if it was reached with these processes.

    `live`: the Service, None if it does not exist. `behind`: the uids of the pods among its endpoints.
    """
    address = (live.get("spec") or {}).get("clusterIP") if live is not None else None
    if live is None or not address or address == "None":
        state.reached = None
        state.unreached += 1
        return "the Service has no address yet"
    reach = live["metadata"]["uid"], address, frozenset(pod.incarnation for pod in pods), behind
    if state.reached == reach:
        return None
    state.reached = None
    state.unreached += 1
    try:
        ready, answer = await prober.readiness(address, port)
    except ProbeError as error:
        return str(error)
    if not ready:
        return f"through the Service, /readyz answers {answer.get('status', 'no')}"
    state.reached, state.unreached = reach, 0
    return None


async def _report(
    prober: Prober, service: InferenceService, pod: Pod, state: ServiceState, clock: Callable[[], float]
) -> PodReport:
    assert pod.ip is not None
    if not pod.ready:
        return await _loading(prober, pod.ip)
    at, kept = state.reports.get(pod.incarnation, (float("-inf"), PodReport()))
    if clock() - at < MAX_REPORT_AGE_S:
        return kept
    report = await _running(prober, service, pod, pod.ip)
    if report.verdict is not None and report.verdict.pinned is not None and report.effective is not None:
        state.reports[pod.incarnation] = clock(), report
    return report


async def _loading(prober: Prober, ip: str) -> PodReport:
    try:
        ready, answer = await prober.readiness(ip)
        progress = 1.0 if ready else float(answer.get("progress", 0.0))
    except (ProbeError, *MALFORMED):
        return PodReport()  # an empty report means that it does not answer
    return PodReport(progress=progress if 0 <= progress <= 1 else None)


async def _running(prober: Prober, service: InferenceService, pod: Pod, ip: str) -> PodReport:
    effective = device = None
    try:
        state = await prober.state(ip)
        device = read_device(state)
        effective = read_effective(service, state)
    except (ProbeError, *MALFORMED):
        pass
    if service.spec.numa.enforcement == "Off":
        return PodReport(effective=effective, device=device)
    try:
        report = await prober.numa(ip)
        return PodReport(
            placement=read_placement(pod, report),
            verdict=judge_pinning(service.spec, pod, report),
            effective=effective,
            device=device,
        )
    except ProbeError as error:
        return PodReport(verdict=unknown(pod, str(error)), effective=effective, device=device)
    except MALFORMED as error:
        return PodReport(verdict=unknown(pod, f"not a report: {error!r}"), effective=effective, device=device)
