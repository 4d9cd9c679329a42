"""Experts with biases and a clamped unit against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType
from numpy.typing import NDArray

from ballast._core import kernels
from ballast._core.numa import ANY_CPU, NodeThreads, Placement
from devkit.kernels.isas import isa_params

ALPHA, LIMIT = 1.702, 7.0
SILU_LIMIT = 2.0
NUM_EXPERTS, NUM_CHOSEN = 5, 2
Floats = NDArray[np.float32]


def with_unit(experts: kernels.Experts, unit: str) -> kernels.Experts:
    if unit == "clamped":
        return experts.with_clamped_swiglu(alpha=ALPHA, limit=LIMIT)
    if unit == "silu":
        return experts
    return experts.with_clamped_silu(limit=SILU_LIMIT, limits_input=unit == "limited input")


def reference(x, matrices, biases, ids, weights, unit: str) -> NDArray[np.float64]:
    out = np.zeros(x.shape)
    for token, row in enumerate(x.astype(np.float64)):
        for expert, weight in zip(ids[token], weights[token], strict=True):
            g, u = (matrices[part][expert] @ row + biases[part][expert] for part in ("gate", "up"))
            h = g / (1 + np.exp(-g)) * u
            if unit == "limited":
                h = np.minimum(g / (1 + np.exp(-g)), SILU_LIMIT) * np.clip(u, -SILU_LIMIT, SILU_LIMIT)
            if unit == "limited input":
                limited = np.minimum(g, SILU_LIMIT)
                h = limited / (1 + np.exp(-limited)) * np.clip(u, -SILU_LIMIT, SILU_LIMIT)
            if unit == "clamped":
                g, u = np.minimum(g, LIMIT), np.clip(u, -LIMIT, LIMIT)
                h = g / (1 + np.exp(-ALPHA * g)) * (u + 1)
            out[token] += weight * (matrices["down"][expert] @ h + biases["down"][expert])
    return out


def shapes_of(width: int, hidden: int) -> dict[str, tuple[int, int]]:
    return {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}


def make_biases(rng: np.random.Generator, width: int, hidden: int) -> dict[str, Floats]:
    """So large that the unit's limit is reached on both sides."""
    rows = {part: shape[0] for part, shape in shapes_of(width, hidden).items()}
    return {part: 4 * rng.standard_normal((NUM_EXPERTS, count), np.float32) for part, count in rows.items()}


def choose(rng: np.random.Generator, num_tokens: int) -> tuple[NDArray[np.int32], Floats]:
    ids = [rng.permutation(NUM_EXPERTS)[:NUM_CHOSEN] for _ in range(num_tokens)]
    return np.array(ids, np.int32), rng.uniform(0.1, 1.0, (num_tokens, NUM_CHOSEN)).astype(np.float32)


@pytest.mark.parametrize("isa", ["reference", *isa_params()])
@pytest.mark.parametrize("unit", ["clamped", "limited", "limited input", "silu"])
@pytest.mark.parametrize("num_nodes", [1, 3])
@pytest.mark.parametrize("num_tokens", [1, 23])
@pytest.mark.parametrize(
    ("kind", "width", "hidden", "tolerance"),
    [(GgmlType.F32, 104, 40, 1e-5), (GgmlType.MXFP4, 352, 288, 1e-3)],
    ids=["f32", "mxfp4"],
)
def test_biases_are_added_and_the_unit_is_clamped(
    rng, make_matrix, isa, unit, num_nodes, num_tokens, kind, width, hidden, tolerance
):
    pool = kernels.ThreadPool(Placement([NodeThreads(300 + node, [ANY_CPU]) for node in range(num_nodes)]))
    views, matrices = {}, {}
    for part, (rows, cols) in shapes_of(width, hidden).items():
        views[part], values = make_matrix(kind, NUM_EXPERTS * rows, cols)
        matrices[part] = values.reshape(NUM_EXPERTS, rows, cols)
    biases = make_biases(rng, width, hidden)
    experts = with_unit(kernels.Experts(**views, num_experts=NUM_EXPERTS).with_biases(**biases), unit)
    experts = experts.packed(pool, isa, activation_bytes=2)
    x = rng.standard_normal((num_tokens, hidden), np.float32)
    ids, weights = choose(rng, num_tokens)
    out = np.full_like(x, np.nan)

    experts.forward(pool, x, ids, weights, out)

    want = reference(x, matrices, biases, ids, weights, unit)
    np.testing.assert_allclose(out, want, rtol=0, atol=tolerance * np.abs(want).max())


@pytest.mark.parametrize("unit", ["clamped", "limited"])
@pytest.mark.parametrize("isa", isa_params())
def test_a_token_has_the_same_bits_in_every_batch(rng, make_matrix, isa, unit):
    pool = kernels.ThreadPool(2)
    views = {
        part: make_matrix(GgmlType.MXFP4, NUM_EXPERTS * rows, cols)[0]
        for part, (rows, cols) in shapes_of(352, 288).items()
    }
    experts = kernels.Experts(**views, num_experts=NUM_EXPERTS).with_biases(**make_biases(rng, 352, 288))
    experts = with_unit(experts, unit).packed(pool, isa, activation_bytes=2)
    x = rng.standard_normal((40, 288), np.float32)
    ids, weights = choose(rng, 40)
    whole, alone = np.full_like(x, np.nan), np.full_like(x, np.nan)

    experts.forward(pool, x, ids, weights, whole)
    for token in range(40):
        one = slice(token, token + 1)
        experts.forward(pool, x[one], ids[one], weights[one], alone[one])

    np.testing.assert_array_equal(alone, whole)


def test_mismatched_biases_are_rejected_by_name(rng, make_matrix):
    matrices = {part: make_matrix(GgmlType.F32, 5 * rows, cols)[0] for part, (rows, cols) in shapes_of(4, 6).items()}
    experts, biases = kernels.Experts(**matrices, num_experts=5), make_biases(rng, 4, 6)
    for part, expected in (("gate", r"16 entries; expected 5 \* 4"), ("down", r"24 entries; expected 5 \* 6")):
        with pytest.raises(ValueError, match=f"the bias of {part} has {expected}"):
            experts.with_biases(**biases | {part: biases[part][:4]})
