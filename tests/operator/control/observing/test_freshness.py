"""Whether the watches deliver events."""

from ballast_operator.control.observing.freshness import GRACE_S, Freshness


def body(uid, version):
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}}


def test_watches_that_deliver_listed_objects_are_fresh():
    freshness = Freshness()
    for version in range(5):
        freshness.watched(body("a", version), gone=False)
        freshness.compare([body("a", version)], version * 60.0)
        assert freshness.stale_s(version * 60.0) == 0


def test_watches_are_stale_until_a_missing_version_is_delivered():
    freshness = Freshness()
    freshness.compare([body("a", 1)], 0.0)
    assert freshness.stale_s(0.0) == 0
    freshness.compare([body("a", 1)], GRACE_S + 1)
    assert freshness.stale_s(GRACE_S + 11) == 10
    freshness.watched(body("a", 1), gone=False)
    freshness.compare([body("a", 1)], GRACE_S + 20)
    assert freshness.stale_s(GRACE_S + 20) == 0


def test_objects_that_change_or_disappear_between_lists_do_not_make_watches_stale():
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


def test_an_object_newer_than_the_list_is_kept():
    freshness = Freshness()
    freshness.watched(body("a", 1), gone=False)
    freshness.compare([], 0.0)
    freshness.compare([body("a", 1)], 60.0)
    freshness.compare([body("a", 1)], 120.0)
    assert freshness.stale_s(120.0) == 0
