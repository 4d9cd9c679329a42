"""Rollback to an earlier spec."""

import asyncio

import pytest

from ballast_operator.commands.history import history_lines, undo
from ballast_operator.errors import InputError
from ballast_operator.names import ANNOTATION_SPEC_HASH, Ref


class Api:
    """A service with one earlier revision. `changes`: whether the API server considers its spec different."""

    def __init__(self, changes):
        self.changes = changes

    async def get(self, kind, namespace, name):
        status = {"lastFailure": {"specHash": "hash-1", "reason": "OutOfMemory"}}
        return {"metadata": {"uid": "u", "generation": 4}, "spec": {"image": "new", "replicas": 3}, "status": status}

    async def list_all(self, kind, namespace, selector):
        more = {"ownerReferences": [{"uid": "u"}], "creationTimestamp": "2026-01-01T00:00:00Z"}
        return [
            {
                "metadata": {"name": f"s-{n}", "annotations": {ANNOTATION_SPEC_HASH: f"hash-{n}"}, **more},
                "revision": n,
                "data": {"spec": {"image": image}},
            }
            for n, image in ((1, "old"), (2, "new"))
        ]

    async def replace(self, kind, body):
        self.sent = body["spec"]
        return {**body, "metadata": {**body["metadata"], "generation": 5 if self.changes else 4}}


def test_an_earlier_spec_is_restored_with_the_current_replicas():
    api = Api(changes=True)
    assert asyncio.run(undo(api, Ref("ns", "s"), None)) == 1
    assert api.sent == {"image": "old", "replicas": 3}


def test_the_current_revision_and_the_failed_one_are_marked():
    lines = asyncio.run(history_lines(Api(changes=True), Ref("ns", "s")))
    assert [line.split()[0] for line in lines] == ["REVISION", "1", "2"]
    assert [line.split()[3:] for line in lines[1:]] == [["failed:", "OutOfMemory"], ["current"]]


def test_an_undo_that_changes_nothing_is_an_error():
    with pytest.raises(InputError, match="revision 1 is the current spec"):
        asyncio.run(undo(Api(changes=False), Ref("ns", "s"), None))
