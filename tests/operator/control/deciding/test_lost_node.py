"""Which nodes are checked, and when a node counts as lost."""

from builders import pod, refused

from ballast_operator.control.deciding.lost_node import doubtful_nodes, why_lost


def test_only_nodes_of_pods_that_terminate_or_do_not_answer_are_checked():
    pods = [
        pod(0, node="serves"),
        pod(1, node="leaves", terminating=True),
        pod(2, node="silent", ready=False),
        pod(3, node="loads", ready=False, uid="loads"),
        pod(4, node=None, ready=False),
        refused(5, node="refuses"),
    ]
    assert doubtful_nodes(pods, frozenset({"loads"})) == ["leaves", "silent"]


def test_a_node_is_lost_if_it_is_deleted_or_its_kubelet_stops_reporting():
    assert why_lost("n", None) == "node n no longer exists"
    ready = {"type": "Ready", "status": "True"}
    assert why_lost("n", {"status": {"conditions": [{"type": "DiskPressure"}, ready]}}) is None
    unknown = {**ready, "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": "T"}
    assert why_lost("n", {"status": {"conditions": [unknown]}}) == "node n is not ready since T (NodeStatusUnknown)"
    assert why_lost("n", {}) == "node n is not ready since its creation (no report)"
