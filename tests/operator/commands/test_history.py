"""The way back to an earlier spec."""

import asyncio

import pytest

from ballast_operator.commands.history import undo
from ballast_operator.errors import InputError
from ballast_operator.names import Ref


class Api:
    """A service with one earlier revision. `changes`: whether the API server finds its spec different."""

    def __init__(self, changes):
        self.changes = changes

    async def get(self, kind, namespace, name):
        return {"metadata": {"uid": "u", "generation": 4}, "spec": {"image": "new", "replicas": 3}}

    async def list_all(self, kind, namespace, selector):
        owner = {"ownerReferences": [{"uid": "u"}]}
        return [
            {"metadata": {"name": f"s-{n}", **owner}, "revision": n, "data": {"spec": {"image": image}}}
            for n, image in ((1, "old"), (2, "new"))
        ]

    async def replace(self, kind, body):
        self.sent = body["spec"]
        return {**body, "metadata": {**body["metadata"], "generation": 5 if self.changes else 4}}


def test_an_earlier_spec_is_restored_with_the_current_replicas():
    api = Api(changes=True)
    assert asyncio.run(undo(api, Ref("ns", "s"), None)) == 1
    assert api.sent == {"image": "old", "replicas": 3}


def test_an_undo_that_changes_nothing_is_an_error():
    with pytest.raises(InputError, match="revision 1 is the current spec"):
        asyncio.run(undo(Api(changes=False), Ref("ns", "s"), None))
