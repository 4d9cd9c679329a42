"""Detection of other live installs from their Leases."""

import asyncio

import pytest

from ballast_operator.cluster.api import ApiError
from ballast_operator.control.observing.installs import HANDOVER_S, LOOK_AGAIN_S, STALE_AFTER_S, Installs
from ballast_operator.names import ANNOTATION_NAMESPACES, LABEL_INSTALL, Ref

OWN, OTHER = Ref("a", "ballast-operator"), Ref("b", "ballast-operator")
BODY = {
    "metadata": {
        "namespace": "team",
        "managedFields": [{"manager": str(ref), "operation": "Apply", "subresource": "status"} for ref in (OWN, OTHER)],
    }
}
NEW = {"metadata": {"namespace": "team"}}
"""A service without a status."""


def lease(created, version="1", holder="pod-0"):
    metadata = {"name": "ballast-operator", "creationTimestamp": created, "resourceVersion": version}
    return {"metadata": metadata, "spec": {"holderIdentity": holder}}


def marked(lease, namespaces=""):
    """The Lease with the label by which other installs find it, as newer versions write it."""
    marks = {"labels": {LABEL_INSTALL: "true"}, "annotations": {ANNOTATION_NAMESPACES: namespaces}}
    return {**lease, "metadata": {**lease["metadata"], **marks}}


class Leases:
    """An API server with only Leases: an object, or the error of reading it."""

    def __init__(self, *, may_list=True, **found):
        self.found, self.reads, self.lists = {"a": lease("2026-01-02T00:00:00Z"), **found}, 0, 0
        self.may_list = may_list

    async def get(self, kind, namespace, name):
        assert (kind.name, name) == ("Lease", "ballast-operator")
        self.reads += 1
        found = self.found.get(namespace)
        if isinstance(found, ApiError):
            raise found
        return found

    async def list_all(self, kind, namespace=None, selector=""):
        assert (kind.name, namespace, selector) == ("Lease", None, f"{LABEL_INSTALL}=true")
        self.lists += 1
        if not self.may_list:
            raise ApiError("list", 403, "no")
        there = {name: found for name, found in self.found.items() if isinstance(found, dict)}
        return [
            {**found, "metadata": {**found["metadata"], "namespace": name}}
            for name, found in there.items()
            if LABEL_INSTALL in found["metadata"].get("labels", {})
        ]


def looked(api, at_s=(0.0,), body=BODY):
    """The result of the last of several checks, each at its time."""
    now = [0.0]
    installs = Installs(api, OWN, lambda: now[0])
    found = None
    for now[0] in at_s:
        found = asyncio.run(installs.look(body))
    return found


def test_the_older_install_acts_while_it_is_alive():
    found = looked(Leases(b=lease("2026-01-01T00:00:00Z")))
    assert (found.acts, found.gone) == (False, ())
    assert found.message is not None


@pytest.mark.parametrize(
    "gone",
    [None, lease("2026-01-01T00:00:00Z", holder=""), ApiError("get", 403, "no")],
    ids=["none", "released", "403"],
)
def test_a_lease_without_a_holder_does_not_count(gone):
    found = looked(Leases(b=gone))
    assert (found.acts, found.message, found.gone) == (True, None, (str(OTHER),))


def test_a_lease_that_is_not_renewed_expires_by_our_own_clock():
    api = Leases(b=lease("2026-01-01T00:00:00Z"))
    api.found["a"] = lease("2026-01-02T00:00:00Z", version="2")
    assert not looked(api, (0.0, STALE_AFTER_S)).acts
    now = [0.0]
    installs = Installs(api, OWN, lambda: now[0])
    for now[0] in (0.0, STALE_AFTER_S + 1):
        api.found["a"] = lease("2026-01-02T00:00:00Z", version=str(now[0]))
        found = asyncio.run(installs.look(BODY))
    assert (found.acts, found.gone) == (True, (str(OTHER),))


def test_a_temporary_failure_is_raised_and_leases_are_not_read_per_service():
    with pytest.raises(ApiError):
        looked(Leases(b=ApiError("get", 500, "down")))
    api = Leases(b=lease("2026-01-01T00:00:00Z"))
    looked(api, (0.0, LOOK_AGAIN_S / 2))
    assert api.reads == 2
    looked(api, (0.0, LOOK_AGAIN_S))
    assert api.reads == 2 + 4


def test_leases_are_listed_at_an_interval_and_not_per_service():
    api = Leases(a=marked(lease("2026-01-02T00:00:00Z")))
    found = looked(api, (0.0, LOOK_AGAIN_S / 2), NEW)
    assert (found.acts, found.message, api.reads, api.lists) == (True, None, 0, 1)


def test_an_older_install_is_known_before_it_writes_anything():
    found = looked(Leases(b=marked(lease("2026-01-01T00:00:00Z"))), body=NEW)
    assert (found.acts, found.gone) == (False, ())
    assert "only b/ballast-operator, the oldest, acts" in str(found.message)


@pytest.mark.parametrize(("namespaces", "acts"), [("", False), ("team", False), ("x,team", False), ("x", True)])
def test_an_install_for_other_namespaces_is_no_conflict(namespaces, acts):
    found = looked(Leases(b=marked(lease("2026-01-01T00:00:00Z"), namespaces)), body=NEW)
    assert found.acts == acts


def test_a_labelled_lease_that_is_not_renewed_has_no_holder():
    api = Leases(b=marked(lease("2026-01-01T00:00:00Z")))
    now = [0.0]
    installs = Installs(api, OWN, lambda: now[0])
    acts = []
    for now[0] in (0.0, STALE_AFTER_S, STALE_AFTER_S + LOOK_AGAIN_S + 1):
        api.found["a"] = lease("2026-01-02T00:00:00Z", version=str(now[0]))
        acts.append(asyncio.run(installs.look(NEW)).acts)
    assert acts == [False, False, True]


def test_other_installs_are_known_by_their_writes_if_leases_may_not_be_listed():
    api = Leases(may_list=False, b=marked(lease("2026-01-01T00:00:00Z")))
    assert looked(api, body=NEW).acts
    assert not looked(api, (0.0, LOOK_AGAIN_S)).acts
    assert api.lists == 2  # once for each process


def test_a_returning_older_install_waits_until_the_newer_one_notices_it():
    api = Leases(a=lease("2026-01-01T00:00:00Z"), b=marked(lease("2026-01-02T00:00:00Z")))
    now = [100.0]
    installs = Installs(api, OWN, lambda: now[0])
    installs.begin()
    acts = []
    for now[0] in (100.0, 100.0 + HANDOVER_S / 2, 100.0 + HANDOVER_S):
        acts.append(asyncio.run(installs.look(NEW)).acts)
    assert acts == [False, False, True]


def test_an_install_without_its_own_lease_leaves_services_to_the_others():
    api = Leases(a=None, b=marked(lease("2026-01-02T00:00:00Z")))
    assert not looked(api, body=NEW).acts
