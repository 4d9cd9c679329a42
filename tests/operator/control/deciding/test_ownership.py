"""Which service an object belongs to."""

from builders import UID, service

from ballast_operator.control.deciding.ownership import conflict, is_ours
from ballast_operator.names import LABEL_OWNER_UID, LABEL_SERVICE


def owned(owners, labels=None):
    return {"kind": "Service", "metadata": {"name": "s", "ownerReferences": owners, "labels": labels or {}}}


def test_objects_belong_to_the_service_by_owner_or_by_label():
    ours = {**service().owner_reference(), "uid": UID}
    other = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "x", "controller": True}
    left = {LABEL_OWNER_UID: "before", LABEL_SERVICE: "s"}
    assert is_ours(owned([ours]), service())
    assert is_ours(owned(None, {LABEL_OWNER_UID: UID}), service())
    assert is_ours(owned(None, left), service()), "left by a deletion with --cascade=orphan"
    assert not is_ours(owned(None, {**left, LABEL_SERVICE: "t"}), service())
    assert not is_ours(owned([other], {LABEL_OWNER_UID: UID}), service())
    assert not is_ours(owned([{**ours, "uid": "before"}], left), service())
    assert not is_ours(owned([]), service())
    assert "Deployment d of apps" in conflict(owned([other]), service())
    assert "no owner" in conflict(owned([]), service())
    assert "earlier" in conflict(owned([{**ours, "uid": "before"}]), service())
    assert "InferenceService t of serving.ballast.dev" in conflict(
        owned([{**ours, "name": "t", "uid": "x"}]), service()
    )
    theirs = {**ours, "apiVersion": "serving.kserve.io/v1beta1", "uid": "x"}
    assert "InferenceService s of serving.kserve.io" in conflict(owned([theirs]), service())
