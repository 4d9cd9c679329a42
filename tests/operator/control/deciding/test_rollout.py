"""Start and stop of pods: at most one per replica, drained one by one, an increasing delay after rejections."""

import pytest
from builders import NOW, pod, refused, service
from hypothesis import given
from hypothesis import strategies as st

from ballast_operator.api.rollout import RolloutPolicy
from ballast_operator.control.deciding.rollout import MAX_FAILED_KEPT, plan_rollout
from ballast_operator.control.deciding.take_down import Observation
from ballast_operator.resources.pod import Attempt, pod_name
from ballast_operator.spec_hash import spec_hash

HASH = spec_hash(service().spec)


def ages_s(pods):
    return {pod.uid: (NOW - pod.created).total_seconds() for pod in pods}


def plan(replicas, *pods, nodes_changed_s=None):
    observed = Observation(ages_s(pods), nodes_changed_s=nodes_changed_s)
    return plan_rollout(replicas, HASH, pods, observed, RolloutPolicy())


def names(pods):
    return [pod.name for pod in pods]


def test_missing_replicas_are_started_immediately():
    assert plan(3, pod(1)).start == (Attempt(0), Attempt(2))


def test_a_pod_that_matches_its_spec_is_not_changed():
    rollout = plan(1, pod(0))
    assert (rollout.start, rollout.stop, rollout.forget, rollout.retry_in_s) == ((), (), (), None)


def test_the_next_pod_starts_only_after_the_previous_one_has_ended():
    assert plan(1, pod(0, spec_hash="old", terminating=True)).start == ()
    assert plan(1).start == (Attempt(0),)


@pytest.mark.parametrize("whose", ["earlier_owner_pods", "foreign_pods"])
def test_a_foreign_pod_with_a_replicas_name_blocks_that_replica(whose):
    there = (pod(0, attempt=1, terminating=True), refused(1), pod(5))
    found = plan_rollout(2, HASH, [], Observation(), RolloutPolicy(), **{whose: there})
    assert (found.start, names(getattr(found, whose))) == ((Attempt(1),), ["s-0-r1"])
    beside = plan_rollout(1, HASH, [pod(0)], Observation(), RolloutPolicy(), **{whose: there})
    assert (beside.start, beside.stop, getattr(beside, whose)) == ((), (), ())


def test_surplus_replicas_are_stopped():
    assert names(plan(1, pod(0), pod(1), pod(2)).stop) == ["s-1", "s-2"]
    assert names(plan(0, pod(0)).stop) == ["s-0"]


def test_a_new_spec_replaces_serving_replicas_one_by_one():
    old = [pod(number, spec_hash="old") for number in range(3)]
    assert names(plan(3, *old).stop) == ["s-2"]
    assert plan(3, old[0], old[1], pod(2, ready=False)).stop == ()
    assert names(plan(3, old[0], old[1], pod(2)).stop) == ["s-1"]
    assert plan(3, old[0], old[1], pod(2, spec_hash="old", terminating=True)).stop == ()


def test_old_pods_that_do_not_serve_are_all_stopped_first():
    old = [pod(number, spec_hash="old", ready=number == 0) for number in range(3)]
    assert names(plan(3, *old).stop) == ["s-1", "s-2"]


def test_one_of_two_running_pods_of_a_replica_is_stopped():
    assert names(plan(1, pod(0, age_s=50), pod(0, attempt=1, age_s=10)).stop) == ["s-0-r1"]
    assert names(plan(1, pod(0, age_s=50, spec_hash="old"), pod(0, attempt=1, age_s=10)).stop) == ["s-0"]


@pytest.mark.parametrize(("failures", "delay_s"), [(0, 10), (1, 20), (2, 40), (4, 160), (5, 300), (50, 300)])
def test_each_rejection_lengthens_the_delay_of_the_next_attempt(failures, delay_s):
    waiting = plan(1, refused(0, attempt=7, failures=failures, age_s=delay_s - 1))
    assert (waiting.start, waiting.retry_in_s) == ((), pytest.approx(1))
    due = plan(1, refused(0, attempt=7, failures=failures, age_s=delay_s))
    assert due.start == (Attempt(0, 8, failures + 1),)
    assert due.retry_in_s is None


def test_after_a_rejection_only_one_replica_retries():
    pods = [refused(number, age_s=60) for number in range(3)]
    assert plan(3, *pods).start == (Attempt(0, 1, 1),)
    trying = {"attempt": 1, "failures": 1, "phase": "Pending", "ready": False, "running": False}
    assert plan(3, *pods, pod(0, age_s=59, **trying)).start == ()
    assert plan(3, *pods, pod(0, age_s=61, **trying)).start == (Attempt(1, 1, 1),)
    assert plan(3, *pods, pod(0, attempt=1, failures=1)).start == (Attempt(1, 1, 1),)


@pytest.mark.parametrize("reason", ["Evicted", "Terminated", "NodeLost"])
def test_an_evicted_replica_blocks_no_other(reason):
    evicted = refused(0, age_s=500, failures=6, reason=reason)
    pending = pod(0, attempt=1, failures=7, age_s=1, phase="Pending", ready=False, running=False)
    assert plan(3, evicted, pending).start == (Attempt(1), Attempt(2))
    again = refused(0, age_s=1, failures=6, reason=reason)
    assert plan(2, again).start == (Attempt(1),)
    assert plan(2, again).retry_in_s == pytest.approx(299)


def test_each_evicted_replica_remembers_how_long_it_waits():
    gone = [
        refused(number, attempt=a, failures=a, age_s=9 - a, reason="Evicted") for number in range(5) for a in (0, 1)
    ]
    rollout = plan(5, *gone)
    assert (rollout.start, set(names(rollout.forget))) == ((), {f"s-{number}" for number in range(5)})


def test_a_changed_node_or_spec_ends_a_long_wait():
    last = refused(0, attempt=5, failures=5, age_s=30)
    assert plan(1, last).start == ()
    assert plan(1, last, nodes_changed_s=5).start == (Attempt(0, 6, 6),)
    assert plan(1, last, nodes_changed_s=60).start == ()
    other = plan(1, refused(0, attempt=5, failures=5, age_s=1, spec_hash="old"))
    assert other.start == (Attempt(0, 6, 0),)
    assert names(other.forget) == ["s-0-r5"]


def test_the_newest_rejected_pods_are_kept_until_the_replica_serves():
    pods = [refused(0, attempt=number, failures=number, age_s=500 - number) for number in range(6)]
    assert names(plan(1, *pods).forget) == ["s-0-r2", "s-0-r1", "s-0"]
    serving = pod(0, attempt=6, failures=6)
    assert set(names(plan(1, *pods, serving).forget)) == set(names(pods))


def test_the_age_of_a_pod_does_not_depend_on_its_timestamp():
    last = refused(0, attempt=3, failures=3, age_s=3600)
    assert plan_rollout(1, HASH, [last], Observation(), RolloutPolicy()).retry_in_s == pytest.approx(80)
    future = refused(0, attempt=3, failures=3, age_s=-3600)
    assert plan_rollout(1, HASH, [future], Observation({future.uid: 80.0}), RolloutPolicy()).start == (
        Attempt(0, 4, 4),
    )


@st.composite
def some_pods(draw):
    kinds = st.sampled_from(["ready", "starting", "old", "leaving", "refused", "refused-old"])
    made = []
    for replica in range(draw(st.integers(0, 4))):
        for attempt, kind in enumerate(draw(st.lists(kinds, max_size=4))):
            age_s = draw(st.floats(0, 1000))
            hash_ = "old" if "old" in kind else HASH
            if kind.startswith("refused"):
                made.append(refused(replica, attempt=attempt, failures=attempt, age_s=age_s, spec_hash=hash_))
            else:
                state = {"ready": kind in ("ready", "old"), "terminating": kind == "leaving"}
                made.append(pod(replica, attempt=attempt, age_s=age_s, spec_hash=hash_, **state))
    return made


@given(replicas=st.integers(0, 4), pods=some_pods())
def test_no_replica_ever_gets_a_second_pod_and_evidence_is_bounded(replicas, pods):
    rollout = plan(replicas, *pods)
    alive = {pod.replica for pod in pods if not pod.over}
    started = [attempt.replica for attempt in rollout.start]
    assert not alive & set(started)
    assert len(started) == len(set(started))
    assert not {pod_name("s", attempt) for attempt in rollout.start} & {pod.name for pod in pods}
    failed = [pod for pod in pods if pod.over]
    assert len(failed) - len(rollout.forget) <= MAX_FAILED_KEPT
    serving = [pod for pod in rollout.stop if pod.ready and pod.replica < replicas and pod.spec_hash != HASH]
    doubled = len([pod for pod in pods if not pod.over and not pod.terminating]) != len(
        {pod.replica for pod in pods if not pod.over and not pod.terminating}
    )
    assert len(serving) <= 1 or doubled


@given(replicas=st.integers(0, 3), refuses=st.lists(st.booleans(), max_size=12))
def test_steps_lead_to_the_spec(replicas, refuses):
    """A minimal cluster: started pods run or are rejected, stopped pods disappear."""
    pods, passed_s, answers = [pod(number, spec_hash="old") for number in range(2)], 0.0, iter(refuses)
    for _ in range(200):
        observed = Observation({uid: age + passed_s for uid, age in ages_s(pods).items()})
        rollout = plan_rollout(replicas, HASH, pods, observed, RolloutPolicy())
        gone = {id(pod) for pod in (*rollout.stop, *rollout.forget)}
        pods = [pod for pod in pods if id(pod) not in gone]
        for attempt in rollout.start:
            make = refused if next(answers, False) else pod
            pods.append(make(attempt.replica, attempt=attempt.number, failures=attempt.failures, age_s=-passed_s))
        assert len([pod for pod in pods if pod.over]) <= MAX_FAILED_KEPT + replicas
        passed_s += rollout.retry_in_s or 1
    assert sorted(pod.replica for pod in pods) == list(range(replicas))
    assert all(pod.spec_hash == HASH and not pod.over for pod in pods)
