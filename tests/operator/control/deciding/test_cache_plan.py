"""Which models a place keeps, pulls and removes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ballast_operator.control.deciding.cache_plan import Held, PlacePlan, Wanted, plan_place

A, B, C = (Wanted(name, 40) for name in "abc")


def plan(wanted=(), held=None, named=(), mounted=(), capacity=100):
    return plan_place(capacity, wanted, held or {}, named, mounted)


def test_models_that_fit_are_pulled_in_the_order_of_the_spec():
    assert plan((A, B, C)) == PlacePlan(pull=("a", "b"), no_room=("c",))


def test_a_smaller_model_uses_space_that_is_too_small_for_a_larger_one():
    assert plan((A, Wanted("large", 70), Wanted("small", 10))) == PlacePlan(pull=("a", "small"), no_room=("large",))


def test_an_unused_model_does_not_evict_a_present_one():
    held = {"b": Held(40, "2026-01-02"), "c": Held(40, "2026-01-01")}
    assert plan((A, B, C), held) == PlacePlan(no_room=("a",))


def test_the_least_recently_used_model_is_evicted():
    held = {"b": Held(40, "2026-01-02"), "c": Held(40, "2026-01-01")}
    assert plan((A, B, C), held, named=("a",)) == PlacePlan(remove=("c",), wait=("a",), no_room=("c",))
    held = {"b": Held(40, "2026-01-01"), "c": Held(40, "2026-01-02")}
    assert plan((A, B, C), held, named=("a",)) == PlacePlan(remove=("b",), wait=("a",), no_room=("b",))


def test_a_model_that_is_being_pulled_is_evicted_after_present_ones():
    held = {"b": Held(40), "c": Held(40, "2026-01-01")}
    assert plan((A, B, C), held, named=("a",)).remove == ("c",)


def test_a_model_whose_pull_fails_is_evicted_first():
    held = {"b": Held(40, fails=True), "c": Held(40, "2026-01-01")}
    assert plan((A, B, C), held, named=("a",)).remove == ("b",)
    assert plan((A, B, C), held) == PlacePlan(no_room=("a",)), "the pull is retried while no other model needs the room"


def test_a_pull_waits_until_a_removal_has_ended():
    held = {"b": Held(40, "2026-01-02"), "c": Held(40, "2026-01-01", leaving=True)}
    assert plan((A, B, C), held, named=("a",)) == PlacePlan(wait=("a",), no_room=("c",))
    del held["c"]
    assert plan((A, B, C), held, named=("a",)) == PlacePlan(pull=("a",), no_room=("c",))


def test_a_model_in_use_is_never_removed():
    held = {"b": Held(40), "c": Held(40)}
    assert plan((A, B, C), held, named=("a", "b", "c")) == PlacePlan(no_room=("a",))
    assert plan((A, B, C), held, named=("b", "c"), capacity=40).remove == (), "not even for a smaller capacity"
    assert plan((A, B, C), held, named=("a",), mounted=("b", "c")) == PlacePlan(no_room=("a",))
    assert plan((), held, mounted=("b",)) == PlacePlan(remove=("c",)), (
        "a pod keeps a model that the spec no longer lists"
    )


def test_a_location_that_the_spec_no_longer_selects_is_emptied():
    assert plan((), {"a": Held(40), "b": Held(40, leaving=True)}) == PlacePlan(remove=("a",))


def test_a_smaller_capacity_removes_models_that_no_longer_fit():
    held = {"a": Held(40, "2026-01-01"), "b": Held(40, "2026-01-02")}
    assert plan((A, B), held, capacity=50) == PlacePlan(remove=("a",), no_room=("a",))


SIZES = st.integers(1, 60)
NAMES = st.sampled_from("abcdef")
HELD = st.builds(Held, SIZES, st.sampled_from(("", "1", "2", "3")), fails=st.booleans(), leaving=st.booleans())


@given(
    st.dictionaries(NAMES, SIZES),
    st.dictionaries(NAMES, HELD),
    st.sets(NAMES),
    st.sets(NAMES),
)
def test_the_capacity_holds_and_plans_settle(sizes, held, named, mounted):
    wanted = [Wanted(name, size) for name, size in sizes.items()]
    held = {name: replace(one, num_bytes=sizes.get(name, one.num_bytes)) for name, one in held.items()}
    found = plan(wanted, held, named, mounted)
    assert not set(found.remove) & (mounted | (named & sizes.keys()))
    taken = sum(one.num_bytes for one in held.values())
    assert not found.pull or taken + sum(sizes[name] for name in found.pull) <= 100
    for _ in range(len("abcdef") + 1):  # every pull and removal ends in one pass
        held = {
            **{name: one for name, one in held.items() if name not in found.remove and not one.leaving},
            **{name: Held(sizes[name], "4") for name in found.pull},
        }
        found = plan(wanted, held, named, mounted)
    assert found.remove == ()
    assert found.pull == ()
    assert found.wait == ()
