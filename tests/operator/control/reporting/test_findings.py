"""Conditions derived from evidence: their reasons and helpful messages."""

import pytest
from builders import pod, refused, seen, service

from ballast_operator.control.deciding.live_pod import ContainerExit
from ballast_operator.control.deciding.rollout import Rollout
from ballast_operator.control.reporting.conditions import Finding
from ballast_operator.control.reporting.evidence import PodReport
from ballast_operator.control.reporting.findings import NO_GPU_SEEN, find
from ballast_operator.control.reporting.numa_findings import NumaVerdict

LOOSE = PodReport(verdict=NumaVerdict(False, "SharedCPUPool", "s-0: shared"))


def reasons(evidence, of=None):
    return {name: (finding.status, finding.reason) for name, finding in find(of or service(), evidence).items()}


def not_running(**status):
    return pod(ready=False, running=False, **status)


def test_a_pod_of_an_earlier_service_is_awaited_and_named():
    evidence = seen(rollout=Rollout(earlier_owner_pods=(pod(0, attempt=1, terminating=True),)))
    found = reasons(evidence)
    assert found["Ready"] == found["Scheduled"] == ("False", "EarlierPodRemains")
    assert found["Progressing"] == ("True", "Draining")
    assert "s-0-r1 on n1" in find(service(), evidence)["Ready"].message


def test_missing_pods_wait_for_the_model():
    evidence = seen(pulled=Finding("False", "Pulling", "30 %"))
    assert find(service(), evidence)["Scheduled"].message == "pods start when the model is complete"
    assert find(service(), seen())["Scheduled"].message == "pods are being started"


def test_a_service_that_answers_and_is_pinned_is_ready():
    assert reasons(seen(pod())) == {
        "Ready": ("True", "Serving"),
        "Available": ("True", "MinimumReplicasAvailable"),
        "Scheduled": ("True", "PodsScheduled"),
        "ModelLoaded": ("True", "Loaded"),
        "NUMAPinned": ("True", "CPUsAndMemoryAligned"),
        "EndpointReady": ("True", "Reachable"),
        "Progressing": ("False", "UpToDate"),
    }


@pytest.mark.parametrize(
    ("enforcement", "ready"),
    [("Require", ("False", "SharedCPUPool")), ("Prefer", ("True", "Serving")), ("Off", ("True", "Serving"))],
)
def test_an_unpinned_service_is_ready_unless_pinning_is_required(enforcement, ready):
    requested = service(numa={"enforcement": enforcement})
    found = reasons(seen(pod(of=requested), report=LOOSE), requested)
    assert found["Ready"] == ready
    assert found["NUMAPinned"] == (("Unknown", "NotLookedAt") if enforcement == "Off" else ("False", "SharedCPUPool"))


def test_required_pinning_that_is_unknown_is_not_ready():
    requested = service(numa={"enforcement": "Require"})
    unknown = PodReport(verdict=NumaVerdict(None, "ProbeFailed", "no answer"))
    assert reasons(seen(pod(of=requested), report=unknown), requested)["Ready"] == ("False", "ProbeFailed")


@pytest.mark.parametrize(
    ("last_exit", "reason", "text"),
    [
        (ContainerExit(2, "Error", "ballast: port=1: taken"), "ConfigInvalid", "port=1: taken"),
        (ContainerExit(3, "Error", "log\nballast: f.gguf: truncated"), "ModelUnusable", "f.gguf: truncated"),
        (ContainerExit(4, "Error", "needs 9 GiB"), "OutOfMemory", "needs 9 GiB"),
        (ContainerExit(137, "OOMKilled", ""), "OutOfMemory", "raise resources.memory"),
        (ContainerExit(70, "Error", "bug"), "EngineFault", "bug"),
        (ContainerExit(139, "Error", ""), "EngineCrashed", "SIGSEGV"),
        (ContainerExit(137, "Error", ""), "EngineKilled", "SIGKILL"),
        (ContainerExit(1, "Error", "x"), "EngineExited", "exit code 1"),
        (ContainerExit(0, "Completed", ""), "EngineStopped", "by itself"),
    ],
)
def test_the_engines_exit_code_becomes_a_reason(last_exit, reason, text):
    finding = find(service(), seen(not_running(last_exit=last_exit, waiting=("CrashLoopBackOff", "back-off"))))
    assert finding["ModelLoaded"].reason == reason
    assert text in finding["ModelLoaded"].message
    assert finding["Ready"].reason == reason


def test_an_engine_that_sees_no_gpu_gets_a_hint_about_runtime_classes():
    ended = ContainerExit(2, "Error", f"ballast: device=cuda: torch {NO_GPU_SEEN}: no driver")
    gpu = {"cpus": 2, "memory": "1Gi", "gpus": 1}
    hints = {}
    for name, scheduling in (("none", {}), ("nvidia", {"runtimeClassName": "nvidia"})):
        requested = service(resources=gpu, scheduling=scheduling)
        crashed = pod(of=requested, ready=False, running=False, last_exit=ended)
        hints[name] = "set scheduling.runtimeClassName" in find(requested, seen(crashed))["ModelLoaded"].message
    assert hints == {"none": True, "nvidia": False}


@pytest.mark.parametrize(
    ("waiting", "reason"),
    [
        (("ImagePullBackOff", "not found"), "ImagePullFailed"),
        (("CreateContainerConfigError", 'secret "keys" not found'), "CreateContainerConfigError"),
        (("ContainerCreating", ""), "ContainerCreating"),
        (None, "ContainerCreating"),
    ],
)
def test_a_container_that_does_not_start_is_reported_with_its_reason(waiting, reason):
    assert reasons(seen(not_running(waiting=waiting)))["ModelLoaded"] == ("False", reason)


def test_loading_is_reported_in_tens_of_percent():
    finding = find(service(), seen(pod(ready=False), report=PodReport(progress=0.379)))["ModelLoaded"]
    assert (finding.reason, finding.message) == ("Loading", "s-0: 30 % loaded")
    again = pod(ready=False, restarts=1, last_exit=ContainerExit(137, "OOMKilled", ""))
    assert "after it ran out of memory" in find(service(), seen(again, report=PodReport(progress=0.0)))["Ready"].message


def test_a_rejected_pod_is_reported_with_node_and_requests():
    finding = find(service(), seen(refused(failures=2)))["Scheduled"]
    assert finding.reason == "TopologyAffinityError"
    for text in ("node n1 rejected s-0", "2 CPUs, 1Gi of memory", "3 times in a row", "request less"):
        assert text in finding.message
    several = service(numa={"policy": "AllNodes"})
    finding = find(several, seen(refused(of=several)))["Scheduled"]
    assert "its topologyManagerPolicy admits no pod with" in finding.message


def test_no_node_at_all():
    lonely = not_running(node=None, unschedulable="0/3 nodes are available")
    finding = find(service(), seen(lonely, no_capacity="no NUMA node has 2 cpu free"))["Ready"]
    assert finding.reason == "Unschedulable"
    assert "0/3 nodes" in finding.message
    assert "no NUMA node" in finding.message
    assert reasons(seen(no_capacity="none"))["Ready"] == ("False", "NoNUMANodeFits")


def test_a_stuck_rollout_names_its_cause_and_counts_serving_replicas():
    requested = service(replicas=3)
    old = (pod(0, of=requested, spec_hash="old"), pod(1, of=requested, spec_hash="old"))
    stuck = not_running(replica=2, of=requested, waiting=("ImagePullBackOff", "not found"))
    evidence = seen(*old, stuck, rollout=Rollout(outdated=old))
    found = reasons(evidence, requested)
    assert found["Ready"] == found["ModelLoaded"] == ("False", "ImagePullFailed")
    assert found["Scheduled"] == ("True", "PodsScheduled")
    assert found["Available"] == ("True", "MinimumReplicasAvailable")
    assert "2 of 3 replicas are ready, 0 of them of this spec" in find(requested, evidence)["EndpointReady"].message
    loading = seen(*old, pod(2, of=requested, ready=False), rollout=Rollout(outdated=old))
    assert reasons(loading, requested)["Ready"][1] == "NotAnswering"
    begun = seen(*old, pod(2, of=requested), rollout=Rollout(outdated=old))
    assert reasons(begun, requested)["Ready"] == ("False", "RollingOut")
    gone = seen(*old, stuck, rollout=Rollout(outdated=old[1:]))
    assert reasons(gone, requested)["Ready"] == ("False", "ImagePullFailed"), (
        "it may explain why another pod is missing"
    )


def test_a_serving_replica_is_available_while_others_start_and_after_a_rejection():
    requested = service(replicas=2)
    assert reasons(seen(pod(of=requested)), requested)["Available"] == ("True", "MinimumReplicasAvailable")
    assert reasons(seen(pod(), refusals=("no",)))["Available"] == ("True", "MinimumReplicasAvailable")
    assert reasons(seen(pod(), behind=frozenset()))["Available"] == ("False", "MinimumReplicasUnavailable")
    assert reasons(seen(pod(), behind=None))["Available"] == ("Unknown", "NotLookedAt")
    assert reasons(seen(pod(), service_failure="no"))["Available"] == ("False", "ServiceUnreachable")
    assert reasons(seen(), service(replicas=0))["Available"] == ("False", "ScaledToZero")


def test_an_engine_on_the_cpu_of_a_gpu_pod_is_ready_only_if_allowed():
    resources = {"cpus": 2, "memory": "1Gi", "gpus": 1}
    on_cpu = PodReport(verdict=NumaVerdict(True, "CPUsAndMemoryAligned", "fine"), device="cpu")
    requested = service(resources=resources)
    assert reasons(seen(pod(of=requested), report=on_cpu), requested)["Ready"] == ("False", "GPUNotUsed")
    for allowed in (
        service(resources={**resources, "cpuFallback": True}),
        service(resources=resources, engine={"extraArgs": ["--device", "cpu"]}),
    ):
        assert reasons(seen(pod(of=allowed), report=on_cpu), allowed)["Ready"] == ("True", "Serving")


@pytest.mark.parametrize(
    ("gpus", "device", "reason", "text"),
    [
        (2, "cuda:0,cuda:1", "Serving", ""),
        (2, "cuda:0", "GPUNotUsed", "computes on cuda:0 alone, although it has 2 nvidia.com/gpu"),
        (2, "cpu", "GPUNotUsed", "computes on the CPU, although it has 2 nvidia.com/gpu; its log has the reason"),
        (1, "cuda:0,cuda:1", "MoreGPUsUsed", "although resources.gpus is 1: set it to 2, or name the GPUs"),
    ],
)
def test_an_engine_must_use_as_many_gpus_as_requested(gpus, device, reason, text):
    requested = service(resources={"cpus": 2, "memory": "1Gi", "gpus": gpus})
    report = PodReport(verdict=NumaVerdict(True, "CPUsAndMemoryAligned", "fine"), device=device)
    found = find(requested, seen(pod(of=requested), report=report))["Ready"]
    assert found.reason == reason
    assert text in found.message
    assert "cpuFallback" not in found.message, "it is for one GPU"


@pytest.mark.parametrize(
    ("gpus", "device", "reason", "text"),
    [
        (2, "cuda:0,cuda:1", "Serving", ""),
        (
            1,
            "cuda:0,cuda:1",
            "MoreGPUsUsed",
            "although resources.gpus is 1 and the claim gpu has more: set it to 2, request fewer in the claim, or name",
        ),
        (
            2,
            "cuda:0",
            "GPUNotUsed",
            "although resources.gpus is 2; the claim gpu may have fewer: set resources.gpus to 1, or request more in",
        ),
        (2, "cpu", "GPUNotUsed", "computes on the CPU, although it has 2 GPUs of the claim gpu; its log"),
    ],
)
def test_a_claim_and_the_number_of_gpus_must_not_contradict_each_other(gpus, device, reason, text):
    """The operator cannot read claims; it sees what the engine got."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "two-gpus"}]
    requested = service(resources={"cpus": 2, "memory": "1Gi", "gpus": gpus, "claims": claims, "gpuClaim": "gpu"})
    report = PodReport(verdict=NumaVerdict(True, "CPUsAndMemoryAligned", "fine"), device=device)
    found = find(requested, seen(pod(of=requested), report=report))["Ready"]
    assert found.reason == reason
    assert text in found.message


def test_a_lost_node_is_reported_with_how_to_free_its_pod():
    lost = {"n1": "node n1 is not ready since 2026-01-01T00:00:00Z (NodeStatusUnknown)"}
    silent = seen(pod(ready=False), report=PodReport(), lost_nodes=lost)
    assert reasons(silent)["Ready"] == ("False", "NodeNotReady")
    leaving = pod(terminating=True, ready=False)
    waits = find(service(), seen(leaving, rollout=Rollout(leaving=(leaving,)), lost_nodes=lost))
    assert waits["Scheduled"].reason == waits["Ready"].reason == "NodeNotReady"
    for text in ("since 2026-01-01", "kubectl delete pod s-0 --force"):
        assert text in waits["Ready"].message
        assert text in waits["Progressing"].message


def test_conflicts_come_first():
    assert reasons(seen(pod(), conflicts=("Service s exists",)))["Ready"] == ("False", "ForeignObject")
    assert reasons(seen(pod(), refusals=("quota",)))["Ready"] == ("False", "ChildRefused")


def test_a_service_unreachable_at_its_address_is_not_ready():
    assert reasons(seen(pod(), service_failure="refused"))["Ready"] == ("False", "ServiceUnreachable")


def test_a_new_spec_is_not_ready_while_old_pods_serve():
    old = pod(spec_hash="old")
    found = reasons(seen(old, rollout=Rollout(outdated=(old,))))
    assert found["Ready"][0] == "False"
    assert found["Progressing"] == ("True", "RollingOut")
    leaving = pod(spec_hash="old", terminating=True)
    found = find(service(), seen(leaving, rollout=Rollout(leaving=(leaving,))))
    assert found["Progressing"].reason == "Draining"
    assert "s-0 on n1" in found["Ready"].message


def test_a_stopped_service_reports_it():
    found = reasons(seen(), service(replicas=0))
    assert found["Ready"] == ("False", "ScaledToZero")
    assert found["Progressing"] == ("False", "UpToDate")


def test_every_replica_counts():
    requested = service(replicas=2)
    found = reasons(
        seen(pod(0, of=requested), pod(1, of=requested, ready=False), report=PodReport(progress=0.5)), requested
    )
    assert found["Ready"] == ("False", "Loading")
    assert found["EndpointReady"] == ("False", "PodsNotReady")


def test_an_image_volume_dropped_by_the_api_server_is_reported():
    requested = service(model={"source": {"image": {"reference": "models/tiny:1"}}})
    assert reasons(seen(pod(of=requested)), requested)["Ready"] == ("True", "Serving")
    dropped = seen(pod(of=requested, volumes=frozenset({"scratch"})))
    assert reasons(dropped, requested)["Ready"] == ("False", "ImageVolumeUnsupported")
