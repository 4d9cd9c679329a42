"""What counts as drift."""

import copy

import pytest
from builders import service

from ballast_operator.child_options import ChildOptions
from ballast_operator.control.deciding.drift import has_drifted, removal_patch, stamped
from ballast_operator.desired import desired_children

ENDPOINT = {
    "networkPolicy": {},
    "service": {"type": "LoadBalancer", "annotations": {"cloud/scheme": "internal"}},
    "inferencePool": {"pickerName": "picker"},
}
CHILDREN = {child["kind"]: stamped(child) for child in desired_children(service(endpoint=ENDPOINT), ChildOptions())}


def live(kind):
    """The child as the API server returns it: with defaults and bookkeeping."""
    body = copy.deepcopy(CHILDREN[kind])
    body["metadata"] |= {"uid": "u", "resourceVersion": "5", "creationTimestamp": "2026-01-01T00:00:00Z"}
    if kind == "Service":
        body["spec"] |= {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"]}
        body["spec"] |= {"ipFamilyPolicy": "SingleStack", "allocateLoadBalancerNodePorts": True}
        body["spec"]["ports"][0]["nodePort"] = 30000
    if kind == "PodMonitor":
        body["spec"]["podMetricsEndpoints"][0]["relabelings"][0]["action"] = "replace"
    body["status"] = {"observed": 1}
    return body


@pytest.mark.parametrize("kind", CHILDREN)
def test_defaults_and_metadata_of_the_api_server_are_no_drift(kind):
    assert not has_drifted(CHILDREN[kind], live(kind))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Service", lambda body: body["spec"]["selector"].update({"serving.ballast.dev/service": "other"})),
        ("Service", lambda body: body["spec"]["ports"][0].update(port=1)),
        ("Service", lambda body: body["spec"].pop("ports")),
        ("Service", lambda body: body["metadata"].pop("labels")),
        ("Service", lambda body: body["metadata"].pop("ownerReferences")),
        ("Service", lambda body: body["metadata"]["annotations"].update({"serving.ballast.dev/applied-hash": "older"})),
        ("Service", lambda body: body["spec"]["selector"].update(foo="bar")),
        ("Service", lambda body: body["spec"].update(publishNotReadyAddresses=True)),
        ("Service", lambda body: body["spec"]["ports"].append({"name": "more", "port": 99})),
        ("Service", lambda body: body["spec"]["ports"][0].update(targetPort="admin")),
        ("PodDisruptionBudget", lambda body: body["spec"].update(minAvailable=7)),
        ("PodDisruptionBudget", lambda body: body["spec"]["selector"]["matchLabels"].update(foo="bar")),
        ("NetworkPolicy", lambda body: body["spec"].update(egress=[{}])),
        ("NetworkPolicy", lambda body: body["spec"]["podSelector"]["matchLabels"].update(foo="bar")),
        ("PodMonitor", lambda body: body["spec"].update(jobLabel="x")),
        ("NetworkPolicy", lambda body: body["spec"]["ingress"].append({})),
        ("NetworkPolicy", lambda body: body["spec"]["ingress"][0]["from"].append({"ipBlock": {"cidr": "0.0.0.0/0"}})),
    ],
)
def test_a_changed_desired_field_is_drift(kind, change):
    body = live(kind)
    change(body)
    assert has_drifted(CHILDREN[kind], body)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["metadata"]["labels"].update(mine="yes"),
        lambda body: body["metadata"]["annotations"].update(mine="yes"),
        lambda body: body["metadata"]["ownerReferences"].append({"uid": "other", "kind": "Thing"}),
    ],
)
def test_foreign_metadata_is_no_drift(change):
    body = live("Service")
    change(body)
    assert not has_drifted(CHILDREN["Service"], body)


def test_added_keys_are_removed_individually_and_keyed_lists_are_replaced():
    body = live("Service")
    assert removal_patch(CHILDREN["Service"], body) is None
    body["spec"]["selector"]["foo"] = "bar"
    body["spec"]["externalIPs"] = ["198.51.100.7"]
    body["spec"]["ports"] = [{"name": "http", "port": 80}]
    wanted = {"selector": {"foo": None}, "externalIPs": None, "ports": CHILDREN["Service"]["spec"]["ports"]}
    assert removal_patch(CHILDREN["Service"], body) == {"spec": wanted}


def test_a_foreign_top_level_field_is_removed():
    rules = {"kind": "ConfigMap", "metadata": {"name": "r"}, "data": {"rules.yaml": "a: 1"}}
    body = {**rules, "data": {**rules["data"], "more": "x"}, "binaryData": {"b": "eA=="}}
    assert has_drifted(rules, body)
    assert removal_patch(rules, body) == {"data": {"more": None}, "binaryData": None}
    assert not has_drifted(rules, copy.deepcopy(rules))


def test_an_undesired_field_is_drift():
    less = copy.deepcopy(CHILDREN["Service"])
    less["metadata"].pop("annotations")
    less["spec"].pop("type")
    assert has_drifted(stamped(less), live("Service"))
