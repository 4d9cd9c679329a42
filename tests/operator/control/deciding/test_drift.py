"""What counts as drift."""

import copy

import pytest
from builders import service

from ballast_operator.child_options import ChildOptions
from ballast_operator.control.deciding.drift import has_drifted, stamped
from ballast_operator.desired import desired_children

CHILDREN = {
    child["kind"]: stamped(child)
    for child in desired_children(service(endpoint={"networkPolicy": {}}), ChildOptions(), pod_monitors=True)
}


def live(kind):
    """The child as the API server returns it: with defaults and bookkeeping."""
    body = copy.deepcopy(CHILDREN[kind])
    body["metadata"] |= {"uid": "u", "resourceVersion": "5", "creationTimestamp": "2026-01-01T00:00:00Z"}
    body["spec"]["added"] = "by default"
    return body


@pytest.mark.parametrize("kind", CHILDREN)
def test_defaults_and_bookkeeping_are_no_drift(kind):
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
        ("PodDisruptionBudget", lambda body: body["spec"].update(minAvailable=7)),
        ("NetworkPolicy", lambda body: body["spec"]["ingress"].append({})),
        ("NetworkPolicy", lambda body: body["spec"]["ingress"][0]["from"].append({"ipBlock": {"cidr": "0.0.0.0/0"}})),
    ],
)
def test_a_changed_field_of_ours_is_drift(kind, change):
    body = live(kind)
    change(body)
    assert has_drifted(CHILDREN[kind], body)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["metadata"]["labels"].update(mine="yes"),
        lambda body: body["metadata"]["annotations"].update(mine="yes"),
        lambda body: body["spec"]["ports"].append({"name": "more", "port": 99}),
        lambda body: body["metadata"]["ownerReferences"].append({"uid": "other", "kind": "Thing"}),
    ],
)
def test_what_others_add_beside_our_fields_is_theirs(change):
    body = live("Service")
    change(body)
    assert not has_drifted(CHILDREN["Service"], body)


def test_a_field_that_is_no_longer_wanted_is_drift():
    less = copy.deepcopy(CHILDREN["Service"])
    less["metadata"].pop("annotations")
    less["spec"].pop("type")
    assert has_drifted(stamped(less), live("Service"))
