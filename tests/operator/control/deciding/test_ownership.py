"""To whom an object belongs."""

from builders import UID

from ballast_operator.control.deciding.ownership import conflict, is_ours
from ballast_operator.names import LABEL_OWNER_UID


def owned(owners, labels=None):
    return {"kind": "Service", "metadata": {"name": "s", "ownerReferences": owners, "labels": labels or {}}}


def test_ours_is_what_the_service_controls_or_what_lost_its_owner():
    ours = {"kind": "InferenceService", "name": "s", "uid": UID, "controller": True}
    other = {"kind": "Deployment", "name": "d", "uid": "x", "controller": True}
    assert is_ours(owned([ours]), UID)
    assert is_ours(owned(None, {LABEL_OWNER_UID: UID}), UID)
    assert not is_ours(owned([other], {LABEL_OWNER_UID: UID}), UID)
    assert not is_ours(owned([]), UID)
    assert "Deployment d" in conflict(owned([other]))
    assert "no owner" in conflict(owned([]))
    assert "earlier" in conflict(owned([{**ours, "uid": "before"}]))
