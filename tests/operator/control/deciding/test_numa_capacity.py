"""Which NUMA nodes have the capacity for a pod."""

from builders import service

from ballast_operator.control.deciding.numa_capacity import why_no_capacity


def topology(name, *zones):
    def zone(number, free):
        resources = [{"name": key, "available": value} for key, value in free.items()]
        return {"name": f"node-{number}", "type": "Node", "resources": resources}

    return {"metadata": {"name": name}, "zones": [zone(number, free) for number, free in enumerate(zones)]}


BIG = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "1"}


SMALL = {"cpu": "64", "memory": "128Gi", "nvidia.com/gpu": "1"}


RESOURCES = {"cpus": 32, "memory": "440Gi", "gpus": 1}


REQUESTED = service(resources=RESOURCES).spec


def node(name, *, labels=None, allocatable=("cpu", "memory", "nvidia.com/gpu")):
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "status": {"allocatable": dict.fromkeys(allocatable, "1k")},
    }


A_AND_B = [node("a"), node("b")]


def test_capacity_on_one_numa_node_anywhere_is_enough():
    assert why_no_capacity(REQUESTED, [topology("a", SMALL, SMALL), topology("b", SMALL, BIG)], A_AND_B) is None
    assert why_no_capacity(REQUESTED, [], A_AND_B) is None


def test_memory_of_two_nodes_is_not_added_and_the_closest_node_is_reported():
    reported = [topology("a", {**SMALL, "cpu": "2"}), topology("b", SMALL, SMALL)]
    assert "b node-0 lacks memory 128Gi of 440Gi" in why_no_capacity(REQUESTED, reported, A_AND_B)
    both = service(resources=RESOURCES, numa={"policy": "AllNodes"}).spec
    assert why_no_capacity(both, reported, A_AND_B) is None


def test_gpus_are_counted_on_each_numa_node():
    two = service(resources={**RESOURCES, "gpus": 2}).spec
    one_each = topology("a", BIG, BIG)
    message = why_no_capacity(two, [one_each], [node("a")])
    assert "2 nvidia.com/gpu free" in message
    assert "a node-0 lacks nvidia.com/gpu 1 of 2" in message
    assert message.endswith("; a has it on several, which numa.policy AllNodes allows")
    assert why_no_capacity(two, [topology("a", BIG, {**BIG, "nvidia.com/gpu": "2"})], [node("a")]) is None
    four = service(resources={**RESOURCES, "gpus": 4}).spec
    assert "AllNodes" not in why_no_capacity(four, [one_each], [node("a")])


def test_a_node_that_reports_nothing_may_have_capacity():
    reported = [topology("a", SMALL)]
    assert why_no_capacity(REQUESTED, reported, A_AND_B) is None
    assert why_no_capacity(REQUESTED, [*reported, topology("b")], A_AND_B) is None
    assert why_no_capacity(REQUESTED, reported, [node("a")]) is not None
    assert why_no_capacity(REQUESTED, reported, []) is None


def test_a_resource_that_no_zone_reports_may_be_free():
    unnamed = {name: free for name, free in BIG.items() if name != "nvidia.com/gpu"}
    assert why_no_capacity(REQUESTED, [topology("a", unnamed)], [node("a")]) is None
    without = node("a", allocatable=("cpu", "memory"))
    assert "nvidia.com/gpu 0 of 1" in why_no_capacity(REQUESTED, [topology("a", unnamed)], [without])
    elsewhere = {**SMALL, "nvidia.com/gpu": "1"}
    assert why_no_capacity(REQUESTED, [topology("a", unnamed, elsewhere)], [node("a")]) is not None


def test_only_nodes_that_the_selector_allows_count():
    picky = service(resources=RESOURCES, scheduling={"nodeSelector": {"disk": "fast"}}).spec
    nodes = [node("a", labels={"disk": "fast", "zone": "x"}), node("b", labels={"disk": "slow"})]
    assert why_no_capacity(picky, [topology("a", SMALL), topology("b", BIG)], nodes) is not None
    assert why_no_capacity(picky, [topology("a", SMALL)], nodes) is not None
    assert why_no_capacity(picky, [topology("b", SMALL)], nodes) is None
