"""NUMAPinned: each reason, from the reports of an engine process."""

import pytest
from builders import pod, service

from ballast_operator.control.reporting.numa_findings import MALFORMED, judge_pinning, parse_list, read_placement

GOOD = {
    "cpus": "2-3",
    "shared_core_cpus": "",
    "memory_nodes": "1",
    "gpu_node": 1,
    "share_local": 0.995,
    "nodes": [{"node": 0, "cpus": "0-1"}, {"node": 1, "cpus": "2-5"}],
}
GPU = {"cpus": 2, "memory": "1Gi", "gpus": 1}


def gpus(*nodes):
    """As a runtime reports GPUs on these NUMA nodes."""
    return [{"name": f"cuda:{index}", "product": "NVIDIA H200", "node": node} for index, node in enumerate(nodes)]


def verdict(report, pod_=None, **spec):
    return judge_pinning(service(**{"resources": GPU, **spec}).spec, pod_ or pod(), {**GOOD, **report})


def test_cpus_memory_and_gpu_of_one_node_are_pinned():
    found = verdict({})
    assert (found.pinned, found.reason) == (True, "CPUsAndMemoryAligned")


@pytest.mark.parametrize(
    ("report", "reason", "text"),
    [
        ({"cpus": "2-5"}, "SharedCPUPool", "4 CPUs, but 2"),
        ({"cpus": "0-5"}, "SharedCPUPool", "6 CPUs, but 2"),
        ({"cpus": "1-2", "memory_nodes": "0-1"}, "CPUsSpanNodes", "0, 1"),
        ({"memory_nodes": "0-1"}, "MemoryNotPinned", "memoryManagerPolicy Static"),
        ({"memory_nodes": "0"}, "MemoryNotPinned", "may come from 0"),
        ({"gpu_node": 0}, "GPURemote", "the GPU to 0"),
        ({"gpu_node": None}, "GPUNodeUnknown", "does not report"),
        ({"gpus": gpus(1, 0)}, "GPUsSpanNodes", "cuda:0 to 1, cuda:1 to 0"),
        ({"gpus": gpus(0, 0)}, "GPURemote", "cuda:0 to 0, cuda:1 to 0"),
        ({"gpus": gpus(1, None)}, "GPUNodeUnknown", "NUMA node of cuda:1"),
        ({"share_local": 0.98}, "RemotePages", "98 %"),
        ({"shared_core_cpus": "3"}, "SMTSiblingsShared", "the cores of its CPUs 3"),
        ({"nodes": []}, "NodesUnknown", "cannot determine"),
    ],
)
def test_pinning_faults_are_reported(report, reason, text):
    found = verdict(report)
    assert (found.pinned, found.reason) == (False, reason)
    assert text in found.message


def test_all_cpus_of_the_machine_are_not_exclusive():
    assert (
        verdict({"cpus": "0-1", "memory_nodes": "0", "nodes": [{"node": 0, "cpus": "0-1"}]}).reason == "SharedCPUPool"
    )


@pytest.mark.parametrize(
    "report",
    [
        {"cpus": "0-99999999999"},
        {"cpus": "3-2"},
        {"cpus": 7},
        {"memory_nodes": None},
        {"nodes": ["0"]},
        {"nodes": [{"node": 0, "cpus": 1}]},
        {"share_local": float("inf")},
        {"share_local": float("nan")},
        {"share_local": "much"},
        {"gpus": [{"name": "cuda:0"}]},
        {"gpus": 3},
        {"gpus": gpus("near")},
    ],
)
def test_a_malformed_report_is_rejected_cheaply(report):
    def read():
        read_placement(pod(), {**GOOD, **report})
        return verdict(report)

    with pytest.raises(MALFORMED):
        read()


def test_without_a_gpu_its_node_does_not_matter():
    assert verdict({"gpu_node": None}, resources={"cpus": 2, "memory": "1Gi", "gpus": 0}).pinned
    assert verdict({"gpu_node": None, "gpus": []}, resources={**GPU, "cpuFallback": True}).pinned, "on the CPU"


def test_all_nodes_may_use_cpus_and_memory_of_several_nodes():
    spec = {"numa": {"policy": "AllNodes"}, "resources": {"cpus": 4, "memory": "1Gi", "gpus": 1}}
    report = {"cpus": "0-3", "memory_nodes": "0-1", "share_local": 0.5}
    assert verdict(report, **spec).pinned
    assert verdict({**report, "memory_nodes": "0-2"}, **spec).reason == "MemoryNotPinned"
    of_one = verdict({**report, "memory_nodes": "0"}, **spec)
    assert of_one.reason == "MemoryNotPinned"
    assert "only from 0" in of_one.message
    assert "topologyManagerPolicy best-effort" in of_one.message


def test_gpus_of_several_nodes_are_pinned_only_if_the_policy_allows_it():
    spec = {"numa": {"policy": "AllNodes"}, "resources": {"cpus": 4, "memory": "1Gi", "gpus": 2}}
    report = {"cpus": "0-3", "memory_nodes": "0-1", "share_local": 0.5, "gpu_node": None}
    assert verdict({**report, "gpus": gpus(0, 1)}, **spec).pinned
    remote = verdict({"gpus": gpus(1, 0), "gpu_node": None}, **{**spec, "resources": {**GPU, "gpus": 2}})
    assert (remote.reason, "cuda:1 to 0" in remote.message) == ("GPURemote", True)
    assert verdict({"gpus": gpus(1, 1)}, resources={**GPU, "gpus": 2}).pinned


def test_the_placement_names_each_gpu_and_its_node():
    placement = read_placement(pod(), {**GOOD, "gpus": gpus(1, None), "gpu_node": None}).to_api()
    assert placement["gpus"] == [
        {"name": "cuda:0", "product": "NVIDIA H200", "numaNode": 1},
        {"name": "cuda:1", "product": "NVIDIA H200"},
    ]
    assert "gpuNUMANode" not in placement
    long = read_placement(pod(), {**GOOD, "gpus": [{"name": "x" * 999, "product": None, "node": 0}] * 99})
    assert long.gpus is not None
    assert (len(long.gpus), len(long.gpus[0].name)) == (64, 128), "a false report cannot fill the status"


def test_a_sidecar_that_prevents_guaranteed_qos_is_reported():
    found = verdict({}, pod(other_containers=("istio-proxy",), qos="Burstable"))
    assert found.reason == "SidecarInjected"
    assert "istio-proxy" in found.message
    assert verdict({}, pod(qos="Burstable")).reason == "NotGuaranteed"
    assert verdict({}, pod(other_containers=("logger",), qos="Guaranteed")).pinned


def test_an_unknown_fraction_of_remote_pages_is_omitted():
    assert verdict({"share_local": None}).pinned
    placement = read_placement(pod(), {**GOOD, "share_local": None, "gpu_node": None}).to_api()
    assert placement == {"pod": "s-0", "node": "n1", "cpus": "2-3", "memoryNodes": "1"}


@pytest.mark.parametrize("report", [{}, {"cpus": None}, {**GOOD, "cpus": "x"}, {**GOOD, "nodes": 3}])
def test_a_malformed_report_raises(report):
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        judge_pinning(service().spec, pod(), report)


def test_kernel_lists():
    assert parse_list("0-2,5") == {0, 1, 2, 5}
    assert parse_list("") == set()
