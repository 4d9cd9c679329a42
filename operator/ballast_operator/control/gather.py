"""Asks the running pods, at most as often as it tells something new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ballast_operator.api.service import InferenceService
from ballast_operator.control.evidence import PodReport
from ballast_operator.control.memory import ServiceMemory
from ballast_operator.control.placement import MALFORMED, judge, read_placement, unknown
from ballast_operator.control.pods import Pod
from ballast_operator.control.probe import ProbeError, Prober
from ballast_operator.control.status import read_effective

MAX_REPORT_AGE_S = 60.0


async def gather_reports(
    prober: Prober, service: InferenceService, pods: Sequence[Pod], memory: ServiceMemory, clock: Callable[[], float]
) -> dict[str, PodReport]:
    """What each of the pods says, by uid; those that have no address yet are left out."""
    asked = [pod for pod in pods if pod.ip is not None and (pod.running or pod.ready)]
    reports = await asyncio.gather(*(_report(prober, service, pod, memory, clock) for pod in asked))
    memory.reports = {
        incarnation: kept
        for incarnation, kept in memory.reports.items()
        if incarnation in {pod.incarnation for pod in asked}
    }
    return {pod.uid: report for pod, report in zip(asked, reports, strict=True)}


async def reach_service(
    prober: Prober, live: Mapping[str, Any] | None, port: int, pods: Sequence[Pod], memory: ServiceMemory
) -> str | None:
    """Why the engine cannot be reached through the Service; None when it was, since these processes are behind it.

    `live`: the Service, None where there is none."""
    address = (live.get("spec") or {}).get("clusterIP") if live is not None else None
    if live is None or not address or address == "None":
        memory.reached = None
        memory.unreached += 1
        return "the Service has no address yet"
    reach = live["metadata"]["uid"], address, frozenset(pod.incarnation for pod in pods)
    if memory.reached == reach:
        return None
    memory.reached = None
    memory.unreached += 1
    try:
        ready, answer = await prober.readiness(address, port)
    except ProbeError as error:
        return str(error)
    if not ready:
        return f"through the Service, /readyz says {answer.get('status', 'no')}"
    memory.reached, memory.unreached = reach, 0
    return None


async def _report(
    prober: Prober, service: InferenceService, pod: Pod, memory: ServiceMemory, clock: Callable[[], float]
) -> PodReport:
    assert pod.ip is not None
    if not pod.ready:
        return await _loading(prober, pod.ip)
    at, kept = memory.reports.get(pod.incarnation, (float("-inf"), PodReport()))
    if clock() - at < MAX_REPORT_AGE_S:
        return kept
    report = await _running(prober, service, pod, pod.ip)
    if report.verdict is not None and report.verdict.pinned is not None and report.effective is not None:
        memory.reports[pod.incarnation] = clock(), report
    return report


async def _loading(prober: Prober, ip: str) -> PodReport:
    try:
        ready, answer = await prober.readiness(ip)
        progress = 1.0 if ready else float(answer.get("progress", 0.0))
    except (ProbeError, *MALFORMED):
        return PodReport()  # it does not answer, and that is what is reported
    return PodReport(progress=progress if 0 <= progress <= 1 else None)


async def _running(prober: Prober, service: InferenceService, pod: Pod, ip: str) -> PodReport:
    try:
        effective = read_effective(service, await prober.state(ip))
    except (ProbeError, *MALFORMED):
        effective = None
    if service.spec.numa.enforcement == "Off":
        return PodReport(effective=effective)
    try:
        report = await prober.numa(ip)
        return PodReport(
            placement=read_placement(pod, report), verdict=judge(service.spec, pod, report), effective=effective
        )
    except ProbeError as error:
        return PodReport(verdict=unknown(pod, str(error)), effective=effective)
    except MALFORMED as error:
        return PodReport(verdict=unknown(pod, f"not a report: {error!r}"), effective=effective)
