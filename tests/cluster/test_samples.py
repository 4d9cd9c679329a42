"""Every sample is applied unchanged, with its prerequisites, and its services become Ready."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from ballast_operator.commands.doctor import judge_kubelet
from devkit.cluster.cluster import Cluster
from devkit.cluster.definitions import (
    HTTP_ROUTE,
    INFERENCE_POOL,
    INTERCEPTOR_ROUTE,
    POD_MONITOR,
    SCALED_OBJECT,
)
from devkit.cluster.kube import Kube, Object, documents
from devkit.cluster.service.claims import bound_claim
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.specs import wait_condition, wait_ready
from devkit.cluster.waiting import wait_for

SAMPLES = Path(__file__).parents[2] / "manifests" / "samples"
NEEDED = (INFERENCE_POOL, HTTP_ROUTE, SCALED_OBJECT, INTERCEPTOR_ROUTE, POD_MONITOR)

RUNTIME_CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}

pytestmark = pytest.mark.usefixtures("operator")


@pytest.fixture(scope="module", autouse=True)
def kinds(cluster: Cluster) -> Iterator[None]:
    # As GPU operators create it; simulated nodes run its pods like all others.
    cluster.kube.apply("runtimeclasses", {**RUNTIME_CLASS, "metadata": {"name": "nvidia"}, "handler": "nvidia"})
    with cluster.kinds(*NEEDED):
        yield
    cluster.kube.delete("runtimeclasses", "nvidia")


def pinned_to(service: Object, answers: PodAnswers) -> None:
    """Simulated pods report the requested CPUs and GPUs: on node 0 of two, or those of several GPUs on both."""
    requested = service["spec"]["resources"]
    page = answers.pages["/debug/numa"]
    assert page is not None
    report = copy.deepcopy(page[1])
    several = requested["gpus"] > 1
    report["cpus"] = f"48-{47 + requested['cpus']}" if several else f"0-{requested['cpus'] - 1}"
    report["memory_nodes"] = "0-1" if several else "0"
    report["gpu_node"] = 0 if requested["gpus"] == 1 else None
    report["gpus"] = [{"name": f"cuda:{n}", "product": "NVIDIA L4", "node": n % 2} for n in range(requested["gpus"])]
    report["nodes"] = [{**report["nodes"][0], "cpus": "0-63"}, {**report["nodes"][0], "node": 1, "cpus": "64-127"}]
    answers.pages["/debug/numa"] = 200, report


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_sample_is_accepted_and_becomes_ready(
    cluster: Cluster, kube: Kube, namespace: str, answers: PodAnswers, sample: Path
) -> None:
    bodies = list(documents(sample))
    services = [body for body in bodies if body["kind"] == "InferenceService"]
    pinned_to(services[0], answers)
    for body in bodies:
        kube.apply(cluster.resource_of(body), body, namespace)
    claim = bound_claim(kube, namespace, "models", "ReadOnlyMany")
    with claim if "claimName: models" in sample.read_text() else nullcontext():
        for service in services:
            wait_ready(kube, namespace, service["metadata"]["name"])


def test_objects_referenced_by_keda_and_the_gateway_exist(kube: Kube, namespace: str) -> None:
    def of(sample: str, kind: str) -> Object:
        return next(body for body in documents(SAMPLES / f"{sample}.yaml") if body["kind"] == kind)

    scaled, target = of("keda", "InferenceService"), of("keda", "ScaledObject")["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": scaled["apiVersion"], "kind": scaled["kind"], "name": scaled["metadata"]["name"]}
    kube.apply("inferenceservices", scaled, namespace)
    wait_ready(kube, namespace, "scaled")
    kube.merge("inferenceservices", "scaled", {"spec": {"replicas": 2}}, namespace, "scale")
    wait_for("two pods", lambda: len(kube.list("pods", namespace, {"serving.ballast.dev/service": "scaled"})) == 2)

    pooled = of("gateway", "InferenceService")
    kube.apply("inferenceservices", pooled, namespace)
    wait_ready(kube, namespace, "pooled")
    pool = wait_for("the pool", lambda: kube.find("inferencepools", "pooled", namespace))["spec"]
    picked = pool["endpointPickerRef"]
    (port,) = of("gateway", "Service")["spec"]["ports"]
    assert (picked["name"], picked["port"]["number"]) == (of("gateway", "Service")["metadata"]["name"], port["port"])
    (rule,) = of("gateway", "HTTPRoute")["spec"]["rules"]
    assert [backend["name"] for backend in rule["backendRefs"]] == [pooled["metadata"]["name"]]
    found = kube.list("pods", namespace, pool["selector"]["matchLabels"])
    assert len(found) == pooled["spec"]["replicas"] == 2
    ports = {port["containerPort"] for port in found[0]["spec"]["containers"][0]["ports"]}
    (picker,) = of("gateway", "Deployment")["spec"]["template"]["spec"]["containers"]
    metrics_port = next(word for word in picker["args"] if word.startswith("--model-server-metrics-port="))
    assert {pool["targetPorts"][0]["number"], int(metrics_port.partition("=")[2])} == ports


def test_the_canary_s_route_leads_to_both_services_of_one_served_name(kube: Kube, namespace: str) -> None:
    bodies = list(documents(SAMPLES / "canary.yaml"))
    services = {body["metadata"]["name"]: body for body in bodies if body["kind"] == "InferenceService"}
    assert len({body["spec"]["model"]["servedName"] for body in services.values()}) == 1
    for name, body in services.items():
        kube.apply("inferenceservices", body, namespace)
        wait_ready(kube, namespace, name)
    (rule,) = wait_for("the route", lambda: kube.find("httproutes", "chat", namespace))["spec"]["rules"]
    backends = rule["backendRefs"]
    assert {backend["name"]: backend["weight"] for backend in backends} == {"chat": 90, "chat-canary": 10}
    for backend in backends:
        (port,) = kube.get("services", backend["name"], namespace)["spec"]["ports"]
        assert port["port"] == backend["port"]


def test_a_sleeping_service_wakes_with_keda_and_reports_that_it_is_not_ready(kube: Kube, namespace: str) -> None:
    bodies = {body["kind"]: body for body in documents(SAMPLES / "scale-to-zero.yaml")}
    name = bodies["InferenceService"]["metadata"]["name"]
    scaled, route = bodies["ScaledObject"]["spec"], bodies["InterceptorRoute"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == name
    assert scaled["triggers"][0]["metadata"]["interceptorRoute"] == bodies["InterceptorRoute"]["metadata"]["name"]
    kube.apply("inferenceservices", bodies["InferenceService"], namespace)
    wait_ready(kube, namespace, name)
    for replicas in (scaled["minReplicaCount"], 1):
        kube.merge("inferenceservices", name, {"spec": {"replicas": replicas}}, namespace, "scale")
        if replicas:
            wait_ready(kube, namespace, name)
        else:
            wait_condition(kube, namespace, name, "Available", "False", "ScaledToZero")
            wait_for("no pod", lambda: not kube.list("pods", namespace, {"serving.ballast.dev/service": name}))
    (port,) = kube.get("services", name, namespace)["spec"]["ports"]
    assert (route["target"]["service"], route["target"]["port"]) == (name, port["port"])


def test_the_sample_of_a_kubelet_s_configuration_pins() -> None:
    configuration = yaml.safe_load((SAMPLES / "nodes" / "kubelet.yaml").read_text())
    assert judge_kubelet("node", configuration).verdict == "ok"
    mebibytes = {"Mi": 1, "Gi": 1024}

    def size(text: str) -> int:
        return int(text[:-2]) * mebibytes[text[-2:]]

    reserved = sum(size(entry["limits"]["memory"]) for entry in configuration["reservedMemory"])
    kept = [configuration[key]["memory"] for key in ("kubeReserved", "systemReserved")]
    assert reserved == sum(map(size, kept)) + size(configuration["evictionHard"]["memory.available"]), "or it ends"
