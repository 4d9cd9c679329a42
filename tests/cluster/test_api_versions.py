"""v1beta1 and v1alpha1 are the same object, and definitions change under running services without restarts or
writes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from devkit.cluster.binaries import program
from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import ApiError, Kube, Object
from devkit.cluster.service.api_versions import (
    KINDS,
    NEW,
    OLD,
    define,
    of_release_0_1,
    of_the_release_after,
    of_the_release_before,
    of_this_release,
    serves,
    stored_versions,
)
from devkit.cluster.service.caching import model, model_cache
from devkit.cluster.service.operator import USER, OperatorProcess
from devkit.cluster.service.specs import service, true_conditions, wait_condition, wait_ready
from devkit.cluster.waiting import wait_for

GROUP = "serving.ballast.dev"
VERSIONS = ("v1beta1", "v1alpha1")
AGE = re.compile(r"\d+[ms](\d+s)?")
OWNED = ("pods", "services", "poddisruptionbudgets", "configmaps")

pytestmark = pytest.mark.usefixtures("operator")


def in_version(body: Object, version: str) -> Object:
    return {**body, "apiVersion": f"{GROUP}/{version}"}


def read_in_both(kube: Kube, plural: str, name: str, namespace: str) -> Object:
    """The object without its version, read in both versions until the two reads are equal."""

    def both() -> list[Object]:
        found = [kube.get(plural + end, name, namespace) for end in (NEW, OLD)]
        revisions = {body["metadata"]["resourceVersion"] for body in found}
        return found if len(revisions) == 1 else []

    beta, alpha = wait_for("two reads of one revision", both)
    assert (beta.pop("apiVersion"), alpha.pop("apiVersion")) == (f"{GROUP}/v1beta1", f"{GROUP}/v1alpha1")
    assert beta == alpha
    return dict(beta)


@pytest.fixture
def kubectl(cluster: Cluster, namespace: str, tmp_path: Path) -> Callable[..., str]:
    def run(*words: str | Path) -> str:
        config = f"--kubeconfig={cluster.control_plane.kubeconfig}"
        argv = [program("kubectl"), config, f"--cache-dir={tmp_path}", f"--namespace={namespace}", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


@pytest.mark.parametrize(("version", "end"), [("v1alpha1", OLD), ("v1beta1", NEW)])
def test_a_service_of_either_version_is_readable_in_both_without_loss(
    kube: Kube, namespace: str, version: str, end: str
) -> None:
    kube.create(f"inferenceservices{end}", in_version(service("x"), version), namespace)
    wait_ready(kube, namespace, "x")
    found = read_in_both(kube, "inferenceservices", "x", namespace)
    assert (found["spec"]["engine"]["chunkSize"], found["status"]["readyReplicas"]) == (256, 1)
    assert len(found["status"]["conditions"]) >= 5

    def num_ready() -> int:
        return int(read_in_both(kube, "inferenceservices", "x", namespace)["status"].get("readyReplicas", 0))

    for resource, replicas in ((f"inferenceservices{NEW}", 2), (f"inferenceservices{OLD}", 1)):
        kube.merge(resource, "x", {"spec": {"replicas": replicas}}, namespace, "scale")
        wait_for("as many replicas", lambda replicas=replicas: num_ready() == replicas)
    kube.delete(f"inferenceservices{end}", "x", namespace, propagationPolicy="Foreground")
    labels = {f"{GROUP}/service": "x"}
    wait_for("its objects to be gone", lambda: not any(kube.list(each, namespace, labels) for each in OWNED))
    wait_for("it to be gone", lambda: kube.find("inferenceservices", "x", namespace) is None)


@pytest.mark.parametrize(("version", "end"), [("v1alpha1", OLD), ("v1beta1", NEW)])
def test_a_cache_of_either_version_is_readable_in_both_without_loss(
    kube: Kube, namespace: str, version: str, end: str
) -> None:
    body = model_cache("models", model("tiny"), nodes={"no": "such"})
    kube.create(f"modelcaches{end}", in_version(body, version), namespace)
    wait_for("a status", lambda: kube.get("modelcaches", "models", namespace).get("status", {}).get("conditions"))
    found = read_in_both(kube, "modelcaches", "models", namespace)
    assert found["spec"]["models"][0]["name"] == "tiny"
    assert found["status"]["conditions"]
    kube.delete(f"modelcaches{end}", "models", namespace)
    wait_for("it to be gone", lambda: kube.find("modelcaches", "models", namespace) is None)


def test_a_rule_holds_in_both_versions(kube: Kube, namespace: str) -> None:
    for version, end in (("v1alpha1", OLD), ("v1beta1", NEW)):
        with pytest.raises(ApiError, match="exactly one model source"):
            kube.create(f"inferenceservices{end}", in_version(service("x", model={"source": {}}), version), namespace)


def test_changing_a_manifests_version_changes_nothing_else(
    kube: Kube, namespace: str, kubectl: Callable[..., str], tmp_path: Path
) -> None:
    body = service("x", replicas=0)
    file = tmp_path / "service.yaml"
    file.write_text(yaml.safe_dump(in_version(body, "v1alpha1")))
    kubectl("apply", "-f", file)
    wait_condition(kube, namespace, "x", "Ready", "False", "ScaledToZero")
    before = kube.get("inferenceservices", "x", namespace)["metadata"]
    file.write_text(yaml.safe_dump(in_version(body, "v1beta1")))
    assert kubectl("diff", "-f", file) == ""
    kubectl("apply", "-f", file)
    after = kube.get("inferenceservices", "x", namespace)["metadata"]
    assert [after[key] for key in ("uid", "generation")] == [before[key] for key in ("uid", "generation")]


def test_a_field_omitted_from_a_new_manifest_is_removed(kube: Kube, namespace: str) -> None:
    noted = service("x", replicas=0, endpoint={"service": {"annotations": {"a": "b"}}})
    kube.apply(f"inferenceservices{OLD}", in_version(noted, "v1alpha1"), namespace)
    kube.apply("inferenceservices", in_version(service("x", replicas=0), "v1beta1"), namespace)
    assert kube.get("inferenceservices", "x", namespace)["spec"]["endpoint"]["service"]["annotations"] == {}
    managers = kube.get("inferenceservices", "x", namespace)["metadata"]["managedFields"]
    assert [entry["apiVersion"] for entry in managers if entry["manager"] == "tests"] == [f"{GROUP}/v1beta1"]


def test_kubectl_shows_both_versions_equally_and_prefers_v1beta1(
    kube: Kube, namespace: str, kubectl: Callable[..., str]
) -> None:
    kube.create("inferenceservices", service("x", replicas=0), namespace)
    wait_condition(kube, namespace, "x", "Ready", "False", "ScaledToZero")
    kube.create("modelcaches", model_cache("models", model("tiny"), nodes={"no": "such"}), namespace)
    wait_for("a status", lambda: kube.get("modelcaches", "models", namespace).get("status", {}).get("conditions"))
    for kind, columns in (
        ("inferenceservices", {"READY", "DEVICE", "MESSAGE"}),
        ("modelcaches", {"READY", "CAPACITY"}),
    ):
        beta, alpha = (kubectl("get", f"{kind}.{version}.{GROUP}", "-o", "wide").split() for version in VERSIONS)
        assert columns <= set(beta)
        assert [word for word in beta if not AGE.fullmatch(word)] == [word for word in alpha if not AGE.fullmatch(word)]
    assert yaml.safe_load(kubectl("get", "bisvc", "x", "-o", "yaml"))["apiVersion"] == f"{GROUP}/v1beta1"
    texts = [
        kubectl("explain", "bisvc.spec.engine", f"--api-version={GROUP}/{version}").replace(version, "")
        for version in VERSIONS
    ]
    assert texts[0] == texts[1]
    assert "chunkSize" in texts[0]


@pytest.fixture
def restored(kube: Kube) -> Iterator[None]:
    """Restore the definitions of this release afterwards, as after a first installation."""
    yield
    remove_definitions(kube)
    define(kube, of_this_release())


def remove_definitions(kube: Kube) -> None:
    for kind in (kind for kind in KINDS if serves(kube, f"{kind}{OLD}")):
        for body in kube.list(f"{kind}{OLD}"):  # objects in terminating namespaces may still exist
            metadata = body["metadata"]
            kube.merge(f"{kind}{OLD}", metadata["name"], {"metadata": {"finalizers": None}}, metadata["namespace"])
        kube.delete("customresourcedefinitions", f"{kind}.{GROUP}")
    names = [f"{kind}.{GROUP}" for kind in KINDS]
    wait_for("no definition", lambda: not any(kube.find("customresourcedefinitions", name) for name in names))


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("restored")
def test_crds_of_other_releases_cause_no_restart_and_no_write(
    cluster: Cluster, operator: OperatorProcess, kube: Kube, namespace: str
) -> None:
    remove_definitions(kube)
    define(kube, of_the_release_before())
    kube.create(f"inferenceservices{OLD}", in_version(service("x"), "v1alpha1"), namespace)
    body = model_cache("models", model("tiny"), nodes={"no": "such"})
    kube.create(f"modelcaches{OLD}", in_version(body, "v1alpha1"), namespace)

    def alpha(plural: str, name: str) -> Object:
        return kube.get(f"{plural}{OLD}", name, namespace)

    wait_for("the service to be ready", lambda: "Ready" in true_conditions(alpha("inferenceservices", "x")))
    wait_for("a status of the cache", lambda: alpha("modelcaches", "models").get("status"))
    rests(cluster, operator)
    pid = operator.pid
    before = [alpha("inferenceservices", "x"), alpha("modelcaches", "models"), *children(kube, namespace)]

    steps = (of_this_release, of_the_release_before, of_the_release_after, of_this_release)
    stored = []
    for step in steps:
        audit = cluster.audit()
        define(kube, step())
        operator.wait_looked()
        writes = [call for call in audit.new_writes(USER) if call.namespace == namespace]
        assert writes == [], step.__name__
        after = [alpha("inferenceservices", "x"), alpha("modelcaches", "models"), *children(kube, namespace)]
        assert after == before, step.__name__
        stored.append(stored_versions(kube)[0])
    assert stored == [["v1alpha1"], ["v1alpha1"], ["v1alpha1", "v1beta1"], ["v1alpha1", "v1beta1"]]
    assert (operator.is_running, operator.pid) == (True, pid)
    assert read_in_both(kube, "inferenceservices", "x", namespace)["status"] == before[0]["status"]


@pytest.mark.usefixtures("restored")
def test_a_service_works_with_the_crd_of_release_0_1_until_it_is_replaced(
    cluster: Cluster, operator: OperatorProcess, kube: Kube, namespace: str
) -> None:
    remove_definitions(kube)
    define(kube, of_release_0_1())
    kube.create(f"inferenceservices{OLD}", in_version(service("x"), "v1alpha1"), namespace)

    def found() -> Object:
        return kube.get(f"inferenceservices{OLD}", "x", namespace)

    wait_for("the service to be ready", lambda: "Ready" in true_conditions(found()))
    assert "device" not in found()["status"]
    assert "the definition is of an earlier release; upgrade the chart's release" in operator.log_path.read_text()
    rests(cluster, operator)
    pid, pods = operator.pid, kube.list("pods", namespace)
    define(kube, of_this_release())
    wait_for("the fields that it lacked", lambda: found()["status"].get("device"))
    assert "Ready" in true_conditions(found())
    assert (operator.pid, kube.list("pods", namespace)) == (pid, pods)


def rests(cluster: Cluster, operator: OperatorProcess) -> None:
    """Return when the operator has completed a resync without a write."""

    def quiet() -> bool:
        audit = cluster.audit()
        operator.wait_looked()
        return not [call for call in audit.new_writes(USER) if call.resource != "leases"]

    wait_for("a look without a write", quiet)


def children(kube: Kube, namespace: str) -> list[Object]:
    """All objects created by the operator, including pods."""
    labels = {"app.kubernetes.io/managed-by": "ballast-operator"}
    return [body for resource in OWNED for body in kube.list(resource, namespace, labels)]


@pytest.mark.usefixtures("restored")
def test_stored_objects_move_to_v1beta1_when_they_are_written_again(
    cluster: Cluster, operator: OperatorProcess, kube: Kube, namespace: str
) -> None:
    kube.create("inferenceservices", service("x"), namespace)
    wait_ready(kube, namespace, "x")
    pods = kube.list("pods", namespace)
    define(kube, of_the_release_after())
    rests(cluster, operator)
    before = kube.get("inferenceservices", "x", namespace)
    kube.merge("inferenceservices", "x", {}, namespace)
    after = kube.get("inferenceservices", "x", namespace)
    assert after["metadata"].pop("resourceVersion") != before["metadata"].pop("resourceVersion"), (
        "it must be stored again"
    )
    assert after == before
    for kind in KINDS:
        patch = {"status": {"storedVersions": ["v1beta1"]}}
        kube.merge("customresourcedefinitions", f"{kind}.{GROUP}", patch, subresource="status")
    assert stored_versions(kube) == [["v1beta1"], ["v1beta1"]]
    rests(cluster, operator)
    wait_ready(kube, namespace, "x")
    assert kube.list("pods", namespace) == pods
