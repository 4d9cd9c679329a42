"""A request wakes a service through KEDA and its HTTP add-on, which run here as in a cluster. Pods are simulated; their
engines are real."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from ballast_operator.folders import PACKED_DIRECTORY
from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Kube, Object, documents
from devkit.cluster.nodes.engines import Engines
from devkit.cluster.nodes.made_up import BEHAVIOUR
from devkit.cluster.service import keda
from devkit.cluster.service.claims import bound_claim
from devkit.cluster.service.endpoints import ready_services
from devkit.cluster.service.keda import INTERCEPTOR_ADDRESS, Keda
from devkit.cluster.service.live_service import LABEL
from devkit.cluster.service.operator import install
from devkit.cluster.service.specs import wait_condition
from devkit.cluster.waiting import wait_for

ROOT = Path(__file__).parents[3]
SAMPLE = {body["kind"]: body for body in documents(ROOT / "manifests/samples/scale-to-zero.yaml")}
NAME = SAMPLE["InferenceService"]["metadata"]["name"]
PAGE = ROOT / "docs/kubernetes/scale-to-zero.md"
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}
WAKE_TIMEOUT_S = 120

pytestmark = pytest.mark.usefixtures("operator")


@pytest.fixture(scope="module")
def answers(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Real engines instead of simulated responses."""
    folders = {PACKED_DIRECTORY: tmp_path_factory.mktemp("packed")}
    engines = Engines(cluster.kube, folders, hosts=(INTERCEPTOR_ADDRESS,))
    engines.start()
    yield engines
    engines.stop()


@pytest.fixture(scope="module")
def scaling(cluster: Cluster, answers: Engines) -> Iterator[Keda]:
    install(cluster)
    with cluster.kinds(*keda.definitions()):
        scaling = Keda(cluster, answers.socks_url)
        scaling.start()
        yield scaling
        scaling.stop()


def apply_sample(
    cluster: Cluster, namespace: str, scaling: Keda, route: Object | None = None, service: Object | None = None
) -> None:
    """Apply the sample with short times, this machine's addresses, and these fields of its route and service. Returns
    when it is scaled to zero. Each namespace uses its own host name: if two routes have the same host, the interceptor
    uses the older one, and the previous test's namespace may still exist."""
    sample = copy.deepcopy(SAMPLE)
    on_node = {"numa": {"enforcement": "Off"}, "scheduling": {"nodeSelector": {BEHAVIOUR: "loading"}}}
    sample["InferenceService"]["spec"].update(replicas=0, **on_node, **(service or {}))
    sample["InterceptorRoute"]["spec"].update(rules=[{"hosts": [host(namespace)]}], **(route or {}))
    scaled = sample["ScaledObject"]["spec"]
    scaled.update(cooldownPeriod=3, pollingInterval=1)
    scaled["triggers"][0]["metadata"]["scalerAddress"] = scaling.scaler_address
    for body in sample.values():
        cluster.kube.create(cluster.resource_of(body), body, namespace)
    wait_condition(cluster.kube, namespace, NAME, "Ready", "False", "ScaledToZero")
    wait_for("KEDA to watch the route", lambda: scaling.watches(namespace, NAME))


def host(namespace: str) -> str:
    return f"{NAME}.{namespace}.example"


def ask(scaling: Keda, namespace: str) -> httpx.Response:
    return httpx.post(
        f"{scaling.url}/v1/chat/completions",
        json=CHAT,
        headers={"Host": host(namespace)},
        timeout=WAKE_TIMEOUT_S,
        trust_env=False,
    )


def pods(kube: Kube, namespace: str) -> list[Object]:
    return kube.list("pods", namespace, {LABEL: NAME})


def wait_asleep(kube: Kube, namespace: str) -> None:
    wait_condition(kube, namespace, NAME, "Ready", "False", "ScaledToZero")
    wait_for("no pod", lambda: not pods(kube, namespace))


def test_a_request_wakes_a_service_which_sleeps_again_afterwards(
    cluster: Cluster, kube: Kube, namespace: str, scaling: Keda
) -> None:
    apply_sample(cluster, namespace, scaling)
    asleep = kube.get("inferenceservices", NAME, namespace)
    assert kube.get("poddisruptionbudgets", NAME, namespace)["spec"]["minAvailable"] == 0
    for _ in range(2):
        assert not ready_services(kube, namespace, NAME)
        answer = ask(scaling, namespace)
        assert (answer.status_code, answer.headers["X-KEDA-HTTP-Cold-Start"]) == (200, "true"), answer.text
        assert answer.json()["usage"]["completion_tokens"] > 0
        wait_asleep(kube, namespace)
    version = asleep["metadata"]["resourceVersion"]
    statuses = [it["status"] for it in kube.versions_after(version, "inferenceservices", NAME, namespace)]
    found = [{condition["type"]: condition for condition in status["conditions"]} for status in statuses]
    assert any(conditions["Available"]["status"] == "True" for conditions in found)
    assert not [conditions for conditions in found if "Stalled" in conditions]
    reasons = {conditions["Progressing"]["reason"] for conditions in found}
    assert reasons <= {"UpToDate", "StartingPods", "Loading", "Draining"}
    events = [it for it in kube.list("events", namespace) if it["involvedObject"]["kind"] == "InferenceService"]
    assert [event["message"] for event in events if event["type"] == "Warning"] == []


def test_the_second_start_uses_the_weights_that_the_first_has_packed(
    cluster: Cluster, kube: Kube, namespace: str, scaling: Keda, answers: Engines
) -> None:
    with bound_claim(kube, namespace, "packed", "ReadWriteOnce"):
        apply_sample(cluster, namespace, scaling, service={"packedWeights": {"pvc": {"claimName": "packed"}}})
        for use in ("packed weights kept", "packed weights read"):
            assert ask(scaling, namespace).is_success
            answers.started[-1].event(use)
            wait_asleep(kube, namespace)


def test_a_placeholder_route_returns_503_until_the_service_is_awake(
    cluster: Cluster, kube: Kube, namespace: str, scaling: Keda
) -> None:
    (route,) = (
        block["spec"]
        for block in map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
        if "coldStart" in block["spec"]
    )
    apply_sample(cluster, namespace, scaling, route)
    refused = ask(scaling, namespace)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "30")
    assert refused.json()["error"]["type"] == "overloaded_error"
    wait_for("an answer", lambda: ask(scaling, namespace).is_success, WAKE_TIMEOUT_S)
    wait_asleep(kube, namespace)
