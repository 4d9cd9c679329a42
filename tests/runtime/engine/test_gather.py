"""How long an idle engine waits for further requests."""

from ballast.engine.admission.gather import GATHER_FRACTION, IDLE_FRACTION, LONGEST_S, gather_s


def test_gathering_waits_a_fraction_of_a_step_during_tokenisation():
    assert gather_s(1.0, waited_s=0.0, quiet_s=0.0, num_arriving=1) == GATHER_FRACTION
    assert gather_s(1.0, waited_s=GATHER_FRACTION, quiet_s=0.0, num_arriving=1) == 0.0


def test_it_waits_briefly_for_requests_that_it_does_not_see_yet():
    assert gather_s(1.0, waited_s=0.0, quiet_s=0.0, num_arriving=0) == IDLE_FRACTION
    assert gather_s(1.0, waited_s=0.05, quiet_s=IDLE_FRACTION, num_arriving=0) == 0.0
    assert gather_s(1.0, waited_s=GATHER_FRACTION, quiet_s=0.0, num_arriving=0) == 0.0


def test_gathering_is_short_and_disabled_without_costs():
    assert gather_s(1000.0, waited_s=0.0, quiet_s=0.0, num_arriving=5) == LONGEST_S
    assert gather_s(0.0, waited_s=0.0, quiet_s=0.0, num_arriving=5) == 0.0
