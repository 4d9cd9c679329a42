"""The full look at all services and their objects."""

import asyncio

import pytest
from fakes import REF, FakeApi, custom_resource

from ballast_operator.cluster.api import ApiError
from ballast_operator.control.observing.freshness import Freshness
from ballast_operator.control.resync import Resync
from ballast_operator.control.state import OperatorState


def test_a_kind_that_may_not_be_listed_does_not_end_the_look_at_everything():
    api, enqueued = FakeApi(custom_resource(), {("list", "PodMonitor"): 403}), []
    look = Resync(api, OperatorState(), Freshness(), enqueued.append, lambda: 0.0)
    assert asyncio.run(look.run_once()) == 1
    assert enqueued == [REF]
    api.failures = {("list", "PodMonitor"): 500}
    with pytest.raises(ApiError):
        asyncio.run(look.run_once())
