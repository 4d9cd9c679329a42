"""The health check for Flux in docs/kubernetes/gitops.md, evaluated by the API server on services in every state."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from devkit.cluster.kube import ApiError, Kube, Object
from devkit.cluster.service.operator import CRD
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.short_lists import SHORT_LISTS
from devkit.cluster.service.specs import service, wait_condition, wait_ready
from devkit.cluster.waiting import wait_for
from devkit.manifests import objects_of

pytestmark = pytest.mark.usefixtures("operator")

PAGE = Path(__file__).parents[2] / "docs/kubernetes/gitops.md"
FIELD = re.compile(r"(?<![\w.])(?=(?:status|metadata)\.)")
"""Matches fields of the object in an expression; Flux refers to them without a prefix."""


def health_check() -> Object:
    (block,) = re.findall(r"^```yaml\n(spec:\n  healthCheckExprs.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (check,) = yaml.safe_load(block)["spec"]["healthCheckExprs"]
    return dict(check)


@pytest.fixture
def health(kube: Kube, namespace: str) -> Iterator[Callable[[str], str]]:
    """The health of a service in the namespace, as Flux evaluates it."""
    check = health_check()
    failed, current = (FIELD.sub("object.", check[name]) for name in ("failed", "current"))
    group, _, version = check["apiVersion"].partition("/")
    rule = {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": ["UPDATE"],
        "resources": ["inferenceservices/status"],
    }
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": namespace},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "resourceRules": [rule],
            },
            # Only for this test's objects, never for the operator's writes.
            "matchConditions": [{"name": "dry-run", "expression": "has(request.dryRun) && request.dryRun"}],
            "validations": [
                {
                    "expression": "false",
                    "messageExpression": f"'it is ' + (({failed}) ? 'failed' : ({current}) ? 'current' : 'on its way')",
                }
            ],
        },
    }
    binding = {
        "apiVersion": policy["apiVersion"],
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": namespace},
        "spec": {"policyName": namespace, "validationActions": ["Deny"]},
    }
    kube.apply("validatingadmissionpolicies", policy)
    kube.apply("validatingadmissionpolicybindings", binding)

    def find(name: str) -> str:
        def answer() -> str:
            try:
                kube.try_merge("inferenceservices", name, {"status": {"nodes": "x"}}, namespace, "status")
            except ApiError as error:
                return error.message.rpartition("denied request: it is ")[2]
            return ""  # the policy is not in effect yet

        return wait_for("the policy", answer)

    yield find
    kube.delete("validatingadmissionpolicybindings", namespace)
    kube.delete("validatingadmissionpolicies", namespace)


def differing_lists(applied: object, live: object, path: str = "") -> Iterator[str]:
    """Paths of the lists in which the live object differs from the applied one."""
    if isinstance(applied, list) and applied != live:
        yield path
    if isinstance(applied, dict) and isinstance(live, dict):
        for name, value in applied.items():
            yield from differing_lists(value, live.get(name), f"{path}.{name}")


def test_argo_cd_finds_a_service_in_sync_since_no_list_gets_defaults(kube: Kube, namespace: str) -> None:
    applied = service("lists", **{**SHORT_LISTS, "replicas": 0})
    kube.create("inferenceservices", applied, namespace)
    assert list(differing_lists(applied, kube.get("inferenceservices", "lists", namespace))) == []


def test_argo_cd_finds_the_definition_in_sync(kube: Kube) -> None:
    (applied,) = objects_of(CRD.read_text())
    live = kube.get("customresourcedefinitions", applied["metadata"]["name"])
    assert list(differing_lists(applied, live)) == []


def test_flux_reports_the_correct_health_of_each_state(
    kube: Kube, namespace: str, answers: PodAnswers, health: Callable[[str], str]
) -> None:
    page, answers.pages["/readyz"] = answers.pages["/readyz"], (503, {"status": "loading", "progress": 0.4})
    try:
        kube.apply("inferenceservices", service("loads", "loading"), namespace)
        wait_condition(kube, namespace, "loads", "Ready", "False", "Loading")
        assert health("loads") == "on its way"
    finally:
        answers.pages["/readyz"] = page
    kube.apply("inferenceservices", service("serves"), namespace)
    wait_ready(kube, namespace, "serves")
    assert health("serves") == "current"
    kube.apply("inferenceservices", service("serves", replicas=0), namespace)
    wait_condition(kube, namespace, "serves", "Ready", "False", "ScaledToZero")
    assert health("serves") == "current"
    beyond = {"source": {"hostPath": {"path": "/etc"}}}
    kube.apply("inferenceservices", service("serves", model=beyond), namespace)
    wait_condition(kube, namespace, "serves", "Ready", "False", "NotAllowed")
    assert health("serves") == "failed"
