"""Whose the pods are that have a replica's name."""

import pytest
from builders import service

from ballast_operator.control.observe import sort_pods
from ballast_operator.control.pods import Pod
from ballast_operator.names import LABEL_OWNER_UID, LABEL_REPLICA, LABEL_SERVICE
from ballast_operator.options import ChildOptions
from ballast_operator.resources.pod import Attempt, build_pod, parse_pod_name, pod_name

FIRST = Attempt(0)


def live(attempt=FIRST, name=None, without=(), **metadata):
    body = build_pod(service(), ChildOptions(), attempt)
    body["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", **metadata}
    body["metadata"]["name"] = name or body["metadata"]["name"]
    for label in without:
        del body["metadata"]["labels"][label]
    return body


def owner(**changes):
    return [{**service().owner_reference(), **changes}]


BEFORE = {"ownerReferences": owner(uid="before")}
ORPHAN = {"ownerReferences": [], "labels": {LABEL_SERVICE: "s", LABEL_OWNER_UID: "before"}}
NOBODYS = {"ownerReferences": [], "labels": {}}


@pytest.mark.parametrize(
    ("body", "whose"),
    [
        (live(), "ours"),
        (live(Attempt(2, 1), without=[LABEL_SERVICE, LABEL_OWNER_UID]), "ours"),
        (live(ownerReferences=[]), "ours"),
        (live(Attempt(0, 1), **BEFORE), "predecessors"),
        (live(Attempt(0, 1), without=[LABEL_SERVICE], **BEFORE), "predecessors"),
        (live(Attempt(0, 1), **ORPHAN), "predecessors"),
        (live(Attempt(0, 1), **NOBODYS), "strangers"),
        (live(ownerReferences=owner(kind="StatefulSet", uid="x")), "strangers"),
        (live(name="s-1-0", ownerReferences=owner(name="s-1", uid="x")), None),
        (live(name="web-7d4b", **NOBODYS), None),
    ],
)
def test_a_pod_under_a_replicas_name_is_ours_or_our_predecessors_or_a_strangers(body, whose):
    found = dict(zip(("ours", "predecessors", "strangers"), sort_pods(service(), [body]), strict=True))
    assert {kind: [pod.name for pod in pods] for kind, pods in found.items() if pods} == (
        {whose: [body["metadata"]["name"]]} if whose else {}
    )


@pytest.mark.parametrize("attempt", [Attempt(0), Attempt(12), Attempt(0, 1), Attempt(3, 20)])
@pytest.mark.parametrize("name", ["s", "s-1", "s-0-r1"])
def test_the_name_of_a_pod_says_which_replica_and_attempt_it_is(name, attempt):
    assert parse_pod_name(pod_name(name, attempt)) == (name, attempt)


@pytest.mark.parametrize("name", ["s", "s-x", "s-01", "s-0-r0", "s-0-r1-x", "-0"])
def test_other_names_are_none_of_a_pod(name):
    assert parse_pod_name(name) is None


def test_a_replica_label_that_is_changed_or_lost_makes_no_other_replica_of_a_pod():
    assert Pod.from_api(live(Attempt(1, 2), without=[LABEL_REPLICA])).replica == 1
    changed = live(Attempt(1, 2))
    changed["metadata"]["labels"][LABEL_REPLICA] = "5"
    changed["metadata"]["annotations"] = {}
    assert (Pod.from_api(changed).replica, Pod.from_api(changed).attempt) == (1, 2)
