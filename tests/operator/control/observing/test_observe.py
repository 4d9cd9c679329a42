"""Owners of pods that have a replica's name."""

import pytest
from builders import live_pod, service

from ballast_operator.control.observing.observe import sort_pods
from ballast_operator.names import LABEL_OWNER_UID, LABEL_SERVICE
from ballast_operator.resources.pod import Attempt


def owner(**changes):
    return [{**service().owner_reference(), **changes}]


BEFORE = {"ownerReferences": owner(uid="before")}


ORPHAN = {"ownerReferences": [], "labels": {LABEL_SERVICE: "s", LABEL_OWNER_UID: "before"}}


NOBODYS = {"ownerReferences": [], "labels": {}}


@pytest.mark.parametrize(
    ("body", "whose"),
    [
        (live_pod(), "ours"),
        (live_pod(Attempt(2, 1), without=[LABEL_SERVICE, LABEL_OWNER_UID]), "ours"),
        (live_pod(ownerReferences=[]), "ours"),
        (live_pod(Attempt(0, 1), **BEFORE), "earlier_owner_pods"),
        (live_pod(Attempt(0, 1), without=[LABEL_SERVICE], **BEFORE), "earlier_owner_pods"),
        (live_pod(Attempt(0, 1), **ORPHAN), "ours"),
        (live_pod(Attempt(0, 1), **NOBODYS), "foreign_pods"),
        (live_pod(ownerReferences=owner(kind="StatefulSet", uid="x")), "foreign_pods"),
        (live_pod(name="s-1-0", ownerReferences=owner(name="s-1", uid="x")), None),
        (live_pod(name="web-7d4b", **NOBODYS), None),
    ],
)
def test_a_pod_with_a_replicas_name_is_classified_by_its_owner(body, whose):
    found = dict(zip(("ours", "earlier_owner_pods", "foreign_pods"), sort_pods(service(), [body]), strict=True))
    assert {kind: [pod.name for pod in pods] for kind, pods in found.items() if pods} == (
        {whose: [body["metadata"]["name"]]} if whose else {}
    )
