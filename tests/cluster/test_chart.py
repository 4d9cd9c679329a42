"""The chart's life cycle on a real control plane: install, use, upgrade, uninstall; models serve throughout."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_operator.version import __version__ as VERSION
from devkit.cluster.chart import ACCOUNT, RELEASE, operator_of
from devkit.cluster.cluster import Cluster
from devkit.cluster.definitions import POD_MONITOR, PROMETHEUS_RULE
from devkit.cluster.helm import CHART, Helm
from devkit.cluster.kube import Kube, Object
from devkit.cluster.service.api_versions import of_the_release_before, serves
from devkit.cluster.service.operator import CRDS
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.specs import service, true_conditions, wait_ready
from devkit.cluster.waiting import wait_for
from devkit.manifests import objects_of, text_of

DEFINITION = "inferenceservices.serving.ballast.dev"
DEFINITIONS = (DEFINITION, "modelcaches.serving.ballast.dev")
NEXT = "99.0.0"
"""The version of `next_version`."""
WITH_MODEL = {"inferenceServices": [{"name": "comes-along", "spec": service("x")["spec"]}]}


@pytest.fixture
def helm(cluster: Cluster, tmp_path: Path) -> Helm:
    return Helm(tmp_path, cluster.control_plane.kubeconfig)


@pytest.fixture
def bare(kube: Kube) -> None:
    """A cluster without Ballast: other tests install it without helm."""
    everything = (
        *(("customresourcedefinitions", name) for name in DEFINITIONS),
        ("clusterroles", ACCOUNT),
        ("clusterrolebindings", ACCOUNT),
    )
    for resource, name in everything:
        if kube.find(resource, name):
            kube.delete(resource, name)
    wait_for("nothing to be there", lambda: not any(kube.find(*one) for one in everything))


def values_file(folder: Path, name: str, **values: Any) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def next_version(folder: Path) -> Path:
    """The chart of a later release: another version, another definition."""
    chart = folder / "ballast"
    shutil.copytree(CHART, chart)
    for file, old, new in (
        ("Chart.yaml", f"ersion: {VERSION}", f"ersion: {NEXT}"),
        (
            "files/crd/inferenceservices.serving.ballast.dev.yaml",
            "description: Always InferenceService.",
            "description: Of the next version.",
        ),
    ):
        text = (chart / file).read_text()
        assert old in text
        (chart / file).write_text(text.replace(old, new))
    return chart


def release_before(folder: Path) -> Path:
    """The chart when v1alpha1 was the only API version."""
    chart = shutil.copytree(CHART, folder / "before/ballast")
    for definition in of_the_release_before():
        (chart / f"files/crd/{definition['metadata']['name']}.yaml").write_text(text_of([definition]))
    template = chart / "templates/inferenceservices.yaml"
    template.write_text(template.read_text().replace("v1beta1", "v1alpha1"))
    return chart


def data_plane(kube: Kube, namespace: str) -> dict[str, str]:
    """Names → uids of the services and of all objects that serve traffic."""
    resources = ("inferenceservices", "pods", "services", "poddisruptionbudgets")
    ours = {"app.kubernetes.io/managed-by": "ballast-operator"}
    return {
        f"{resource}/{body['metadata']['name']}": body["metadata"]["uid"]
        for resource in resources
        for body in kube.list(resource, namespace, None if resource == "inferenceservices" else ours)
        if "deletionTimestamp" not in body["metadata"]
    }


EVERYTHING = {
    "imagePullSecrets": [{"name": "registry"}],
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "podLabels": {"team": "serving"},
    "podAnnotations": {"example.org/a": "b"},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "priorityClassName": "system-cluster-critical",
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "networkPolicy": {"enabled": True, "monitoring": [{"namespaceSelector": {}}]},
    "serviceAccount": {"annotations": {"example.org/role": "none"}},
    "monitoring": {
        "podMonitor": {"labels": {"release": "prometheus"}},
        "prometheusRule": {"labels": {"release": "prometheus"}, "runbookBaseUrl": "https://docs.test"},
        "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Ballast"}},
    },
    **WITH_MODEL,
}


def described(definition: Object) -> str:
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return str(schema["properties"]["kind"]["description"])


def generations(kube: Kube, namespace: str) -> dict[str, int]:
    """The generation of each object that helm installs and to which the API server adds defaults."""
    there = [kube.get("customresourcedefinitions", DEFINITION)]
    there += [*kube.list("deployments", namespace), *kube.list("inferenceservices", namespace)]
    return {body["metadata"]["name"]: body["metadata"]["generation"] for body in there}


@pytest.mark.usefixtures("bare")
def test_models_serve_through_install_upgrade_and_uninstall(
    cluster: Cluster, kube: Kube, helm: Helm, namespace: str, answers: PodAnswers, tmp_path: Path
) -> None:
    where = ("--namespace", namespace, "--wait", "--timeout", "2m")
    first = values_file(tmp_path, "first", **WITH_MODEL)
    message = helm("install", RELEASE, CHART, *where, "--values", first)
    assert "kubectl get bisvc" in message
    assert kube.find("clusterroles", f"{namespace}:{ACCOUNT}") is not None
    with operator_of(cluster, namespace, answers, "chart-first"):
        wait_ready(kube, namespace, "comes-along")
        kube.apply("inferenceservices", service("by-hand"), namespace)
        wait_ready(kube, namespace, "by-hand")
    found = generations(kube, namespace)
    helm("upgrade", RELEASE, CHART, *where, "--values", first)
    assert generations(kube, namespace) == found, "unchanged values must not change objects"
    before = data_plane(kube, namespace)
    assert {"pods/comes-along-0", "pods/by-hand-0", "services/by-hand"} <= before.keys()

    second = values_file(tmp_path, "second", **WITH_MODEL, replicas=3, log={"level": "debug"}, resyncSeconds=30)
    helm("upgrade", RELEASE, next_version(tmp_path), *where, "--values", second)
    definition = kube.get("customresourcedefinitions", DEFINITION)
    assert described(definition) == "Of the next version."
    with operator_of(cluster, namespace, answers, "chart-second") as operator:
        assert f"--runtime-image=ballast-runtime:{NEXT}" in operator.argv
        kube.apply("inferenceservices", service("later"), namespace)
        wait_ready(kube, namespace, "later")
        image = kube.get("pods", "later-0", namespace)["spec"]["containers"][0]["image"]
        assert image == f"ballast-runtime:{NEXT}-cpu", "new pods use the new version"
        wait_ready(kube, namespace, "comes-along")
    after = data_plane(kube, namespace)
    assert {name: after[name] for name in before} == before

    helm("rollback", RELEASE, "1", *where)
    assert described(kube.get("customresourcedefinitions", DEFINITION)) == "Always InferenceService."
    assert data_plane(kube, namespace) == after

    helm("uninstall", RELEASE, *where)
    assert kube.find("deployments", ACCOUNT, namespace) is None
    assert kube.find("clusterroles", f"{namespace}:{ACCOUNT}") is None
    assert kube.find("leases", ACCOUNT, namespace) is None
    assert data_plane(kube, namespace) == after
    assert "deletionTimestamp" not in kube.get("customresourcedefinitions", DEFINITION)["metadata"]

    helm("install", RELEASE, CHART, *where, "--values", first)
    with operator_of(cluster, namespace, answers, "chart-again"):
        wait_ready(kube, namespace, "comes-along")
    assert data_plane(kube, namespace) == after, "a new installation adopts the existing objects"
    held = kube.get("leases", ACCOUNT, namespace)
    kube.merge("leases", ACCOUNT, {"spec": {**held["spec"], "holderIdentity": "one that was killed"}}, namespace)
    helm("uninstall", RELEASE, *where)
    assert kube.find("leases", ACCOUNT, namespace) is None


@pytest.mark.usefixtures("bare")
def test_a_service_of_a_v1alpha1_release_serves_through_upgrades_and_a_rollback(
    cluster: Cluster, kube: Kube, helm: Helm, namespace: str, answers: PodAnswers, tmp_path: Path
) -> None:
    where = ("--namespace", namespace, "--wait", "--timeout", "2m")
    values = values_file(tmp_path, "values", **WITH_MODEL)

    def model() -> Object:
        return kube.get("inferenceservices.v1alpha1", "comes-along", namespace)

    def state() -> tuple[list[str], int, list[str]]:
        """State that no step may change, and the versions of the model in the release."""
        objects = [model(), *kube.list("pods", namespace), *kube.list("services", namespace)]
        uids = [body["metadata"]["uid"] for body in objects]
        manifest = objects_of(helm("get", "manifest", RELEASE, "--namespace", namespace))
        written = [body["apiVersion"] for body in manifest if body["kind"] == "InferenceService"]
        return uids, model()["metadata"]["generation"], [version.rpartition("/")[2] for version in written]

    helm("install", RELEASE, release_before(tmp_path), *where, "--values", values)
    with operator_of(cluster, namespace, answers, "chart-before"):
        wait_for("the model to be ready", lambda: "Ready" in true_conditions(model()))
    uids, generation, written = state()
    assert written == [], "the definitions are written by a hook"
    for expected in ("v1alpha1", "v1beta1"):
        helm("upgrade", RELEASE, CHART, *where, "--values", values)
        assert state() == (uids, generation, [expected])
    assert kube.get("inferenceservices", "comes-along", namespace)["spec"] == model()["spec"]
    helm("rollback", RELEASE, "1", *where)
    wait_for("v1beta1 to be gone", lambda: not serves(kube, "inferenceservices"))
    assert state() == (uids, generation, [])
    helm("upgrade", RELEASE, CHART, *where, "--values", values)
    with operator_of(cluster, namespace, answers, "chart-after"):
        wait_ready(kube, namespace, "comes-along")
    assert state() == (uids, generation, ["v1alpha1"])
    helm("uninstall", RELEASE, *where)


@pytest.mark.parametrize("scope", ["Cluster", "Namespace"])
def test_the_api_server_accepts_every_rendered_field(
    cluster: Cluster, kube: Kube, namespace: str, tmp_path: Path, scope: str
) -> None:
    cluster.install(*CRDS)
    values = values_file(tmp_path, "everything", **EVERYTHING, rbac={"scope": scope})
    known = [f"--api-versions=monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "PrometheusRule")]
    objects = Helm(tmp_path).template("--values", values, "--namespace", namespace, *known, release="judged")
    assert len({body["kind"] for body in objects}) >= 13
    with cluster.kinds(POD_MONITOR, PROMETHEUS_RULE):
        for body in objects:
            if body["metadata"]["name"] in DEFINITIONS:  # it exists and comes from the same file
                body["metadata"]["name"] = DEFINITION.replace("inferenceservices", "others")
                names = body["spec"]["names"]
                names.update(plural="others", singular="other", kind="Other", listKind="OtherList")
            kube.would_accept(cluster.resource_of(body), body)
