"""Others edit what the operator owns, and ask for what cannot be: what serves goes on, and the status is true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.cluster.kube import Kube, Object
from support.cluster.service.endpoints import ready_services
from support.cluster.service.specs import service, wait_condition, wait_ready
from support.cluster.waiting import wait_for

pytestmark = pytest.mark.usefixtures("operator")

FOREIGN = {"labels": {"example.org/mine": "yes"}, "annotations": {"example.org/mine": "yes"}}


def serving(kube: Kube, namespace: str, name: str, **spec: object) -> None:
    kube.apply("inferenceservices", service(name, **spec), namespace)
    wait_ready(kube, namespace, name)


def is_served(kube: Kube, namespace: str, name: str) -> bool:
    return name in ready_services(kube, namespace, name)


ADDED = [
    ("services", {"selector": {"foo": "bar"}}),
    ("services", {"publishNotReadyAddresses": True, "externalIPs": ["198.51.100.7"]}),
    ("services", {"internalTrafficPolicy": "Local", "sessionAffinity": "ClientIP"}),
    ("networkpolicies", {"podSelector": {"matchLabels": {"foo": "bar"}}}),
    ("networkpolicies", {"egress": [{}]}),
    ("poddisruptionbudgets", {"selector": {"matchLabels": {"foo": "bar"}}}),
]
"""What somebody adds to a child's spec, beside what the operator put there."""


def test_what_somebody_adds_to_a_child_is_taken_away_and_foreign_labels_stay(kube: Kube, namespace: str) -> None:
    serving(kube, namespace, "added", endpoint={"networkPolicy": {}})
    before = {resource: kube.get(resource, "added", namespace)["spec"] for resource, _ in ADDED}
    for resource, spec in ADDED:
        edited = kube.merge(resource, "added", {"spec": spec, "metadata": FOREIGN}, namespace)
        assert edited["spec"] != before[resource]

        def healed(resource: str = resource) -> bool:
            return bool(kube.get(resource, "added", namespace)["spec"] == before[resource])

        wait_for(f"{resource} without {spec}", healed, timeout_s=20)
        metadata = kube.get(resource, "added", namespace)["metadata"]
        assert (metadata["labels"]["example.org/mine"], metadata["annotations"]["example.org/mine"]) == ("yes", "yes")
    wait_for("clients to reach it again", lambda: is_served(kube, namespace, "added"))
    wait_ready(kube, namespace, "added")


@pytest.mark.parametrize(
    "ports",
    [
        [{"name": "http", "port": 10002, "targetPort": "admin"}],
        [{"name": "http", "port": 80, "targetPort": "http"}],
        [{"name": "web", "port": 10002, "targetPort": "http"}],
        [{"name": "http", "port": 10002, "targetPort": "http"}, {"name": "debug", "port": 1, "targetPort": "admin"}],
    ],
)
def test_a_port_that_somebody_edits_or_adds_is_healed(kube: Kube, namespace: str, ports: list[Object]) -> None:
    serving(kube, namespace, "ports")
    before = kube.get("services", "ports", namespace)["spec"]["ports"]
    kube.merge("services", "ports", {"spec": {"ports": ports}}, namespace)
    wait_for("its port", lambda: kube.get("services", "ports", namespace)["spec"]["ports"] == before, timeout_s=20)
    wait_ready(kube, namespace, "ports")


def test_another_port_is_applied_over_one_that_was_healed(kube: Kube, namespace: str) -> None:
    serving(kube, namespace, "moved")
    kube.merge("services", "moved", {"spec": {"ports": [{"name": "http", "port": 80}]}}, namespace)
    wait_for("its port", lambda: kube.get("services", "moved", namespace)["spec"]["ports"][0]["port"] == 10002)
    kube.merge("inferenceservices", "moved", {"spec": {"endpoint": {"port": 10005}}}, namespace)
    wait_ready(kube, namespace, "moved")
    assert [port["port"] for port in kube.get("services", "moved", namespace)["spec"]["ports"]] == [10005]


@contextmanager
def without_permission(kube: Kube, resource: str, verb: str) -> Iterator[None]:
    """The operator may not do this to these objects."""
    role = kube.get("clusterroles", "ballast-operator")
    rules = [
        {**rule, "resources": [found], "verbs": [v for v in rule["verbs"] if (found, v) != (resource, verb)]}
        for rule in role["rules"]
        for found in rule["resources"]
    ]
    kube.merge("clusterroles", "ballast-operator", {"rules": rules})
    try:
        yield
    finally:
        kube.merge("clusterroles", "ballast-operator", {"rules": role["rules"]})


def test_a_service_without_endpoints_is_not_ready(kube: Kube, namespace: str) -> None:
    serving(kube, namespace, "lost")
    with without_permission(kube, "services", "patch"):
        kube.merge("services", "lost", {"spec": {"selector": {"foo": "bar"}}}, namespace)
        found = wait_condition(kube, namespace, "lost", "EndpointReady", "False", "EndpointsMissing", timeout_s=30)
        assert "lost-0: ready, and no endpoint" in found["message"]
        wait_condition(kube, namespace, "lost", "Ready", "False", timeout_s=30)
    kube.merge("inferenceservices", "lost", {"metadata": {"annotations": {"example.org/look": "now"}}}, namespace)
    wait_ready(kube, namespace, "lost", timeout_s=60)
