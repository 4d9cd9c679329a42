"""Predictions for future requests from the latest ones."""

import pytest

from ballast.engine.admission.load_history import PromptShare, ReplyLengths


def test_the_computed_fraction_of_prompts_follows_recent_steps():
    share = PromptShare()
    assert share.value == 1.0
    for _ in range(200):
        share.note(100, 90)
    assert share.value == pytest.approx(0.1)
    for _ in range(300):
        share.note(100, 0)
    assert share.value > 0.95


def test_expected_reply_lengths_follow_replies_that_stopped():
    lengths = ReplyLengths()
    assert lengths.mean_tokens is None
    lengths.note(500, stopped=False)
    assert lengths.mean_tokens is None, "while most replies end at max_tokens, max_tokens predicts their length"
    for _ in range(10):
        lengths.note(30, stopped=True)
    assert lengths.mean_tokens == pytest.approx(30)
