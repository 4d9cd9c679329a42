"""The names of pods."""

import pytest

from ballast_operator.resources.pod import Attempt, parse_pod_name, pod_name


@pytest.mark.parametrize("attempt", [Attempt(0), Attempt(12), Attempt(0, 1), Attempt(3, 20)])
@pytest.mark.parametrize("name", ["s", "s-1", "s-0-r1"])
def test_the_name_of_a_pod_says_which_replica_and_attempt_it_is(name, attempt):
    assert parse_pod_name(pod_name(name, attempt)) == (name, attempt)


@pytest.mark.parametrize("name", ["s", "s-x", "s-01", "s-0-r0", "s-0-r1-x", "-0"])
def test_other_names_are_none_of_a_pod(name):
    assert parse_pod_name(name) is None
