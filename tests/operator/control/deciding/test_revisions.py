"""The history of a service's specs: one revision per spec, the current one newest, and a bounded number."""

from builders import service

from ballast_operator.control.deciding.revisions import HISTORY_LIMIT, plan_history


def spec(**more):
    return {"model": {"source": {"builtin": {}}}, "resources": {"cpus": 2, "memory": "1Gi", "gpus": 0}, **more}


def revisions(*specs):
    """The history after these specs were current, in this order."""
    live = []
    for each in specs:
        step = plan_history(service(**each), each, live)
        live = [body for body in live if body not in step.delete]
        if step.create is not None:
            live.append(step.create)
    return live


def numbers(live):
    return [body["revision"] for body in live]


def test_a_new_spec_is_a_new_revision_and_the_same_one_is_not():
    live = revisions(spec(), spec(image="a"), spec(image="a"))
    assert numbers(live) == [1, 2]
    assert [body["data"]["spec"].get("image") for body in live] == [None, "a"]


def test_replicas_and_rollout_are_no_part_of_the_history():
    assert numbers(revisions(spec(), spec(replicas=3, rollout={"paused": True}))) == [1]


def test_a_restored_spec_is_the_newest_revision():
    assert numbers(revisions(spec(), spec(image="a"), spec())) == [2, 3]


def test_the_history_is_bounded_and_keeps_the_current_spec():
    live = revisions(*(spec(image=f"i{number}") for number in range(HISTORY_LIMIT + 5)))
    assert numbers(live) == list(range(6, HISTORY_LIMIT + 6))
