"""ModelCaches with a real control plane; the Jobs' pods are simulated, and this test acts as their kubelet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import ApiError, Kube, Object
from devkit.cluster.nodes.made_up import add_node, made_up_node
from devkit.cluster.service.caching import (
    OF_CACHE,
    cache_jobs,
    cached_source,
    finish,
    model,
    model_cache,
    running_pod,
    states,
    wait_cache,
)
from devkit.cluster.service.operator import OperatorProcess
from devkit.cluster.service.pulling import make_claim, set_status, terminated
from devkit.cluster.service.specs import service, wait_condition, wait_ready
from devkit.cluster.waiting import wait_for

pytestmark = pytest.mark.usefixtures("operator")

NODES = ("keeper-a", "keeper-b")
ALL = {"test.ballast.dev/keeps": "models"}
ONE = {**ALL, "test.ballast.dev/keeper": "keeper-a"}
FINALIZER = "serving.ballast.dev/cached-files"


@pytest.fixture(autouse=True, scope="module")
def nodes(cluster: Cluster) -> Iterator[None]:
    for name in NODES:
        add_node(cluster.control_plane, made_up_node(name, labels={**ALL, "test.ballast.dev/keeper": name}))
    yield
    for name in NODES:
        cluster.kube.delete("nodes", name)


@pytest.fixture
def free(cluster: Cluster, namespace: str) -> Iterator[str]:
    """A namespace that allows hostPath volumes."""
    name = cluster.make_namespace(f"free-{namespace}"[:63].rstrip("-"), restricted=False)
    yield name
    for found in cluster.kube.list("inferenceservices", name):
        cluster.kube.delete("inferenceservices", found["metadata"]["name"], name)
    for found in cluster.kube.list("modelcaches", name):
        cluster.kube.merge("modelcaches", found["metadata"]["name"], {"metadata": {"finalizers": None}}, name)
    cluster.kube.delete("namespaces", name)


def engines(kube: Kube, namespace: str) -> list[Object]:
    return [pod for pod in kube.list("pods", namespace) if OF_CACHE not in pod["metadata"].get("labels", {})]


def refusal(kube: Kube, namespace: str, body: Object) -> str:
    try:
        kube.create("modelcaches", body, namespace)
    except ApiError as error:
        return error.message
    raise AssertionError("it was accepted")


def test_each_node_pulls_a_model_and_services_run_where_it_is(kube: Kube, free: str) -> None:
    kube.create("modelcaches", model_cache("models", model("tiny"), nodes=ALL), free)
    kube.create("inferenceservices", service("uses", model=cached_source("models", "tiny")), free)
    pods = {node: running_pod(kube, free, "tiny", node) for node in NODES}
    assert {node: pod["spec"]["nodeName"] for node, pod in pods.items()} == {node: node for node in NODES}
    wait_condition(kube, free, "uses", "ModelPulled", "False", "CacheFilling")
    assert engines(kube, free) == [], "no engine starts before the model is cached"

    finish(kube, free, "tiny", "keeper-b")
    wait_ready(kube, free, "uses")
    [engine] = engines(kube, free)
    assert engine["spec"]["nodeName"] == "keeper-b"
    [container] = engine["spec"]["containers"]
    mount = next(found for found in container["volumeMounts"] if found["name"] == "model")
    assert mount["readOnly"]
    assert mount["subPath"].startswith(f"{free}.models.tiny-")
    assert container["args"][:2] == ["serve", "org/tiny:Q8_0@main"]
    assert states(kube, free, "models") == {("keeper-a", "tiny"): "Pulling", ("keeper-b", "tiny"): "Present"}

    finish(kube, free, "tiny", "keeper-a")
    wait_cache(kube, free, "models", "True", "Filled")
    assert kube.get("modelcaches", "models", free)["status"]["present"] == "2/2"


def test_waiting_replicas_use_the_next_node_that_has_the_model(kube: Kube, free: str) -> None:
    kube.create("modelcaches", model_cache("models", model("tiny"), nodes=ALL), free)
    finish(kube, free, "tiny", "keeper-a")
    large = {"cpus": 40, "memory": "1Gi", "gpus": 0}
    body = service("wide", model=cached_source("models", "tiny"), resources=large, replicas=2)
    kube.create("inferenceservices", body, free)
    wait_condition(kube, free, "wide", "Ready", "False", "Unschedulable")
    [placed] = [pod for pod in engines(kube, free) if pod["spec"].get("nodeName")]

    finish(kube, free, "tiny", "keeper-b")
    wait_ready(kube, free, "wide")
    assert sorted(pod["spec"]["nodeName"] for pod in engines(kube, free)) == list(NODES)
    uids = {pod["metadata"]["uid"] for pod in engines(kube, free)}
    assert placed["metadata"]["uid"] in uids, "a scheduled pod stays"


def test_a_model_is_evicted_only_for_one_that_a_service_uses(kube: Kube, free: str) -> None:
    kube.create("modelcaches", model_cache("models", model("old"), model("new"), nodes=ONE), free)
    finish(kube, free, "old", "keeper-a")
    wait_cache(kube, free, "models", "True", "Full")
    assert states(kube, free, "models") == {("keeper-a", "old"): "Present", ("keeper-a", "new"): "NoRoom"}

    kube.create("inferenceservices", service("first", model=cached_source("models", "old")), free)
    wait_ready(kube, free, "first")
    kube.create("inferenceservices", service("second", model=cached_source("models", "new")), free)
    wait_condition(kube, free, "second", "Ready", "False", "CacheFull")
    wait_cache(kube, free, "models", "False", "NoRoom")
    assert cache_jobs(kube, free, "old", "keeper-a", removes=True) == [], "the model is in use"

    kube.delete("inferenceservices", "first", free)
    finish(kube, free, "old", "keeper-a", removes=True)
    finish(kube, free, "new", "keeper-a")
    wait_ready(kube, free, "second")
    assert states(kube, free, "models") == {("keeper-a", "old"): "NoRoom", ("keeper-a", "new"): "Present"}
    assert cache_jobs(kube, free, "old", "keeper-a") == []


def test_a_cache_is_deleted_once_unused_and_removed_from_its_nodes(kube: Kube, free: str) -> None:
    kube.create("modelcaches", model_cache("models", model("tiny"), nodes=ONE), free)
    kube.create("inferenceservices", service("uses", model=cached_source("models", "tiny")), free)
    finish(kube, free, "tiny", "keeper-a")
    wait_ready(kube, free, "uses")
    kube.delete("modelcaches", "models", free)
    found = wait_cache(kube, free, "models", "False", "Terminating")
    assert "uses" in found["message"]
    assert cache_jobs(kube, free, "tiny", "keeper-a", removes=True) == []

    kube.delete("inferenceservices", "uses", free)
    pod = finish(kube, free, "tiny", "keeper-a", removes=True)
    assert pod["spec"]["nodeName"] == "keeper-a"
    assert pod["spec"]["containers"][0]["args"] == ["models", "--remove_all"]
    wait_for("the cache to be deleted", lambda: kube.find("modelcaches", "models", free) is None)
    wait_for("its Jobs and its policy to go", lambda: not kube.list("jobs", free) + kube.list("networkpolicies", free))


def test_a_model_that_is_no_longer_listed_is_stopped_and_removed(kube: Kube, free: str) -> None:
    kube.create("modelcaches", model_cache("models", model("tiny"), nodes=ONE), free)
    running_pod(kube, free, "tiny", "keeper-a")
    kube.merge("modelcaches", "models", {"spec": {"models": []}}, free)
    finish(kube, free, "tiny", "keeper-a", removes=True)
    wait_for("its Jobs to go", lambda: not kube.list("jobs", free))
    wait_cache(kube, free, "models", "True", "Filled")


def test_nodes_can_be_added_and_removed(cluster: Cluster, kube: Kube, free: str) -> None:
    label = {"test.ballast.dev/passing": free}
    kube.create("modelcaches", model_cache("models", model("tiny"), nodes=label), free)
    wait_cache(kube, free, "models", "False", "NoNodes")
    add_node(cluster.control_plane, made_up_node(f"n-{free}"[:63], labels=label))
    finish(kube, free, "tiny", f"n-{free}"[:63])
    wait_cache(kube, free, "models", "True", "Filled")
    kube.delete("nodes", f"n-{free}"[:63])
    wait_cache(kube, free, "models", "False", "NoNodes")
    assert kube.list("jobs", free) == [], "no files can be removed from a deleted node"


def test_a_claim_is_one_storage_location_for_all_nodes(kube: Kube, namespace: str) -> None:
    make_claim(kube, namespace)
    storage = {"pvc": {"claimName": "models"}}
    scope = {"modelScope": {"repo": "org/tiny", "quant": "Q8_0"}}
    body = model_cache("models", {"name": "tiny", "size": "1Gi", "source": scope}, storage=storage)
    kube.create("modelcaches", body, namespace)
    kube.create("inferenceservices", service("uses", model=cached_source("models", "tiny")), namespace)
    finish(kube, namespace, "tiny", "models")
    wait_ready(kube, namespace, "uses")
    [engine] = engines(kube, namespace)
    assert engine["spec"]["containers"][0]["args"][1] == "modelscope.cn/org/tiny:Q8_0@master"
    wait_for("the pull pod to be deleted, because it blocks the claim", lambda: len(kube.list("pods", namespace)) == 1)
    kube.delete("persistentvolumeclaims", "models", namespace)
    kube.delete("inferenceservices", "uses", namespace)
    wait_cache(kube, namespace, "models", "False", "ClaimMissing")
    kube.delete("modelcaches", "models", namespace)
    wait_for("the cache to be deleted", lambda: kube.find("modelcaches", "models", namespace) is None)


def test_a_cache_reports_why_it_cannot_pull(kube: Kube, namespace: str, free: str) -> None:
    kube.create("modelcaches", model_cache("models", model("tiny"), nodes=ONE), namespace)
    found = wait_cache(kube, namespace, "models", "False", "PullRefused")
    assert "hostPath" in found["message"], "the namespace's standard allows no hostPath volumes"

    elsewhere = {"hostPath": {"path": "/etc"}}
    kube.create("modelcaches", model_cache("elsewhere", model("tiny"), nodes=ONE, storage=elsewhere), free)
    assert "--allowed-host-path" in wait_cache(kube, free, "elsewhere", "False", "NotAllowed")["message"]

    kube.create("modelcaches", model_cache("models", model("tiny"), nodes=ONE), free)
    kube.create("inferenceservices", service("uses", model=cached_source("models", "tiny")), free)
    kube.create("inferenceservices", service("other", model=cached_source("models", "huge")), free)
    kube.create("inferenceservices", service("none", model=cached_source("nowhere", "tiny")), free)
    pod = running_pod(kube, free, "tiny", "keeper-a")
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}, "running": None}
    set_status(
        kube, pod, state=waits, container={"lastState": terminated(4, "VolumeFull", "no room"), "restartCount": 1}
    )
    assert "no room" in wait_cache(kube, free, "models", "False", "VolumeFull")["message"]
    wait_condition(kube, free, "uses", "Ready", "False", "CacheFailed")
    assert "tiny" in wait_condition(kube, free, "other", "Ready", "False", "NotCached")["message"]
    wait_condition(kube, free, "none", "Ready", "False", "CacheMissing")


def test_an_idle_cache_is_not_written_to(kube: Kube, free: str, operator: OperatorProcess) -> None:
    kube.create("modelcaches", model_cache("models", model("tiny"), nodes=ONE), free)
    finish(kube, free, "tiny", "keeper-a")
    wait_cache(kube, free, "models", "True", "Filled")
    operator.wait_looked()
    before = kube.get("modelcaches", "models", free)["metadata"]["resourceVersion"]
    operator.wait_looked()
    after = kube.get("modelcaches", "models", free)
    assert after["metadata"]["resourceVersion"] == before
    assert after["metadata"]["finalizers"] == [FINALIZER]
    assert after["status"]["places"][0]["models"][0]["lastUsed"], "it is unused"


def test_rules_of_a_cache(kube: Kube, free: str) -> None:
    for message, changed in (
        ("exactly one of hostPath and pvc", {"storage": {}}),
        ("at least the size of the largest model", {"capacity": "10Gi", "models": [model("a")]}),
        ("must be a quantity", {"capacity": "much"}),
        (
            "exactly one of huggingFace, modelScope, s3 and oci",
            {"models": [{"name": "a", "size": "1Gi", "source": {}}]},
        ),
        ("Duplicate value", {"models": [model("a"), model("a")]}),
        ("should match", {"proxies": [{"name": "HF_TOKEN", "value": "x"}]}),
    ):
        assert message in refusal(kube, free, {**(body := model_cache("c")), "spec": {**body["spec"], **changed}})
    assert "at most 52" in refusal(kube, free, model_cache("c" * 53))

    kube.create("modelcaches", model_cache("c", model("tiny"), nodes={"no": "node"}), free)
    for message, changed in (
        ("storage cannot be changed", {"storage": {"hostPath": {"path": "/srv/other"}}}),
        ("the source of a model cannot be changed", {"models": [model("tiny", quant="Q4_K_M")]}),
    ):
        with pytest.raises(ApiError, match=message):
            kube.merge("modelcaches", "c", {"spec": changed}, free)
    kube.merge("modelcaches", "c", {"spec": {"models": [model("tiny"), model("other")], "capacity": "1Ti"}}, free)


def test_paths_are_the_hubs_for_a_cached_model(kube: Kube, free: str) -> None:
    body = service("paths", model={**cached_source("models", "tiny"), "ggufPath": "a.gguf"})
    with pytest.raises(ApiError, match="ggufPath and configPath must not be set"):
        kube.create("inferenceservices", body, free)
