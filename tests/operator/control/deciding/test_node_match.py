"""Whether a pod fits on a node: labels, affinity, taints, cordons and allocatable resources."""

from decimal import Decimal

import pytest
from builders import FIRST, service

from ballast_operator.child_options import ChildOptions
from ballast_operator.control.deciding.node_match import why_no_node
from ballast_operator.pod_requests import pod_requests
from ballast_operator.resources.pod import build_pod

GPU = {"nvidia.com/gpu": "1"}


def node(name="n1", *, labels=None, taints=(), cordoned=False, **allocatable):
    given = {"cpu": "8", "memory": "64Gi", **allocatable}
    return {
        "metadata": {"name": name, "labels": {"pool": "models", "cores": "64", **(labels or {})}},
        "spec": {"taints": list(taints), **({"unschedulable": True} if cordoned else {})},
        "status": {"allocatable": given},
    }


def successor(**spec):
    return build_pod(service(**spec), ChildOptions(), FIRST)


def why(*nodes, **spec):
    return why_no_node(successor(**spec), nodes)


def on(**scheduling):
    return {"scheduling": scheduling}


def required(*expressions, fields=()):
    term = {"matchExpressions": list(expressions), "matchFields": list(fields)}
    return on(
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    )


def expression(operator, *values, key="pool"):
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def test_a_node_with_all_resources_can_run_the_pod():
    assert why(node(cpu="1"), node()) is None
    assert why(node(), **on(nodeSelector={"pool": "models"})) is None


def test_a_selector_without_a_matching_node_is_reported_and_counted():
    found = why(node(), node("n2"), **on(nodeSelector={"pool": "nope"}))
    assert found == "none of 2 nodes could run the pod: 2 without the label pool=nope"


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        (expression("In", "models", "other"), True),
        (expression("In", "other"), False),
        (expression("NotIn", "other"), True),
        (expression("NotIn", "models"), False),
        (expression("NotIn", "models", key="absent"), True),
        (expression("Exists"), True),
        (expression("Exists", key="absent"), False),
        (expression("DoesNotExist"), False),
        (expression("DoesNotExist", key="absent"), True),
        (expression("Gt", "63", key="cores"), True),
        (expression("Gt", "64", key="cores"), False),
        (expression("Lt", "65", key="cores"), True),
        (expression("Lt", "65", key="absent"), False),
        (expression("Gt", "1", key="pool"), False),
    ],
    ids=str,
)
def test_required_node_affinity_follows_the_schedulers_rules(match, matches):
    assert (why(node(), **required(match)) is None) is matches


def test_an_affinity_field_matches_the_node_name_and_an_empty_term_matches_nothing():
    assert why(node(), **required(fields=[expression("In", "n1", key="metadata.name")])) is None
    assert why(node(), **required(fields=[expression("In", "n2", key="metadata.name")])) is not None
    assert why(node(), **required()) is not None


TAINT = {"key": "gpu", "value": "a", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "gpu", "value": "a"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "a", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "a", "effect": "NoExecute"}, False),
        ({"key": "gpu", "value": "b"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
    ids=str,
)
def test_a_taint_needs_a_toleration(toleration, tolerated):
    assert "with the taint gpu=a:NoSchedule" in str(why(node(taints=[TAINT])))
    assert (why(node(taints=[TAINT]), **on(tolerations=[toleration])) is None) is tolerated


def test_a_soft_taint_excludes_no_pod_and_a_cordon_does():
    assert why(node(taints=[{**TAINT, "effect": "PreferNoSchedule"}])) is None
    assert "cordoned" in str(why(node(cordoned=True)))


@pytest.mark.parametrize(
    ("resources", "lacking"),
    [
        ({"cpus": 9, "memory": "1Gi", "gpus": 0}, "cpu"),
        ({"cpus": 1, "memory": "65Gi", "gpus": 0}, "memory"),
        ({"cpus": 1, "memory": "1Gi", "gpus": 1}, "nvidia.com/gpu"),
        ({"cpus": 1, "memory": "1Gi", "gpus": 2}, "nvidia.com/gpu"),
        ({"cpus": 1, "memory": "1Gi", "gpus": 0, "hugepages1Gi": 2}, "hugepages-1Gi"),
    ],
)
def test_a_node_must_have_the_requested_resources(resources, lacking):
    assert f"with less {lacking} than the pod requests" in str(why(node(), resources=resources))
    large = node(cpu="16", memory="128Gi", **{"nvidia.com/gpu": "2"}, **{"hugepages-1Gi": "4Gi"})
    assert why(node(), large, resources=resources) is None


def test_devices_are_counted_in_the_message():
    resources = {"cpus": 1, "memory": "1Gi", "gpus": 2}
    found = str(why(node(**GPU), node(), node(), resources=resources))
    assert "1 with less nvidia.com/gpu than the pod requests, 1 of 2" in found
    assert "2 with less nvidia.com/gpu than the pod requests, 0 of 2" in found


def test_sidecars_count_with_the_engine():
    sidecar = {"name": "logger", "image": "x", "cpu": "500m", "memory": "1Gi"}
    requested = pod_requests(successor(sidecars=[sidecar])["spec"])
    assert requested == {"cpu": Decimal("2.5"), "memory": Decimal(2 * 2**30)}
    once = {"name": "setup", "resources": {"requests": {"cpu": "4"}}}
    engine = {"name": "engine", "resources": {"requests": {"cpu": "2"}}}
    assert pod_requests({"initContainers": [once], "containers": [engine]})["cpu"] == 4


def test_several_reasons_are_counted_separately():
    found = why(node(), node("n2", labels={"pool": "nope"}, cpu="1"), **on(nodeSelector={"pool": "nope"}))
    assert found == (
        "none of 2 nodes could run the pod: 1 with less cpu than the pod requests, 1 without the label pool=nope"
    )
