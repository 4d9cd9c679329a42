"""The resync of all services and their objects."""

import asyncio

import pytest
from fakes import REF, FakeApi, custom_resource

from ballast_operator.cluster.api import ApiError
from ballast_operator.cluster.kinds import INFERENCE_SERVICE
from ballast_operator.control.observing.freshness import Freshness
from ballast_operator.control.resync import Resync
from ballast_operator.control.state import OperatorState
from ballast_operator.definitions import DEFINITIONS


def test_a_kind_without_list_permission_does_not_end_the_resync():
    api, enqueued = FakeApi(custom_resource(), {("list", "PodMonitor"): 403}), []
    look = Resync(api, OperatorState(), Freshness(), enqueued.append, lambda: 0.0)
    assert asyncio.run(look.run_once()) == 1
    assert enqueued == [REF]
    api.failures = {("list", "PodMonitor"): 500}
    with pytest.raises(ApiError):
        asyncio.run(look.run_once())


def test_a_replaced_definition_is_noticed_and_services_are_reconciled_again(caplog):
    api, enqueued = FakeApi(custom_resource()), []
    state = OperatorState()
    look = Resync(api, state, Freshness(), enqueued.append, lambda: 0.0)
    earlier = {"InferenceService": {"properties": {"status": {"properties": {"url": {"type": "string"}}}}}}
    api.schemas_by_kind = earlier
    asyncio.run(look.run_once())
    assert "the definition is of an earlier release; upgrade the chart's release" in caplog.text
    assert "status.conditions" in caplog.records[-1].lacks
    assert state.declared_status(INFERENCE_SERVICE, {"url": "http://s", "replicas": 1}) == {"url": "http://s"}
    state.of(REF).versions = {api.objects["InferenceService", "s"]["metadata"]["uid"]: "1"}
    caplog.clear()
    enqueued.clear()
    asyncio.run(look.run_once())
    assert (enqueued, caplog.text) == ([], "")
    definition = DEFINITIONS[INFERENCE_SERVICE.plural]()
    api.schemas_by_kind = {"InferenceService": definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]}
    asyncio.run(look.run_once())
    assert (enqueued, caplog.text) == ([REF], "")
    assert state.declared_status(INFERENCE_SERVICE, {"replicas": 1}) == {"replicas": 1}


@pytest.mark.parametrize("status", [403, 404])
def test_unreadable_schemas_do_not_end_the_resync(status, caplog):
    api, enqueued = FakeApi(custom_resource(), {("discover", "schemas"): status}), []
    state = OperatorState()
    look = Resync(api, state, Freshness(), enqueued.append, lambda: 0.0)
    assert asyncio.run(look.run_once()) == 1
    assert enqueued == [REF]
    assert "the schemas of definitions cannot be read" in caplog.text
    assert state.declared_status(INFERENCE_SERVICE, {"url": "http://s"}) == {"url": "http://s"}


def test_unreadable_schemas_keep_the_last_ones_in_use():
    api, state = FakeApi(custom_resource()), OperatorState()
    look = Resync(api, state, Freshness(), lambda _: None, lambda: 0.0)
    api.schemas_by_kind = {"InferenceService": {"properties": {"status": {"properties": {"url": {}}}}}}
    asyncio.run(look.run_once())
    api.schemas_by_kind, api.failures = {}, {("discover", "schemas"): 403}
    asyncio.run(look.run_once())
    assert state.declared_status(INFERENCE_SERVICE, {"url": "http://s", "replicas": 1}) == {"url": "http://s"}


@pytest.mark.parametrize("status", [0, 429, 500])
def test_an_api_server_failure_for_schemas_ends_the_resync(status):
    api = FakeApi(custom_resource(), {("discover", "schemas"): status})
    with pytest.raises(ApiError) as raised:
        asyncio.run(Resync(api, OperatorState(), Freshness(), lambda _: None, lambda: 0.0).run_once())
    assert raised.value.status == status
