"""Derives the conditions from the evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.api.status import ConditionStatus
from ballast_operator.control.deciding.live_pod import ContainerExit, Pod, current_pods
from ballast_operator.control.deciding.waiting_reasons import PULL_FAILURES, STARTING
from ballast_operator.control.reporting import conditions as names
from ballast_operator.control.reporting.conditions import Finding, worst
from ballast_operator.control.reporting.evidence import Evidence, PodReport
from ballast_operator.control.reporting.exit_reasons import explain
from ballast_operator.control.reporting.progress_findings import UP_TO_DATE, find_stalled, judge_progress
from ballast_operator.folders import MODEL_VOLUME
from ballast_operator.names import KIND
from ballast_operator.resources.command import requested_device
from ballast_operator.spec_hash import spec_hash

STOPPED = Finding("Unknown", "ScaledToZero", "replicas is 0")
"""The finding about pods if the spec requests none."""

REFUSAL_HINTS = {
    "TopologyAffinityError": "none of its NUMA nodes has all of this free: request less, free resources there, or "
    "use numa.policy AllNodes on a node whose topologyManagerPolicy is best-effort",
    "SMTAlignmentError": "request a multiple of the threads per core: its CPU manager assigns only whole cores",
    "UnexpectedAdmissionError": "its device or CPU manager could not provide the requested resources",
}

SEVERAL_NODES_REFUSED = (
    "its topologyManagerPolicy admits no pod with CPUs and memory of several NUMA nodes: set it to best-effort, or "
    "request what one NUMA node has free"
)
"""The hint for TopologyAffinityError if the spec requests several NUMA nodes."""

NO_GPU_SEEN = "finds no CUDA device here"
"""Part of the runtime's message if it must use a GPU and finds none."""


def find(service: InferenceService, seen: Evidence) -> dict[str, Finding]:
    """All conditions by type. Ready comes first and follows from the others."""
    current = current_pods(service, seen.pods)
    scheduled = _scheduled(service, seen, current)
    loaded = _model_loaded(service, seen, current)
    pinned = _numa_pinned(service, seen, current)
    reached = _endpoint_ready(service, seen, current)
    pulled = {} if seen.pulled is None else {names.MODEL_PULLED: seen.pulled}
    required = [
        *([] if seen.held is None else [seen.held]),
        *pulled.values(),
        scheduled,
        loaded,
        *([pinned] if service.spec.numa.enforcement == "Require" else []),
        reached,
    ]
    ready = _ready(service, seen, required)
    progressing = judge_progress(service, seen, current, _progressing(service, seen, current), required)
    stalled = find_stalled(seen, ready, progressing)
    return {
        names.READY: ready,
        names.AVAILABLE: find_available(seen.pods, seen.behind, seen.service_failure, service.spec.replicas),
        **pulled,
        names.SCHEDULED: scheduled,
        names.MODEL_LOADED: loaded,
        names.NUMA_PINNED: pinned,
        names.ENDPOINT_READY: reached,
        names.PROGRESSING: progressing,
        **({} if stalled is None else {names.STALLED: stalled}),
        **find_rivals(seen.rivals),
    }


def find_rivals(message: str | None) -> dict[str, Finding]:
    """The condition for other installs that watch the service, with this message; empty without any."""
    return {} if message is None else {names.SOLE_OPERATOR: Finding("False", "SeveralOperators", message)}


def spec_refused(reason: str, message: str, available: Finding, rivals: str | None) -> dict[str, Finding]:
    """The conditions for a spec that the operator does not act on. Pods of an earlier spec may still be available."""
    unknown = Finding("Unknown", reason, "the operator does not act on this spec")
    others = (names.SCHEDULED, names.MODEL_LOADED, names.NUMA_PINNED, names.ENDPOINT_READY)
    return {
        names.READY: Finding("False", reason, message),
        names.AVAILABLE: available,
        **dict.fromkeys(others, unknown),
        names.PROGRESSING: Finding("False", reason, message),
        names.STALLED: Finding("True", reason, message),
        **find_rivals(rivals),
    }


def _ready(service: InferenceService, seen: Evidence, required: Sequence[Finding]) -> Finding:
    if seen.conflicts:
        return Finding("False", "ForeignObject", "; ".join(seen.conflicts))
    if seen.refusals:
        return Finding("False", "ChildRefused", "; ".join(seen.refusals))
    if not service.spec.replicas:
        return Finding("False", STOPPED.reason, STOPPED.message)
    faults = [finding for finding in required if finding.is_fault]
    serving = Finding("True", "Serving", "every replica answers through the Service")
    failing = worst(faults or required, serving)
    return failing if failing.holds else Finding("False", failing.reason, failing.message)


def find_available(
    pods: Iterable[Pod], behind: Set[str] | None, service_failure: str | None, wanted: int | None
) -> Finding:
    """Whether the service answers now, with a pod of any spec, even while others start, drain or fail.

    `behind` and `service_failure` as in Evidence; `wanted`: replicas, or None if the spec is rejected.
    """
    if behind is None:
        return Finding("Unknown", "NotLookedAt", "the endpoints of the Service could not be read")
    answering = [pod for pod in pods if not pod.over and pod.ready and not pod.terminating and pod.uid in behind]
    if answering and service_failure is None:
        of_all = "replicas of an earlier spec" if wanted is None else f"of {wanted} replicas"
        return Finding("True", "MinimumReplicasAvailable", f"{len(answering)} {of_all} answer")
    if wanted == 0:
        return Finding("False", STOPPED.reason, STOPPED.message)
    if answering and service_failure is not None:
        return Finding("False", "ServiceUnreachable", service_failure)
    return Finding("False", "MinimumReplicasUnavailable", "no pod is both ready and an endpoint of the Service")


def _outdated(seen: Evidence) -> set[int]:
    """The replicas that still run a pod of an earlier spec."""
    return {pod.replica for pod in seen.rollout.outdated}


def _rolling_out(service: InferenceService, seen: Evidence) -> Finding:
    outdated = ", ".join(pod.name for pod in seen.rollout.outdated)
    before = " or from before the requested restart" if service.restarted_at else ""
    step = "rollout.paused keeps them" if service.spec.rollout.paused else "they are replaced one after the other"
    return Finding("False", "RollingOut", f"{outdated}: of an earlier spec{before}; {step}")


def _scheduled(service: InferenceService, seen: Evidence, current: Mapping[int, Pod]) -> Finding:
    if not service.spec.replicas:
        return STOPPED
    missing = [n for n in range(service.spec.replicas) if n not in current and n not in _outdated(seen)]
    current_hash = spec_hash(service.spec)
    refused = [pod for pod in seen.pods if pod.over and pod.spec_hash == current_hash and pod.replica in missing]
    if refused:
        last = max(refused, key=lambda pod: (pod.created, pod.attempt))
        return Finding("False", last.reason or "PodFailed", _refusal(service, last))
    for pod in current.values():
        if pod.unschedulable is not None:
            hint = f"; {seen.no_capacity}" if seen.no_capacity else ""
            alone = f"; even without other pods, {seen.unplaced}" if seen.unplaced else ""
            return Finding("False", "Unschedulable", f"{pod.name}: {pod.unschedulable}{hint}{alone}")
    if seen.rollout.earlier_owner_pods:
        return Finding("False", "EarlierPodRemains", _why_missing(seen))
    if missing and seen.no_capacity is not None:
        return Finding("False", "NoNUMANodeFits", seen.no_capacity)
    if missing:
        return _missing(seen)
    unplaced = [pod.name for pod in current.values() if pod.node is None]
    if unplaced:
        return Finding("False", "WaitingForScheduler", f"{', '.join(unplaced)}: no node yet")
    return Finding("True", "PodsScheduled", "every replica has a node")


def _missing(seen: Evidence) -> Finding:
    stuck = any(pod.node in seen.lost_nodes for pod in seen.rollout.leaving)
    return Finding("False", "NodeNotReady" if stuck else "PodMissing", _why_missing(seen))


def _why_missing(seen: Evidence) -> str:
    if seen.rollout.earlier_owner_pods:
        return (
            f"{_where(seen.rollout.earlier_owner_pods)}: of a deleted {KIND} with this name; the replica starts when "
            "it has ended, so that two pods never use the memory at the same time"
        )
    if stuck := [pod for pod in seen.rollout.leaving if pod.node in seen.lost_nodes]:
        nodes = "; ".join(sorted({seen.lost_nodes[str(pod.node)] for pod in stuck}))
        pods = " ".join(pod.name for pod in stuck)
        return (
            f"{_where(stuck)}: cannot end, because {nodes}; the next pod waits, so that two never use the memory at "
            "the same time. If the machine is certainly off, delete the Node, or run "
            f"`kubectl delete pod {pods} --force`"
        )
    if held := [pod for pod in seen.rollout.leaving if pod.finalizers and not pod.running]:
        waits = "; ".join(f"{pod.name} waits for {', '.join(pod.finalizers)}" for pod in held)
        return f"{waits}: a foreign finalizer, which its owner must remove before the next pod starts"
    if seen.rollout.leaving:
        return f"{_where(seen.rollout.leaving)}: drains and then ends; the next pod starts after that"
    if seen.pulled is not None and not seen.pulled.holds:
        return "pods start when the model is complete"
    return "pods are being started"


def _where(pods: Sequence[Pod]) -> str:
    return ", ".join(f"{pod.name} on {pod.node}" if pod.node else pod.name for pod in pods)


def _refusal(service: InferenceService, pod: Pod) -> str:
    resources = service.spec.resources
    gpus = f", {resources.gpus_text}" if resources.gpus else ""
    hint = REFUSAL_HINTS.get(pod.reason, "")
    if pod.reason == "TopologyAffinityError" and service.spec.numa.policy != "SingleNode":
        hint = SEVERAL_NODES_REFUSED
    return (
        f"node {pod.node} rejected {pod.name}, which requests {resources.cpus} CPUs, {resources.memory} of memory"
        f"{gpus}: {pod.message or pod.reason}{f' ({hint})' if hint else ''}; rejected {pod.failures + 1} times in a "
        "row, retried after an increasing delay, or when nodes or the spec change"
    )


def _model_loaded(service: InferenceService, seen: Evidence, current: Mapping[int, Pod]) -> Finding:
    if not service.spec.replicas:
        return STOPPED
    found = [_loading(service, pod, seen) for _, pod in sorted(current.items())]
    if (trouble := next((finding for finding in found if finding.is_fault), None)) is not None:
        return trouble  # it may be the reason why the others are still missing
    if len(current.keys() | _outdated(seen)) < service.spec.replicas:
        return _missing(seen)
    if service.spec.model.source.image is not None and any(MODEL_VOLUME not in pod.volumes for pod in current.values()):
        return Finding(
            "False",
            "ImageVolumeUnsupported",
            "the API server dropped the volume of model.source.image: up to Kubernetes 1.34 it needs the feature gate "
            "ImageVolume of API server and kubelets; use pvc or hostPath here",
        )
    done = Finding("True", "Loaded", "every replica has computed a token")
    return worst(found, _rolling_out(service, seen) if _outdated(seen) else done)


def _loading(service: InferenceService, pod: Pod, seen: Evidence) -> Finding:
    if pod.ready:
        return _on_its_device(service, pod, seen.reports.get(pod.uid))
    if pod.waiting is not None and pod.waiting[0] in PULL_FAILURES:
        return Finding("False", "ImagePullFailed", f"{pod.name}: {pod.waiting[1] or pod.waiting[0]}")
    if pod.last_exit is not None and not pod.running:
        reason, message = explain(pod.last_exit)
        return Finding("False", reason, f"{pod.name}: {message}{_runtime_class_hint(service, pod.last_exit)}")
    if pod.waiting is not None and pod.waiting[0] not in STARTING:
        return Finding("False", pod.waiting[0], f"{pod.name}: {pod.waiting[1] or pod.waiting[0]}")
    if pod.node is None:
        reason = "WaitingForScheduler" if pod.unschedulable is None else "Unschedulable"
        return Finding("False", reason, f"{pod.name}: no node yet, so nothing is loaded")
    if not pod.running and pod.blocked is not None:
        return Finding(
            "False", names.SIDECAR_NOT_STARTED, f"{pod.name}: {pod.blocked[0]}, before the engine: {pod.blocked[1]}"
        )
    if not pod.running:
        return Finding("False", "ContainerCreating", f"{pod.name}: its container is being started")
    if pod.node is not None and pod.node in seen.lost_nodes:
        return Finding("False", "NodeNotReady", f"{pod.name}: {seen.lost_nodes[pod.node]}")
    report = seen.reports.get(pod.uid)
    if pod.last_exit is not None and pod.last_exit.load_limit_s is not None:
        reason, message = explain(pod.last_exit)  # the next attempts may fail in the same way
        now = "" if report is None or report.progress is None else f"; {int(report.progress * 10) * 10} % loaded again"
        return Finding("False", reason, f"{pod.name}: {message}{now}")
    again = f", after {explain(pod.last_exit)[1]}" if pod.last_exit is not None else ""
    if report is None or report.progress is None:
        return Finding("False", "NotAnswering", f"{pod.name}: runs, but does not answer yet{again}")
    if report.progress >= 1:
        return Finding("False", "NotReady", f"{pod.name}: loaded, but not ready{again}")
    # In steps of ten, so that the status is not written for every percent.
    return Finding("False", "Loading", f"{pod.name}: {int(report.progress * 10) * 10} % loaded{again}")


def _runtime_class_hint(service: InferenceService, ended: ContainerExit) -> str:
    """The hint for an engine with a GPU that found none: many nodes show GPUs only in a separate runtime class."""
    lacks_runtime_class = service.spec.resources.gpus and service.spec.scheduling.runtime_class_name is None
    if not lacks_runtime_class or NO_GPU_SEEN not in ended.message:
        return ""
    return (
        "; the container sees no GPU: if the cluster has a runtime class for GPUs, often nvidia, set "
        "scheduling.runtimeClassName"
    )


def _on_its_device(service: InferenceService, pod: Pod, report: PodReport | None) -> Finding:
    """Whether the engine uses as many GPUs as the spec requests. Older runtimes do not report it."""
    resources = service.spec.resources
    chosen = any(word.partition("=")[0] == "--device" for word in service.spec.engine.extra_args)
    if requested_device(service.spec) != "cuda" or chosen or report is None or report.device is None:
        return Finding("True", "Loaded")
    count = 0 if report.device == "cpu" else len(report.device.split(","))
    if count == resources.gpus:
        return Finding("True", "Loaded")
    claim = resources.gpu_claim
    if count > resources.gpus:
        source = "" if claim is None else f" and the claim {claim} has more"
        also = "" if claim is None else ", request fewer in the claim"
        return Finding(
            "False",
            "MoreGPUsUsed",
            f"{pod.name}: computes on {report.device}, although resources.gpus is {resources.gpus}{source}: set it to "
            f"{count}{also}, or name the GPUs to use in engine.extraArgs, such as [--device, cuda:0]",
        )
    if count and claim is not None:
        problem = f"computes on {report.device} alone, although resources.gpus is {resources.gpus}"
        advice = f"the claim {claim} may have fewer: set resources.gpus to {count}, or request more in the claim"
        return Finding("False", "GPUNotUsed", f"{pod.name}: {problem}; {advice}")
    if count == 0:
        allowed = "; resources.cpuFallback allows it" if resources.gpus == 1 else ""
        used, advice = "the CPU", f"its log has the reason{allowed}"
    else:
        used = f"{report.device} alone"
        advice = (
            "its process sees no more GPUs, as with shared ones or with MIG, or its image uses only one: set "
            "resources.gpus to what it uses"
        )
    return Finding(
        "False", "GPUNotUsed", f"{pod.name}: computes on {used}, although it has {resources.gpus_text}; {advice}"
    )


def _numa_pinned(service: InferenceService, seen: Evidence, current: Mapping[int, Pod]) -> Finding:
    if service.spec.numa.enforcement == "Off":
        return Finding("Unknown", "NotLookedAt", "spec.numa.enforcement is Off")
    if not service.spec.replicas:
        return STOPPED
    running = [pod for _, pod in sorted(current.items()) if pod.ready]
    if len(running) < service.spec.replicas:
        return Finding("Unknown", "NotRunning", "not every replica runs yet")
    findings, messages = [], []
    for pod in running:
        report = seen.reports.get(pod.uid)
        if report is None or report.verdict is None:
            findings.append(Finding("Unknown", "NotProbed", f"{pod.name}: not checked yet"))
            continue
        verdict = report.verdict
        status = {True: "True", False: "False", None: "Unknown"}[verdict.pinned]
        findings.append(Finding(status, verdict.reason, verdict.message))  # type: ignore[arg-type]
        messages.append(verdict.message)
    return worst(findings, Finding("True", "CPUsAndMemoryAligned", "; ".join(messages)))


def _endpoint_ready(service: InferenceService, seen: Evidence, current: Mapping[int, Pod]) -> Finding:
    if not service.spec.replicas:
        return Finding("False", STOPPED.reason, STOPPED.message)
    num_ready = sum(pod.ready for pod in current.values())
    if num_ready < service.spec.replicas:
        all_ready = sum(pod.ready and not pod.terminating and not pod.over for pod in seen.pods)
        of_this = "" if all_ready == num_ready else f", {num_ready} of them of this spec"
        return Finding("False", "PodsNotReady", f"{all_ready} of {service.spec.replicas} replicas are ready{of_this}")
    if seen.unserved is not None:
        return Finding("False", "EndpointsMissing", seen.unserved)
    if seen.service_failure is not None:
        return Finding("False", "ServiceUnreachable", seen.service_failure)
    if service.spec.endpoint.service.has_load_balancer and not seen.addresses:
        return Finding(
            "False", "AddressPending", "the cluster has not assigned an address to the load balancer of the Service"
        )
    return Finding("True", "Reachable", "/readyz answered through this Service after these pods became ready")


def _progressing(service: InferenceService, seen: Evidence, current: Mapping[int, Pod]) -> Finding:
    if hindrances := (*seen.conflicts, *seen.refusals, *seen.delays):
        return Finding("False", "Blocked", "; ".join(hindrances))
    if seen.pulled is not None and not seen.pulled.holds:
        status: ConditionStatus = "False" if seen.pulled.is_fault else "True"
        return Finding(status, "Blocked" if seen.pulled.is_fault else "Pulling", seen.pulled.message)
    if seen.rollout.leaving or seen.rollout.earlier_owner_pods:
        return Finding("True", "Draining", _why_missing(seen))
    if seen.rollout.outdated and service.spec.rollout.paused:
        return Finding("Unknown", "Paused", "rollout.paused keeps the pods of an earlier spec")
    if seen.rollout.outdated:
        return Finding("True", "RollingOut", _rolling_out(service, seen).message)
    if seen.rollout.retry_in_s is not None:
        return Finding("True", "WaitingToRetry", "pods were rejected; the next attempt follows after a delay")
    if len(current) < service.spec.replicas:
        return Finding("True", "StartingPods", "pods are being started")
    if not all(pod.ready for pod in current.values()):
        return Finding("True", "Loading", "pods have not computed a token yet")
    if service.spec.replicas and service.spec.endpoint.service.has_load_balancer and not seen.addresses:
        return Finding("True", "AddressPending", "the load balancer of the Service has no address yet")
    return Finding("False", UP_TO_DATE, "all pods are those of the newest spec")
