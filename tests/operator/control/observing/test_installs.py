"""Which other installs are alive, as their Leases tell."""

import asyncio

import pytest

from ballast_operator.cluster.api import ApiError
from ballast_operator.control.observing.installs import LOOK_AGAIN_S, PATIENCE_S, Installs
from ballast_operator.names import Ref

OWN, OTHER = Ref("a", "ballast-operator"), Ref("b", "ballast-operator")
BODY = {
    "metadata": {
        "managedFields": [{"manager": str(ref), "operation": "Apply", "subresource": "status"} for ref in (OWN, OTHER)]
    }
}


def lease(created, version="1", holder="pod-0"):
    metadata = {"creationTimestamp": created, "resourceVersion": version}
    return {"metadata": metadata, "spec": {"holderIdentity": holder}}


class Leases:
    """An API server with Leases alone: the object, or the error that reading it ends with."""

    def __init__(self, **found):
        self.found, self.reads = {"a": lease("2026-01-02T00:00:00Z"), **found}, 0

    async def get(self, kind, namespace, name):
        assert (kind.name, name) == ("Lease", "ballast-operator")
        self.reads += 1
        found = self.found.get(namespace)
        if isinstance(found, ApiError):
            raise found
        return found


def looked(api, at_s=(0.0,)):
    """What the last of several looks found, each at its time."""
    now = [0.0]
    installs = Installs(api, OWN, lambda: now[0])
    found = None
    for now[0] in at_s:
        found = asyncio.run(installs.look(BODY))
    return found


def test_the_older_one_acts_while_it_is_alive():
    found = looked(Leases(b=lease("2026-01-01T00:00:00Z")))
    assert (found.acts, found.gone) == (False, ())
    assert found.message is not None


@pytest.mark.parametrize(
    "gone",
    [None, lease("2026-01-01T00:00:00Z", holder=""), ApiError("get", 403, "no")],
    ids=["none", "released", "403"],
)
def test_what_nobody_holds_is_gone(gone):
    found = looked(Leases(b=gone))
    assert (found.acts, found.message, found.gone) == (True, None, (str(OTHER),))


def test_a_lease_that_is_no_longer_renewed_is_nobody_s_by_our_own_clock():
    api = Leases(b=lease("2026-01-01T00:00:00Z"))
    api.found["a"] = lease("2026-01-02T00:00:00Z", version="2")
    assert not looked(api, (0.0, PATIENCE_S)).acts
    now = [0.0]
    installs = Installs(api, OWN, lambda: now[0])
    for now[0] in (0.0, PATIENCE_S + 1):
        api.found["a"] = lease("2026-01-02T00:00:00Z", version=str(now[0]))
        found = asyncio.run(installs.look(BODY))
    assert (found.acts, found.gone) == (True, (str(OTHER),))


def test_a_failure_that_may_pass_is_raised_and_leases_are_not_read_for_every_service():
    with pytest.raises(ApiError):
        looked(Leases(b=ApiError("get", 500, "down")))
    api = Leases(b=lease("2026-01-01T00:00:00Z"))
    looked(api, (0.0, LOOK_AGAIN_S / 2))
    assert api.reads == 2
    looked(api, (0.0, LOOK_AGAIN_S))
    assert api.reads == 2 + 4


def test_alone_nothing_is_read():
    api = Leases()
    found = asyncio.run(Installs(api, OWN, lambda: 0.0).look({"metadata": {}}))
    assert (found.acts, api.reads) == (True, 0)
