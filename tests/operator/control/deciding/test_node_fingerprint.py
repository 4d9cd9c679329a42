"""Which changes of a node count."""

import pytest

from ballast_operator.control.deciding.node_match import fingerprint

NODE = {
    "metadata": {"uid": "n", "labels": {"a": "b"}, "resourceVersion": "1"},
    "status": {
        "allocatable": {"cpu": "4"},
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "1"}],
    },
}


def test_a_heartbeat_does_not_change_a_node():
    status = {**NODE["status"], "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2"}]}
    later = {**NODE, "metadata": {**NODE["metadata"], "resourceVersion": "2"}, "status": status}
    assert fingerprint(later) == fingerprint(NODE)


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"uid": "n", "labels": {"a": "c"}}},
        {"status": {**NODE["status"], "allocatable": {"cpu": "8"}}},
        {"status": {**NODE["status"], "conditions": [{"type": "Ready", "status": "False"}]}},
        {"spec": {"taints": [{"key": "x"}]}},
        {"spec": {"unschedulable": True}},
    ],
)
def test_a_change_of_a_nodes_resources_is_a_change(change):
    assert fingerprint({**NODE, **change}) != fingerprint(NODE)
