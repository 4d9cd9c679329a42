"""Two services behind one HTTPRoute; a field of the spec sets the weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.definitions import HTTP_ROUTE
from devkit.cluster.kube import ApiError, Kube, Object
from devkit.cluster.service.operator import OperatorProcess
from devkit.cluster.service.specs import service, wait_condition, wait_ready
from devkit.cluster.waiting import wait_for

pytestmark = pytest.mark.usefixtures("operator")

GATEWAYS = [{"name": "inference"}, {"name": "outside", "namespace": "gateways", "sectionName": "https"}]


@pytest.fixture
def routes(cluster: Cluster) -> Iterator[None]:
    with cluster.kinds(HTTP_ROUTE):
        yield


def route(percent: int) -> Object:
    return {"gateways": GATEWAYS, "hostnames": ["a.test"], "canary": {"service": "new", "percent": percent}}


def weights(kube: Kube, namespace: str) -> dict[str, int]:
    found = kube.find("httproutes", "old", namespace)
    if found is None:
        return {}
    return {backend["name"]: backend["weight"] for backend in found["spec"]["rules"][0]["backendRefs"]}


def set_percent(kube: Kube, namespace: str, percent: int) -> None:
    change = {"spec": {"endpoint": {"route": {"canary": {"percent": percent}}}}}
    kube.merge("inferenceservices", "old", change, namespace)


@pytest.mark.usefixtures("routes")
def test_the_field_moves_requests_to_the_canary_and_back_and_no_pod_restarts(
    kube: Kube, namespace: str, operator: OperatorProcess
) -> None:
    kube.apply("inferenceservices", service("new"), namespace)
    wait_ready(kube, namespace, "new")
    kube.apply("inferenceservices", service("old", endpoint={"route": route(10)}), namespace)
    wait_ready(kube, namespace, "old")
    wait_for("the route", lambda: weights(kube, namespace) == {"old": 90, "new": 10})
    made = kube.get("httproutes", "old", namespace)
    assert made["metadata"]["ownerReferences"][0]["name"] == "old"
    assert [parent["name"] for parent in made["spec"]["parentRefs"]] == ["inference", "outside"]
    before = {pod["metadata"]["uid"] for pod in kube.list("pods", namespace)}
    for percent in (100, 50, 0):
        set_percent(kube, namespace, percent)
        wanted = {"old": 100 - percent, "new": percent}
        wait_for(f"{percent} percent", lambda wanted=wanted: weights(kube, namespace) == wanted)
    kube.merge("httproutes", "old", {"spec": {"hostnames": ["b.test"]}}, namespace)
    wait_for(
        "the route to be healed",
        lambda: kube.get("httproutes", "old", namespace)["spec"]["hostnames"] == ["a.test"],
    )
    version = kube.get("httproutes", "old", namespace)["metadata"]["resourceVersion"]
    operator.wait_looked()
    assert kube.get("httproutes", "old", namespace)["metadata"]["resourceVersion"] == version, "written at rest"
    kube.merge("inferenceservices", "old", {"spec": {"endpoint": {"route": None}}}, namespace)
    wait_for("no route", lambda: kube.find("httproutes", "old", namespace) is None)
    assert {pod["metadata"]["uid"] for pod in kube.list("pods", namespace)} == before


def test_a_cluster_without_the_gateway_api_serves_and_the_condition_names_the_kind(kube: Kube, namespace: str) -> None:
    kube.apply("inferenceservices", service("old", endpoint={"route": route(10)}), namespace)
    wait_ready(kube, namespace, "old")
    blocked = wait_condition(kube, namespace, "old", "Progressing", "False", "Blocked")
    assert "needs the kind HTTPRoute of gateway.networking.k8s.io/v1" in blocked["message"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"canary": {"service": "new", "percent": 101}}, "percent"),
        ({"canary": {}}, "service"),
        ({"gateways": []}, "gateways"),
    ],
)
def test_an_impossible_route_is_rejected(kube: Kube, namespace: str, change: Object, message: str) -> None:
    with pytest.raises(ApiError, match=message):
        kube.create("inferenceservices", service("old", endpoint={"route": {**route(0), **change}}), namespace)
