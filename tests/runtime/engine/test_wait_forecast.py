"""How long a request would wait."""

import pytest

from ballast.engine.wait_forecast import Batch, PromptShare, predicted_wait_s
from ballast.engine.waiting_line import Ahead


def predicted(batch, ahead=Ahead(0, 0), run_s=8.0, prompt_share=1.0, token_s=0.0):  # noqa: B008  frozen
    return predicted_wait_s(batch, ahead, run_s, prompt_share, lambda tokens, decodes: tokens * token_s * (1 + decodes))


def test_a_free_slot_is_not_waited_for():
    assert predicted(Batch(num_running=3, num_slots=4)) == 0
    assert predicted(Batch(num_running=1, num_slots=4), Ahead(2, 0)) == 0


def test_slots_become_free_as_fast_as_requests_end():
    assert predicted(Batch(num_running=4, num_slots=4)) == 2
    assert predicted(Batch(num_running=4, num_slots=4), Ahead(3, 0)) == 8
    assert predicted(Batch(num_running=1, num_slots=4), Ahead(3, 0)) == 2


def test_requests_that_were_preempted_come_first():
    assert predicted(Batch(num_running=3, num_slots=4, num_preempted=2)) == 4


def test_prompts_before_it_are_waited_for_less_what_the_prefix_cache_has():
    batch = Batch(num_running=1, num_slots=4, prompt_tokens=100, num_decode=1)
    assert predicted(batch, Ahead(1, 400), token_s=0.01) == pytest.approx(500 * 0.01 * 2)
    assert predicted(batch, Ahead(1, 400), token_s=0.01, prompt_share=0.25) == pytest.approx(200 * 0.01 * 2)
    assert predicted(Batch(num_running=4, num_slots=4, prompt_tokens=1), token_s=0.01) == 2, "slots take longer"


def test_the_share_of_prompts_that_is_computed_is_that_of_the_latest():
    share = PromptShare()
    assert share.value == 1
    share.note(100, 75)
    assert share.value == 0.25
    for _ in range(500):
        share.note(100, 0)
    assert share.value > 0.99
