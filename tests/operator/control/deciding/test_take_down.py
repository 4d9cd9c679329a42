"""Which pods a rollout stops: within maxUnavailable, and never more than one before the new spec has served."""

from dataclasses import replace

import pytest
from builders import pod, service
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_operator.api.rollout import RolloutPolicy
from ballast_operator.control.deciding.rollout import plan_rollout
from ballast_operator.control.deciding.take_down import SETTLE_S, Observation
from ballast_operator.spec_hash import spec_hash
from devkit.long import times

HASH = spec_hash(service().spec)
SETTLED = Observation(unready_s={f"s-{number}": SETTLE_S for number in range(8)})


def old(number, **status):
    return pod(number, spec_hash="old", **status)


def flapped(number, **status):
    return old(number, ready=False, served=True, **status)


def stopped(replicas, *pods, observation=SETTLED, **policy):
    rollout = plan_rollout(replicas, HASH, pods, observation, RolloutPolicy(**policy))
    return [found.name for found in rollout.stop]


def started(replicas, *pods, **policy):
    return [attempt.replica for attempt in plan_rollout(replicas, HASH, pods, SETTLED, RolloutPolicy(**policy)).start]


BROKEN = pod(2, ready=False)


def test_an_old_pod_that_flaps_stays_while_the_new_spec_has_not_served():
    assert stopped(3, old(0), flapped(1), BROKEN) == []
    assert stopped(3, flapped(0), flapped(1), BROKEN) == []
    assert stopped(3, flapped(0), flapped(1), BROKEN, max_unavailable=3) == []


def test_a_pod_that_flaps_is_the_first_to_be_replaced():
    assert stopped(3, old(0), flapped(1), old(2)) == ["s-1"]


def test_one_of_several_pods_that_are_not_ready_is_replaced():
    assert stopped(3, flapped(0), flapped(1), flapped(2)) == ["s-0"]
    assert stopped(3, flapped(0), flapped(1), pod(2)) == ["s-0"]


def test_a_pod_that_never_served_is_replaced_immediately_and_counts_as_down():
    assert stopped(3, old(0, ready=False), old(1, ready=False), old(2, ready=False)) == ["s-0", "s-1", "s-2"]
    assert stopped(3, old(0), flapped(1), old(2, ready=False)) == ["s-2"]


def test_a_short_state_decides_nothing():
    just_now = Observation(unready_s={"s-1": SETTLE_S - 1})
    assert stopped(2, old(0), flapped(1), observation=just_now) == []
    assert stopped(2, old(0), flapped(1), observation=Observation()) == []
    assert plan_rollout(2, HASH, [old(0), flapped(1)], just_now, RolloutPolicy()).settles_in_s == pytest.approx(1)


def test_after_a_stall_no_serving_pod_is_stopped_until_the_state_is_settled():
    stall = replace(SETTLED, undisturbed_s=SETTLE_S - 5)
    assert stopped(3, old(0), old(1), old(2), observation=stall) == []
    assert plan_rollout(1, HASH, [old(0)], stall, RolloutPolicy()).settles_in_s == pytest.approx(5)
    assert stopped(3, old(0), old(1), old(2), observation=replace(stall, undisturbed_s=SETTLE_S)) == ["s-2"]


def test_more_may_be_unavailable_once_the_new_spec_has_served():
    assert stopped(4, old(0), old(1), old(2), old(3), max_unavailable=2) == ["s-3"]
    assert stopped(4, old(0), old(1), old(2), pod(3), max_unavailable=2) == ["s-2", "s-1"]
    assert stopped(4, old(0), old(1), pod(2, ready=False, served=True), pod(3), max_unavailable=2) == ["s-1"]


def test_a_paused_rollout_replaces_nothing():
    assert stopped(2, old(0), old(1), paused=True) == []
    assert stopped(2, old(0, ready=False), old(1), paused=True) == []
    assert started(2, old(0), old(1), paused=True, max_surge=1) == []


def test_a_surge_pod_starts_first_and_stops_last():
    surge = {"max_unavailable": 0, "max_surge": 1}
    assert started(2, old(0), old(1), **surge) == [2]
    assert stopped(2, old(0), old(1), **surge) == []
    assert stopped(2, old(0), old(1), pod(2, ready=False), **surge) == []
    assert stopped(2, old(0), old(1), pod(2), **surge) == ["s-1"]
    assert stopped(2, old(0), pod(1, ready=False), pod(2), **surge) == []
    assert stopped(2, pod(0, ready=False), pod(1), pod(2), **surge) == []
    assert stopped(2, pod(0), pod(1), pod(2), **surge) == ["s-2"]


def test_scaling_down_keeps_a_serving_pod_until_the_others_serve():
    waiting = [pod(number, ready=False) for number in range(2)]
    assert stopped(2, *waiting, pod(2), pod(3)) == ["s-3"]
    assert stopped(2, pod(0), waiting[1], pod(2), pod(3)) == ["s-2", "s-3"]
    assert stopped(0, pod(0)) == ["s-0"]


def test_the_serving_one_of_two_pods_of_a_replica_stays():
    assert stopped(2, old(0), pod(0, attempt=1, ready=False), pod(1, ready=False)) == ["s-0-r1"]


class World:
    """Pods that start, serve, flap and end, and the replicas that are down because the operator stopped their pod."""

    def __init__(self, replicas, policy):
        self.replicas, self.policy = replicas, policy
        self.revision, self.good, self.now, self.disturbed, self.number = 0, {0: True}, 0.0, -1e9, 0
        self.pods = [pod(n, spec_hash="0", uid=str(n)) for n in range(replicas)]
        self.unready_since = {}
        self.down = set()

    def change_spec(self, good):
        self.revision += 1
        self.good[self.revision] = good

    def stall(self, pick):
        self.disturbed = self.now
        self.pods = [replace(p, ready=False, served=p.has_served) for p in self.pods]

    def flap(self, pick):
        if self.pods:
            index = pick % len(self.pods)
            chosen = self.pods[index]
            ready = not chosen.ready and (chosen.has_served or self.good[int(chosen.spec_hash)])
            self.pods[index] = replace(chosen, ready=ready, served=chosen.has_served)

    def evict(self, pick):
        if self.pods:
            del self.pods[pick % len(self.pods)]

    def load(self, pick):
        """Every pod with a valid spec becomes ready."""
        self.pods = [replace(p, ready=p.ready or self.good[int(p.spec_hash)], served=p.has_served) for p in self.pods]

    def step(self, seconds):
        self.now += seconds
        self.unready_since = {p.uid: self.unready_since.get(p.uid, self.now) for p in self.pods if not p.ready}
        observed = Observation(
            unready_s={uid: self.now - since for uid, since in self.unready_since.items()},
            undisturbed_s=self.now - self.disturbed,
        )
        self.down -= {p.replica for p in self.pods if p.ready}
        rollout = plan_rollout(self.replicas, str(self.revision), self.pods, observed, self.policy)
        self.check(rollout.stop)
        self.pods = [p for p in self.pods if p not in rollout.stop]
        for attempt in rollout.start:
            self.number += 1
            fresh = {"uid": f"new-{self.number}", "spec_hash": str(self.revision), "ready": False}
            self.pods.append(pod(attempt.replica, attempt=attempt.number, **fresh))

    def check(self, stop):
        serving = {p.replica for p in stop if p.has_served and p.replica < self.replicas}
        if not serving:
            return
        current = [p for p in self.pods if p.spec_hash == str(self.revision)]
        extra = sum(p.ready for p in current if p.replica >= self.replicas)
        proved = any(p.has_served for p in current)
        limit = self.policy.max_unavailable if proved else min(1, self.policy.max_unavailable)
        assert len(self.down | serving) - extra <= limit
        assert self.now - self.disturbed >= SETTLE_S
        self.down |= serving


EVENTS = st.one_of(
    st.tuples(st.sampled_from(["flap", "evict", "stall", "load"]), st.integers(0, 7)),
    st.tuples(st.just("change_spec"), st.booleans()),
    st.tuples(st.just("step"), st.sampled_from([0.0, 1.0, 7.0, SETTLE_S, 100.0])),
)
POLICIES = st.tuples(st.integers(0, 3), st.integers(0, 2)).filter(any)


@settings(max_examples=times(100, 400))
@given(replicas=st.integers(1, 5), policy=POLICIES, events=st.lists(EVENTS, max_size=60))
def test_the_operator_never_exceeds_max_unavailable(replicas, policy, events):
    world = World(replicas, RolloutPolicy(max_unavailable=policy[0], max_surge=policy[1]))
    for name, argument in events:
        getattr(world, name)(argument)
        if name != "step":
            world.step(0.0)


@given(replicas=st.integers(1, 5), policy=POLICIES, events=st.lists(EVENTS, max_size=20))
def test_a_valid_spec_finally_reaches_every_replica(replicas, policy, events):
    world = World(replicas, RolloutPolicy(max_unavailable=policy[0], max_surge=policy[1]))
    for name, argument in events:
        getattr(world, name)(argument)
    world.change_spec(True)
    for _ in range(4 * replicas + 8):
        world.step(SETTLE_S)
        world.load(0)
    assert sorted(p.replica for p in world.pods) == list(range(replicas))
    assert {p.spec_hash for p in world.pods} == {str(world.revision)}
