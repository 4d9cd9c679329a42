"""Expert choice against the rules written plainly in NumPy (DeepSeek-V2 and V3 as in transformers)."""

import numpy as np
import pytest

from ballast._core import kernels

V2_LITE = {"gating": "softmax", "num_groups": 1, "num_groups_used": 1, "group_score_top2": False, "normalize": False}
V2 = {"gating": "softmax", "num_groups": 8, "num_groups_used": 3, "group_score_top2": False, "normalize": False}
V3 = {"gating": "sigmoid", "num_groups": 8, "num_groups_used": 4, "group_score_top2": True, "normalize": True}
SOFTMAX_NORM = {**V2_LITE, "normalize": True}
KIMI = {"gating": "sigmoid", "num_groups": 1, "num_groups_used": 1, "group_score_top2": True, "normalize": True}

V4 = {**KIMI, "gating": "sqrtsoftplus", "group_score_top2": False}


def route(logits, bias, num_chosen, scale=1.0, **rule):
    ids = np.full((logits.shape[0], num_chosen), -1, np.int32)
    weights = np.full((logits.shape[0], num_chosen), np.nan, np.float32)
    kernels.route(logits, bias, scale=scale, ids=ids, weights=weights, **rule)
    return ids, weights


def reference(logits, bias, num_chosen, scale, *, gating, num_groups, num_groups_used, group_score_top2, normalize):
    wide = logits.astype(np.float64)
    if gating == "sigmoid":
        scores = 1 / (1 + np.exp(-wide))
    elif gating == "sqrtsoftplus":
        scores = np.sqrt(np.logaddexp(0, wide))
    else:
        scores = np.exp(wide - wide.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    biased = scores + (0 if bias is None else bias)
    by_group = np.sort(biased.reshape(logits.shape[0], num_groups, logits.shape[1] // num_groups), axis=2)
    group_scores = by_group[:, :, -2:].sum(axis=2) if group_score_top2 else by_group[:, :, -1]
    used = np.argsort(-group_scores, axis=1, kind="stable")[:, :num_groups_used]
    allowed = np.zeros((logits.shape[0], num_groups), bool)
    np.put_along_axis(allowed, used, True, axis=1)
    biased = np.where(np.repeat(allowed, logits.shape[1] // num_groups, axis=1), biased, -np.inf)
    ids = np.argsort(-biased, axis=1, kind="stable")[:, :num_chosen]
    weights = np.take_along_axis(scores, ids, axis=1)
    if normalize:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return ids, weights * scale


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 15, 16, 17, 64, 65])
@pytest.mark.parametrize(
    ("rule", "num_experts", "num_chosen", "scale", "biased"),
    [
        (V2_LITE, 64, 6, 1.0, False),
        (V2, 160, 6, 16.0, False),
        (SOFTMAX_NORM, 128, 8, 1.0, False),
        (V3, 256, 8, 2.5, True),
        (KIMI, 384, 8, 2.827, True),
        (KIMI, 5, 5, 1.0, False),
        (V4, 256, 6, 1.5, True),
    ],
    ids=["v2-lite", "v2", "softmax, normalised", "v3", "kimi-k2", "all experts", "v4"],
)
def test_choice_and_weights_follow_the_models_rule(rng, num_tokens, rule, num_experts, num_chosen, scale, biased):
    logits = 2 * rng.standard_normal((num_tokens, num_experts), dtype=np.float32)
    bias = rng.uniform(-0.5, 0.5, num_experts).astype(np.float32) if biased else None

    ids, weights = route(logits, bias, num_chosen, scale, **rule)

    want_ids, want_weights = reference(logits, bias, num_chosen, scale, **rule)
    np.testing.assert_array_equal(ids, want_ids)
    # Float32: a softmax over 160 terms, an exponential and a division, each to about 1e-6.
    np.testing.assert_allclose(weights, want_weights, rtol=1e-5, atol=0)


def test_ties_go_to_the_lower_index():
    ids, weights = route(np.zeros((1, 6), np.float32), None, 4, **KIMI)
    np.testing.assert_array_equal(ids, [[0, 1, 2, 3]])
    np.testing.assert_array_equal(weights, 0.25)


def test_ties_between_groups_go_to_the_lower_group():
    rule = {**V3, "num_groups": 3, "num_groups_used": 2}
    logits = np.array([[0, 1, 0, 1, 1, 0]], np.float32)
    np.testing.assert_array_equal(route(logits, None, 2, **rule)[0], [[1, 3]])


def test_a_group_counts_by_its_two_best_or_by_its_best():
    logits = np.array([[3.0, -3.0, 2.0, 2.0]], np.float32)
    one_of_two = {**V3, "num_groups": 2, "num_groups_used": 1}
    np.testing.assert_array_equal(route(logits, None, 1, **one_of_two)[0], [[2]])
    np.testing.assert_array_equal(route(logits, None, 1, **{**one_of_two, "group_score_top2": False})[0], [[0]])


def test_bias_moves_the_choice_but_not_the_weight():
    logits = np.array([[1.0, 0.0]], np.float32)
    ids, weights = route(logits, np.array([0.0, 10.0], np.float32), 1, **{**KIMI, "normalize": False})
    np.testing.assert_array_equal(ids, [[1]])
    np.testing.assert_array_equal(weights, 0.5)


def test_a_negative_biased_score_in_a_used_group_still_beats_an_unused_group():
    rule = {**V3, "num_groups": 2, "num_groups_used": 1}
    bias = np.array([-2.0, -2.0, -3.0, -3.0], np.float32)
    np.testing.assert_array_equal(route(np.zeros((1, 4), np.float32), bias, 2, **rule)[0], [[0, 1]])


def test_scores_that_vanish_give_weights_of_zero():
    ids, weights = route(np.full((1, 16), -200.0, np.float32), None, 4, **{**V3, "num_groups_used": 2})
    np.testing.assert_array_equal(ids, [[0, 1, 2, 3]])
    np.testing.assert_array_equal(weights, 0)


def test_the_root_of_a_softplus_is_finite_for_all_logits():
    ids, weights = route(np.array([[-1e4, 1e4, 0.0]], np.float32), None, 3, **{**V4, "normalize": False})
    np.testing.assert_array_equal(ids, [[1, 2, 0]])
    np.testing.assert_allclose(weights, [[100.0, np.sqrt(np.log(2)), 0.0]], rtol=1e-6)


def test_an_unknown_function_of_logits_is_rejected():
    with pytest.raises(ValueError, match="gating is tanh; expected softmax, sigmoid or sqrtsoftplus"):
        route(np.zeros((1, 4), np.float32), None, 1, **{**KIMI, "gating": "tanh"})


def test_nan_logits_still_give_distinct_experts():
    ids, _ = route(np.full((1, 16), np.nan, np.float32), None, 4, **{**V3, "num_groups_used": 2})
    assert len(set(ids[0].tolist())) == 4
    assert set(ids[0].tolist()) <= set(range(16))


@pytest.mark.parametrize(
    ("changes", "num_chosen", "message"),
    [
        ({"num_groups": 3}, 2, "num_groups is 3; expected a divisor of the number of experts, 16"),
        ({"num_groups": 0}, 2, "num_groups is 0"),
        ({"num_groups_used": 9}, 2, "num_groups_used is 9; expected 1 to num_groups, 8"),
        (
            {"num_groups_used": 1},
            3,
            "experts per token is 3; expected 1 to the number of experts in the groups used, 2",
        ),
        ({"num_groups": 16}, 2, "groups of at least 2 experts"),
        ({}, 0, "experts per token is 0"),
    ],
)
def test_impossible_rules_are_rejected_by_name(changes, num_chosen, message):
    with pytest.raises(ValueError, match=message):
        route(np.zeros((1, 16), np.float32), None, num_chosen, **{**V3, **changes})
