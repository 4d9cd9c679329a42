"""Two installs of the operator watch the same services: only one acts, both report it, and they do not conflict."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Kube, Object
from devkit.cluster.service.operator import ACCOUNT, NAMESPACE, USER, OperatorProcess
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.specs import condition, service, wait_condition, wait_ready
from devkit.cluster.waiting import wait_for

REST_S = 20
"""Longer than the interval of 15 s at which each install checks the service because of the other one."""


OTHER_IMAGE = "made.up/other:1"
"""The runtime of the second install."""


@pytest.fixture
def second(
    cluster: Cluster, operator: OperatorProcess, namespace: str, answers: PodAnswers
) -> Iterator[OperatorProcess]:
    """An operator in another namespace, so that its network policies admit other pods. Not started."""
    home = cluster.make_namespace(f"{namespace}-2"[-63:].strip("-"))
    role = {"rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}]}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "leases"}
    cluster.kube.create("roles", {"metadata": {"name": "leases"}, **role}, home)
    binding = {"metadata": {"name": "leases"}, "roleRef": reference, "subjects": [subject]}
    cluster.kube.create("rolebindings", binding, home)
    own = ("--operator-namespace", home, "--lease-name", "other", "--runtime-image", OTHER_IMAGE)
    yield OperatorProcess(cluster, "second", answers.url, "--resync-seconds", "5", *own)
    cluster.kube.delete("namespaces", home)


@pytest.fixture
def both(second: OperatorProcess) -> Iterator[OperatorProcess]:
    second.start()
    second.wait_leading()
    yield second
    second.stop()


def sole(kube: Kube, namespace: str) -> Object:
    return condition(kube, namespace, "shared", "SoleOperator")


def managers(kube: Kube, namespace: str) -> set[str]:
    """The names of the installs that own fields of the service."""
    fields = kube.get("inferenceservices", "shared", namespace)["metadata"]["managedFields"]
    return {name for _, slash, name in (field["manager"].partition("/") for field in fields) if slash}


def admitted(kube: Kube, namespace: str) -> str:
    """The namespace of the operator that the service's policy admits."""
    (rule, _) = kube.get("networkpolicies", "shared", namespace)["spec"]["ingress"]
    selectors = [peer["namespaceSelector"]["matchLabels"] for peer in rule["from"] if "namespaceSelector" in peer]
    (labels,) = selectors
    return str(labels["kubernetes.io/metadata.name"])


def test_the_older_install_acts_and_both_report_it(
    cluster: Cluster, kube: Kube, namespace: str, operator: OperatorProcess, both: OperatorProcess
) -> None:
    kube.apply("inferenceservices", service("shared", endpoint={"networkPolicy": {}}), namespace)
    found = wait_condition(kube, namespace, "shared", "SoleOperator", "False", "SeveralOperators")
    assert f"only {NAMESPACE}/ballast-operator, the oldest, acts on it" in found["message"]
    wait_ready(kube, namespace, "shared")

    def reported() -> bool:
        found = [e for e in kube.list("events", namespace) if e["reason"] == "SeveralOperators"]
        return [(e["type"], e["involvedObject"]["name"]) for e in found] == [("Warning", "shared")]

    wait_for("a warning", reported)
    for process in (operator, both):
        text = process.log_path.read_text()
        wait_for("its log to tell", lambda text=text: "another operator watches our services" in text)
    wait_for("the policy of the first", lambda: admitted(kube, namespace) == NAMESPACE)
    audit = cluster.audit()

    def rests() -> bool:
        time.sleep(REST_S)
        calls = [call for call in audit.new_writes(USER) if call.namespace == namespace]
        assert not calls, calls
        return True

    wait_for("a time without writes", rests)  # events are written after the status that they report
    assert admitted(kube, namespace) == NAMESPACE

    both.stop()
    wait_for("no other install to be reported", lambda: not sole(kube, namespace))
    wait_ready(kube, namespace, "shared")
    wait_for("the other's fields to be removed", lambda: managers(kube, namespace) == {"ballast-operator"})


def test_a_new_service_has_one_writer_from_its_first_object_on(
    kube: Kube, namespace: str, operator: OperatorProcess, both: OperatorProcess
) -> None:
    names = [f"new-{number}" for number in range(8)]
    for name in names:
        kube.apply("inferenceservices", service(name), namespace)
    for name in names:
        wait_ready(kube, namespace, name)
    pods = kube.list("pods", namespace)
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"made.up/runtime:1"}
    written = both.log_path.read_text()
    assert not [line for line in written.splitlines() if namespace in line and ("created" in line or "applied" in line)]


def test_the_other_install_takes_over_after_the_first_is_removed(
    kube: Kube, namespace: str, operator: OperatorProcess, both: OperatorProcess
) -> None:
    kube.apply("inferenceservices", service("shared", endpoint={"networkPolicy": {}}), namespace)
    wait_condition(kube, namespace, "shared", "SoleOperator", "False", "SeveralOperators")
    wait_ready(kube, namespace, "shared")
    operator.stop()
    try:
        wait_for("it to act", lambda: admitted(kube, namespace) != NAMESPACE)
        wait_for("no other install to be reported", lambda: not sole(kube, namespace))
        wait_ready(kube, namespace, "shared")
        kube.merge("inferenceservices", "shared", {"spec": {"replicas": 2}}, namespace)
        wait_ready(kube, namespace, "shared")
    finally:
        operator.start()
        operator.wait_leading()
    wait_condition(kube, namespace, "shared", "SoleOperator", "False")
    wait_for("the first to act again", lambda: admitted(kube, namespace) == NAMESPACE)


def test_status_fields_of_an_earlier_version_are_taken_over(
    kube: Kube, namespace: str, operator: OperatorProcess
) -> None:
    """That version used the same manager name for all installs."""
    kube.apply("inferenceservices", service("shared"), namespace)
    wait_ready(kube, namespace, "shared")
    body = kube.get("inferenceservices", "shared", namespace)
    head = {key: body[key] for key in ("apiVersion", "kind")}
    old = {**head, "metadata": {"name": "shared"}, "status": {**body["status"], "nodes": "an earlier one"}}
    kube.apply("inferenceservices", old, namespace, subresource="status", manager="ballast-operator")

    def only_ours() -> bool:
        found = kube.get("inferenceservices", "shared", namespace)
        managers = [e["manager"] for e in found["metadata"]["managedFields"] if e.get("subresource") == "status"]
        assert managers == [f"{NAMESPACE}/ballast-operator"], managers
        return bool(found["status"] == body["status"])

    wait_for("the status to have only our fields", only_ours)
