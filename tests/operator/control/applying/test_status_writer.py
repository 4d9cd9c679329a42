"""Only status fields that the installed definition declares are written."""

import asyncio

from builders import NOW
from fakes import FakeApi, custom_resource, writer

from ballast_operator.cluster.kinds import INFERENCE_SERVICE
from ballast_operator.control.reporting.conditions import timestamp
from ballast_operator.control.state import OperatorState

READY = {"type": "Ready", "status": "True", "reason": "PodsReady", "message": "", "lastTransitionTime": timestamp(NOW)}
STATUS = {"url": "http://s", "replicas": 1, "conditions": [READY]}


def declaring(*names):
    """The state of an operator whose installed definition declares these status fields."""
    return OperatorState(
        schemas={"InferenceService": {"properties": {"status": {"properties": {name: {} for name in names}}}}}
    )


def write(api, state):
    async def write_once():
        body = await api.get(INFERENCE_SERVICE, "ns", "s")
        return await writer(api, state).write(INFERENCE_SERVICE, body, STATUS)

    return asyncio.run(write_once())


def test_a_status_is_written_once_with_the_event_of_its_new_condition():
    api, state = FakeApi(custom_resource()), declaring("url", "conditions")
    assert [write(api, state), write(api, state)] == ["2", "1"]
    assert [body["status"] for body in api.written("apply", "InferenceService")] == [
        {"url": "http://s", "conditions": [READY]}
    ]
    assert [event["reason"] for event in api.written("create", "Event")] == ["PodsReady"]


def test_a_crd_without_conditions_gets_the_other_status_fields_and_no_events():
    api, state = FakeApi(custom_resource()), declaring("url")
    assert [write(api, state), write(api, state)] == ["2", "1"]
    asyncio.run(writer(api, state).apply(INFERENCE_SERVICE, api.objects["InferenceService", "s"], STATUS))
    assert [body["status"] for body in api.written("apply", "InferenceService")] == [{"url": "http://s"}] * 2
    assert api.written("create", "Event") == []
