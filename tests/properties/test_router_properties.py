"""The device's router and the CPU's choose the same experts, for every rule, including ties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast._core import kernels
from ballast.model.layers.feed_forward import RoutingSpec
from devkit.kernels.plain_routing import Router
from devkit.models.specs.deepseek import R1_SPEC


@st.composite
def rules(draw: st.DrawFn) -> RoutingSpec:
    num_groups, group_size = draw(st.sampled_from([(1, 5), (1, 16), (2, 1), (3, 4), (4, 4), (8, 32)]))
    score = draw(st.sampled_from(["max", "top2_sum"])) if group_size > 1 else "max"
    used = draw(st.integers(1, num_groups))
    return replace(
        R1_SPEC.routing,
        num_experts=num_groups * group_size,
        num_experts_used=draw(st.integers(1, min(8, used * group_size))),
        num_groups=num_groups,
        num_groups_used=used,
        group_score=score,
        gating=draw(st.sampled_from(["softmax", "sigmoid"])),
        normalize_weights=draw(st.booleans()),
        weights_scale=draw(st.sampled_from([1.0, 2.5])),
    )


@settings(deadline=None)
@given(
    rule=rules(), seed=st.integers(0, 2**32 - 1), num_tokens=st.integers(0, 5), num_levels=st.sampled_from([1, 3, 33])
)
def test_the_device_chooses_the_same_experts_as_the_cpu(
    rule: RoutingSpec, seed: int, num_tokens: int, num_levels: int
) -> None:
    # Logits and biases on coarse grids: many ties, and all other differences are larger than rounding errors.
    rng = np.random.default_rng(seed)
    logits = (rng.integers(0, num_levels, (num_tokens, rule.num_experts)) / 4).astype(np.float32)
    bias = None if seed % 2 else (rng.integers(-1, 2, rule.num_experts) / 2).astype(np.float32)
    ids = np.empty((num_tokens, rule.num_experts_used), np.int32)
    weights = np.empty((num_tokens, rule.num_experts_used), np.float32)
    kernels.route(
        logits,
        bias,
        gating=rule.gating,
        num_groups=rule.num_groups,
        num_groups_used=rule.num_groups_used,
        group_score_top2=rule.group_score == "top2_sum",
        normalize=rule.normalize_weights,
        scale=rule.weights_scale,
        ids=ids,
        weights=weights,
    )
    router = Router(rule, None if bias is None else torch.from_numpy(bias))
    found_ids, found_weights = router(torch.from_numpy(logits))
    assert found_ids.dtype == torch.int32
    assert found_ids.tolist() == ids.tolist()
    np.testing.assert_allclose(found_weights.numpy(), weights, rtol=3e-6)
