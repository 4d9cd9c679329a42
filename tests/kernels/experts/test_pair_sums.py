"""Experts that are decoded once for all their tokens: by Triton's interpreter here, on the device where there is one.

The expected results round weights, inputs and intermediate values to half precision as the kernels do. The tolerance is
for the order of sums in float32 and for values that fall between two numbers of half precision.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T

from ballast.model.hybrid.experts.products import many_pairs_kernels, pair_sizes, pair_sums
from ballast.model.hybrid.experts.products.expert_panels import ExpertPanels
from ballast.model.hybrid.experts.products.expert_sums import ExpertSums
from ballast.model.hybrid.experts.products.pair_sums import PairSums
from ballast.model.hybrid.panels import half_kernels, matmul
from ballast.model.hybrid.panels.stack import PanelStack
from devkit.kernels.interpreted import interpreted
from devkit.kernels.panel_stacks import NUM_EXPERTS, stack_of

HIDDEN, WIDTH = 256, 256
NUM_TOKENS, NUM_USED = 150, 2
SMALL, SMALL_KINDS = 64, (T.Q8_0, T.Q4_0, T.Q5_0)
"""Where the types do not matter: an interpreter takes a tenth of the time."""
Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where PairSums computes in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    monkeypatch.setattr(matmul, "half_kernels", interpreted(half_kernels, monkeypatch))
    monkeypatch.setattr(pair_sums, "many_pairs_kernels", interpreted(many_pairs_kernels, monkeypatch))
    return torch.device("cpu")


def stacks_of(rng, pool, kinds: tuple[T, T, T], device: torch.device, hidden: int = HIDDEN, width: int = WIDTH):
    shapes = ((width, hidden), (width, hidden), (hidden, width))
    pairs = [stack_of(rng, pool, kind, *shape, device) for kind, shape in zip(kinds, shapes, strict=True)]
    return [stack for stack, _ in pairs], [weight for _, weight in pairs]


def some_tokens(
    rng, device: torch.device, num_tokens: int = NUM_TOKENS, num_ids: int = NUM_EXPERTS + 2, hidden: int = HIDDEN
) -> Given:
    """Tokens that choose among all experts and two that are elsewhere."""
    x = rng.standard_normal((num_tokens, hidden), dtype=np.float32)
    ids = np.argsort(rng.random((num_tokens, num_ids)), 1)[:, :NUM_USED].astype(np.int32) - 1
    weights = rng.random(ids.shape, dtype=np.float32)
    return tuple(torch.from_numpy(values).to(device) for values in (x, ids, weights))


def halved(values: np.ndarray) -> np.ndarray:
    """Values rounded to half precision, as float64."""
    return values.astype(np.float16).astype(np.float64)


def check(found: torch.Tensor, given: Given, matrices: list[np.ndarray], experts: range) -> None:
    gate, up, down = map(halved, matrices)
    x, ids, weights = (values.cpu().numpy() for values in given)
    x = halved(x)
    for token, chosen in enumerate(ids):
        expected = np.zeros(x.shape[1])
        for expert, weight in zip(chosen, weights[token], strict=True):
            if expert in experts:
                gated = gate[expert] @ x[token]
                hidden = gated / (1 + np.exp(-gated)) * (up[expert] @ x[token])
                expected += weight * (down[expert] @ halved(hidden))
        assert np.linalg.norm(found[token].cpu().numpy() - expected) <= 2.0**-10 * np.linalg.norm(expected), token


@pytest.mark.parametrize(
    "kinds",
    [
        (T.Q4_K, T.Q4_K, T.Q6_K),
        (T.Q2_K, T.Q3_K, T.Q5_K),
        (T.IQ4_XS, T.Q8_0, T.Q4_0),
        (T.MXFP4, T.IQ2_XXS, T.IQ3_S),
        (T.NVFP4, T.NVFP4, T.NVFP4),
        (T.TQ1_0, T.TQ2_0, T.TQ1_0),
    ],
    ids=lambda kinds: "-".join(kind.name for kind in kinds),
)
def test_tokens_sum_their_local_experts(rng, pool, device, kinds) -> None:
    stacks, matrices = stacks_of(rng, pool, kinds, device)
    given = some_tokens(rng, device)
    check(sums_of(*given, stacks), given, matrices, range(NUM_EXPERTS))


@pytest.mark.parametrize("at_once", [1, 3])
def test_expert_chunks_and_odd_widths_do_not_change_results(rng, pool, device, at_once, monkeypatch) -> None:
    stacks, matrices = stacks_of(rng, pool, (T.Q8_0, T.Q8_0, T.Q8_0), device, width=96)
    given = some_tokens(rng, device, num_tokens=70)
    monkeypatch.setattr(pair_sums, "DECODED_BYTES", at_once * 2 * 256 * HIDDEN * 2)
    check(sums_of(*given, stacks), given, matrices, range(NUM_EXPERTS))


def test_experts_arrive_in_chunks_some_of_which_no_token_chose(rng, pool, device, monkeypatch) -> None:
    """`ExpertSums` uses this path from this number of tokens on, and so does `ExpertPanels`."""
    stacks, matrices = stacks_of(rng, pool, SMALL_KINDS, device, SMALL, SMALL)
    x, ids, weights = some_tokens(rng, device, num_tokens=60, num_ids=2 * NUM_EXPERTS, hidden=SMALL)
    ids[ids == 1] = -1
    monkeypatch.setattr(pair_sizes, "MIN_PAIRS", 20)
    sums = ExpertSums(x, ids, weights, 2 * NUM_EXPERTS)
    sums.add(0, *stacks)
    sums.add(NUM_EXPERTS, *stacks)
    check(sums.total, (x, ids % NUM_EXPERTS - (ids < 0) * NUM_EXPERTS, weights), matrices, range(NUM_EXPERTS))
    check(ExpertPanels(*stacks)(x, ids, weights), (x, ids, weights), matrices, range(NUM_EXPERTS))


def sums_of(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, stacks: list[PanelStack]) -> torch.Tensor:
    sums = PairSums(x, ids, weights, NUM_EXPERTS)
    sums.add(0, *stacks)
    return sums.total


def test_a_token_s_sum_does_not_depend_on_the_others(rng, pool, device) -> None:
    stacks, _ = stacks_of(rng, pool, SMALL_KINDS, device, SMALL, SMALL)
    x, ids, weights = some_tokens(rng, device, num_tokens=60, hidden=SMALL)
    whole = sums_of(x, ids, weights, stacks)
    assert torch.equal(sums_of(x[20:50], ids[20:50], weights[20:50], stacks), whole[20:50])


def test_floats_and_partial_panels_are_not_supported(rng, pool) -> None:
    device = torch.device("cpu")
    quantised, _ = stack_of(rng, pool, T.Q8_0, 32, 64, device)
    floats, _ = stack_of(rng, pool, T.F16, 32, 64, device)
    partly, _ = stack_of(rng, pool, T.Q8_0, 24, 64, device)
    assert pair_sums.can_decode(quantised, quantised)
    assert not pair_sums.can_decode(quantised, floats)
    assert not pair_sums.can_decode(partly)
