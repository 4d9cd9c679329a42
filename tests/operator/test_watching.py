"""Whether watches deliver, which nodes differ, and where a NUMA node has room."""

import itertools

import pytest
from builders import service

from ballast_operator.cluster.kinds import INFERENCE_SERVICE, POD
from ballast_operator.control.freshness import GRACE_S, Freshness
from ballast_operator.control.nodes import fingerprint
from ballast_operator.control.room import why_no_room
from ballast_operator.names import Ref
from ballast_operator.process.login import MAX_DELAY_S, Backoffs
from ballast_operator.process.run import service_of
from ballast_operator.quantity import parse_bytes


def body(uid, version):
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}}


def test_watches_that_bring_what_lists_show_are_fresh():
    freshness = Freshness()
    for version in range(5):
        freshness.watched(body("a", version), gone=False)
        freshness.compare([body("a", version)], version * 60.0)
        assert freshness.stale_s(version * 60.0) == 0


def test_a_version_that_no_watch_ever_brings_makes_them_stale_until_it_comes():
    freshness = Freshness()
    freshness.compare([body("a", 1)], 0.0)
    assert freshness.stale_s(0.0) == 0
    freshness.compare([body("a", 1)], GRACE_S + 1)
    assert freshness.stale_s(GRACE_S + 11) == 10
    freshness.watched(body("a", 1), gone=False)
    freshness.compare([body("a", 1)], GRACE_S + 20)
    assert freshness.stale_s(GRACE_S + 20) == 0


def test_objects_that_change_between_lists_and_objects_that_go_are_not_held_against_the_watches():
    freshness = Freshness()
    for number in range(10):
        freshness.compare([body("a", number)], number * 60.0)
        assert freshness.stale_s(number * 60.0) == 0
    freshness.watched(body("b", 1), gone=False)
    freshness.compare([], 700.0)
    freshness.watched(body("c", 1), gone=False)
    freshness.watched(body("c", 1), gone=True)
    freshness.compare([], 800.0)
    assert freshness.stale_s(800.0) == 0


def test_an_object_that_is_newer_than_the_list_is_not_forgotten():
    freshness = Freshness()
    freshness.watched(body("a", 1), gone=False)
    freshness.compare([], 0.0)
    freshness.compare([body("a", 1)], 60.0)
    freshness.compare([body("a", 1)], 120.0)
    assert freshness.stale_s(120.0) == 0


NODE = {
    "metadata": {"uid": "n", "labels": {"a": "b"}, "resourceVersion": "1"},
    "status": {
        "allocatable": {"cpu": "4"},
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "1"}],
    },
}


def test_a_heartbeat_is_no_change_of_a_node():
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
def test_what_a_node_offers_is_a_change(change):
    assert fingerprint({**NODE, **change}) != fingerprint(NODE)


def topology(name, *zones):
    def zone(number, free):
        resources = [{"name": key, "available": value} for key, value in free.items()]
        return {"name": f"node-{number}", "type": "Node", "resources": resources}

    return {"metadata": {"name": name}, "zones": [zone(number, free) for number, free in enumerate(zones)]}


BIG = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "1"}
SMALL = {"cpu": "64", "memory": "128Gi", "nvidia.com/gpu": "1"}
RESOURCES = {"cpus": 32, "memory": "440Gi", "gpus": 1}
ASKED = service(resources=RESOURCES).spec


def node(name, *, labels=None, allocatable=("cpu", "memory", "nvidia.com/gpu")):
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "status": {"allocatable": dict.fromkeys(allocatable, "1k")},
    }


A_AND_B = [node("a"), node("b")]


def test_room_on_one_numa_node_anywhere_is_enough():
    assert why_no_room(ASKED, [topology("a", SMALL, SMALL), topology("b", SMALL, BIG)], A_AND_B) is None
    assert why_no_room(ASKED, [], A_AND_B) is None


def test_memory_of_two_nodes_is_no_room_for_one_and_the_closest_is_named():
    told = [topology("a", {**SMALL, "cpu": "2"}), topology("b", SMALL, SMALL)]
    assert "b node-0 lacks memory 128Gi of 440Gi" in why_no_room(ASKED, told, A_AND_B)
    both = service(resources=RESOURCES, numa={"policy": "AllNodes"}).spec
    assert why_no_room(both, told, A_AND_B) is None


def test_a_node_that_tells_nothing_may_have_room():
    told = [topology("a", SMALL)]
    assert why_no_room(ASKED, told, A_AND_B) is None
    assert why_no_room(ASKED, [*told, topology("b")], A_AND_B) is None
    assert why_no_room(ASKED, told, [node("a")]) is not None
    assert why_no_room(ASKED, told, []) is None


def test_a_resource_that_no_zone_of_its_node_names_may_be_free():
    unnamed = {name: free for name, free in BIG.items() if name != "nvidia.com/gpu"}
    assert why_no_room(ASKED, [topology("a", unnamed)], [node("a")]) is None
    without = node("a", allocatable=("cpu", "memory"))
    assert "nvidia.com/gpu 0 of 1" in why_no_room(ASKED, [topology("a", unnamed)], [without])
    elsewhere = {**SMALL, "nvidia.com/gpu": "1"}
    assert why_no_room(ASKED, [topology("a", unnamed, elsewhere)], [node("a")]) is not None


def test_only_nodes_that_the_selector_allows_count():
    picky = service(resources=RESOURCES, scheduling={"nodeSelector": {"disk": "fast"}}).spec
    nodes = [node("a", labels={"disk": "fast", "zone": "x"}), node("b", labels={"disk": "slow"})]
    assert why_no_room(picky, [topology("a", SMALL), topology("b", BIG)], nodes) is not None
    assert why_no_room(picky, [topology("a", SMALL)], nodes) is not None
    assert why_no_room(picky, [topology("b", SMALL)], nodes) is None


def test_delays_between_attempts_grow_and_never_end():
    delays = list(itertools.islice(Backoffs(), 50))
    assert delays[0] < 1
    assert all(delay <= MAX_DELAY_S * 1.2 for delay in delays)
    assert min(delays[-10:]) >= MAX_DELAY_S


def test_an_object_rings_for_its_service_even_without_its_label():
    metadata = {"namespace": "ns", "name": "x"}
    assert service_of(INFERENCE_SERVICE, {"metadata": metadata}) == Ref("ns", "x")
    assert service_of(POD, {"metadata": {**metadata, "labels": {"serving.ballast.dev/service": "s"}}}) == Ref("ns", "s")
    owner = {"kind": "InferenceService", "name": "s", "controller": True}
    assert service_of(POD, {"metadata": {**metadata, "ownerReferences": [owner]}}) == Ref("ns", "s")
    assert service_of(POD, {"metadata": metadata}) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("440Gi", 440 * 2**30),
        ("1.5Gi", 3 * 2**29),
        ("1G", 10**9),
        ("100", 100),
        ("1500m", 2),
        (".5Ki", 512),
        ("-1Ki", -1024),
    ],
)
def test_quantities(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "--1", "4e99999999999", "1GiB", "1e3x", "1 Gi"])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_bytes(text)
