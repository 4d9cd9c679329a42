"""The interface between Python and the forward pass: shapes, the tables of a step, the liveness callback."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from ballast._core import kernels, model

HIDDEN, HEADS, RANK, NOPE, ROPE, V, VOCABULARY, SLOTS = 8, 2, 6, 4, 2, 5, 7, 12


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def matrix(rows: int, cols: int) -> kernels.Matrix:
    return kernels.Matrix(f32(rows, cols), 0, rows, cols)


def shape(**changes):
    return model.Shape(
        **{
            "hidden": HIDDEN,
            "rms_eps": 1e-6,
            "num_experts": 3,
            "num_experts_used": 2,
            "num_groups": 1,
            "num_groups_used": 1,
            "gating": "softmax",
            "group_score_top2": False,
            "normalize_weights": False,
            "weights_scale": 1.0,
            **changes,
        }
    )


def experts(count: int, hidden: int = HIDDEN) -> kernels.Experts:
    return kernels.Experts(matrix(count * 3, hidden), matrix(count * 3, hidden), matrix(count * hidden, 3), count)


def layer(**changes) -> model.Layer:
    """Latent attention and routed experts; None omits a tensor."""
    sizes = {"num_heads": HEADS, "kv_lora_rank": RANK, "nope_dim": NOPE, "rope_dim": ROPE, "v_dim": V}
    tensors = {
        "attention_norm": f32(HIDDEN),
        "query_up": matrix(HEADS * (NOPE + ROPE), HIDDEN),
        "kv_a": matrix(RANK + ROPE, HIDDEN),
        "kv_a_norm": f32(RANK),
        "k_up": model.HeadMatrix(matrix(HEADS * RANK, NOPE), RANK, 0, False),
        "v_up": model.HeadMatrix(matrix(HEADS * V, RANK), V, 0, False),
        "output": matrix(HIDDEN, HEADS * V),
        "ffn_norm": f32(HIDDEN),
        "mlp": experts(1),
        "router": matrix(3, HIDDEN),
        "experts": experts(3),
        **changes,
    }
    return model.Layer(
        mixer=model.LatentShape(**sizes, softmax_scale=0.4, index=None, rotates=True),
        tensors={role: tensor for role, tensor in tensors.items() if tensor is not None},
        rope=0,
    )


def make(**changes) -> model.Transformer:
    return model.Transformer(
        kernels.ThreadPool(2),
        **{
            "isa": kernels.usable_isas()[0],
            "shape": shape(),
            "embedding": matrix(VOCABULARY, HIDDEN),
            "layers": [layer()],
            "output_tensors": {"output_norm": f32(HIDDEN)},
            "output": matrix(VOCABULARY, HIDDEN),
            "ropes": [(f32(9, ROPE // 2), f32(9, ROPE // 2), None)],
            "kv_layers": [[np.full((SLOTS, RANK + ROPE), np.nan, np.float32)]],
            "block_tokens": 3,
            **changes,
        },
    )


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def step(**changes):
    """Two tokens that start a sequence in block 2."""
    return {
        "token_ids": i32(3, 0),
        "positions": i32(0, 1),
        "slots": i32(6, 7),
        "query_indptr": i32(0, 2),
        "kv_indptr": i32(0, 1),
        "kv_indices": i32(2),
        "sampled": np.array([1], np.int64),
        "alive": lambda: None,
        "alive_every_s": 0.1,
        **changes,
    }


def test_a_step_writes_its_rows_of_the_cache_and_returns_logits():
    cache = np.full((SLOTS, RANK + ROPE), np.nan, np.float32)
    logits = make(kv_layers=[[cache]]).forward(**step())
    assert (logits.shape, logits.dtype) == ((1, VOCABULARY), np.float32)
    assert np.all(np.isfinite(logits))
    np.testing.assert_array_equal(np.isfinite(cache).all(axis=1), [6 <= slot <= 7 for slot in range(SLOTS)])


def test_all_tokens_or_none_can_be_sampled():
    assert make().forward(**step(sampled=np.array([0, 1]))).shape == (2, VOCABULARY)
    assert make().forward(**step(sampled=np.empty(0, np.int64))).shape == (0, VOCABULARY)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_tensors": {"output_norm": f32(5)}}, r"output\.output_norm has 5 entries; expected 8"),
        ({"output_tensors": {"output_norm": np.zeros(8)}}, r"output_norm is float64 \[8\]; expected float32"),
        ({"embedding": matrix(VOCABULARY, 5)}, r"embedding is \[7, 5\]; expected hidden = 8 columns"),
        ({"output": matrix(VOCABULARY, 5)}, r"output is \[7, 5\]; expected \[7, 8\]"),
        (
            {"ropes": [(f32(9, 1), f32(9, 2), None)]},
            r"sines of ropes is float32 \[9, 2\]; expected .* rope_dim / 2 = 1\]",
        ),
        (
            {"ropes": [(f32(9, 1), f32(8, 1), None)]},
            r"sines of ropes is float32 \[8, 1\]; expected float32 \[positions = 9",
        ),
        ({"ropes": [(f32(9, 1), f32(9, 1), f32(8))]}, r"query scales of ropes is float32 \[8\]; expected .* = 9\]"),
        ({"ropes": []}, r"layers\[0\] has rotation 0; expected one of 0"),
        ({"kv_layers": []}, "the cache has 0 layers; expected 1"),
        (
            {"kv_layers": [[f32(SLOTS, 5)]]},
            r"kv_layers is float32 \[12, 5\]; expected float32 \[slots = 12, width = 8\]",
        ),
        ({"kv_layers": [[]]}, "the cache has 0 planes in layer 0; expected 1"),
        (
            {"ropes": [(f32(9, 2), f32(9, 2), None)]},
            r"layers\[0\] rotates 2 entries; expected 4",
        ),
        ({"block_tokens": 0}, "block_tokens is 0; expected 1 or more"),
        ({"isa": "sse9"}, "sse9; usable on this machine are"),
        ({"shape": shape(num_experts_used=4)}, "experts per token is 4; expected 1 to"),
        ({"layers": [layer(mlp=experts(1, 5))]}, r"layers\[0\].mlp has 1 experts of width 5; expected 1 of width 8"),
        ({"layers": [layer(experts=experts(2))]}, r"layers\[0\].experts has 2 experts of width 8; expected 3"),
        ({"layers": [layer(router=matrix(4, HIDDEN))]}, r"layers\[0\].router is \[4, 8\]; expected \[3, 8\]"),
        ({"layers": [layer(kv_a=matrix(9, 8))]}, r"layers\[0\].kv_a is \[9, 8\]"),
        ({"layers": [layer(kv_a=None)]}, r"layers\[0\] has no kv_a; expected a matrix"),
        ({"layers": [layer(kv_a=f32(RANK))]}, r"layers\[0\].kv_a is of another kind; expected a matrix"),
        ({"layers": [layer(query_norm=f32(4))]}, r"layers\[0\].query_norm is not used by this layer"),
        ({"layers": [layer(router=None)]}, r"layers\[0\] has no router; expected a matrix"),
        (
            {"layers": [layer(v_up=model.HeadMatrix(matrix(9, RANK), V, 0, False))]},
            r"layers\[0\].v_up is \[9, 6\] with head_stride 5 and row_offset 0; expected 2 heads of",
        ),
    ],
)
def test_mismatched_arguments_are_rejected_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_a_tensor_that_is_not_an_array_is_rejected_by_role():
    with pytest.raises(ValueError, match=r"kv_a_norm is float64 \[6\]; expected float32"):
        layer(kv_a_norm=np.zeros(RANK))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"token_ids": i32(3, 7)}, IndexError, r"token_ids\[1\] is 7; expected 0 to 6"),
        ({"token_ids": i32(-1, 0)}, IndexError, r"token_ids\[0\] is -1"),
        ({"slots": i32(6, 12)}, IndexError, r"slots\[1\] is 12; expected 0 to 11"),
        ({"sampled": np.array([2])}, IndexError, r"sampled\[0\] is 2; expected 0 to 1"),
        ({"sampled": np.array([0, 0, 1])}, ValueError, "sampled has 3 entries; expected at most one a token, 2"),
        ({"sampled": i32(1)}, ValueError, r"sampled is int32 \[1\]; expected int64"),
        ({"positions": i32(0, 3)}, ValueError, r"positions\[1\] is 3; expected 0 to 2"),
        ({"kv_indices": i32(4)}, ValueError, r"kv_indices\[0\] is 4; expected 0 to 3"),
        ({"slots": i32(6)}, ValueError, r"slots is int32 \[1\]; expected int32 \[T = 2\]"),
        ({"query_indptr": i32()}, ValueError, "query_indptr is empty"),
    ],
)
def test_a_step_with_indices_out_of_range_is_rejected_and_writes_nothing(changes, error, message):
    cache = np.full((SLOTS, RANK + ROPE), np.nan, np.float32)
    with pytest.raises(error, match=message):
        make(kv_layers=[[cache]]).forward(**step(**changes))
    assert np.all(np.isnan(cache))


def test_a_position_beyond_the_rope_table_is_refused():
    tables = {"positions": i32(9, 10), "kv_indptr": i32(0, 4), "kv_indices": i32(0, 1, 2, 3)}
    with pytest.raises(IndexError, match=r"positions\[0\] is 9; expected 0 to 8"):
        make().forward(**step(**tables))


def test_a_model_keeps_its_arrays_alive():
    data = f32(VOCABULARY, HIDDEN)
    cache = np.zeros((SLOTS, RANK + ROPE), np.float32)
    alive = [weakref.ref(data), weakref.ref(cache)]
    loaded = make(output=kernels.Matrix(data, 0, VOCABULARY, HIDDEN), kv_layers=[[cache]])
    want = loaded.forward(**step())
    del data, cache
    gc.collect()

    assert all(ref() is not None for ref in alive)
    np.testing.assert_array_equal(loaded.forward(**step()), want)
    del loaded
    gc.collect()
    assert all(ref() is None for ref in alive)


def test_each_layer_calls_the_alive_callback():
    signs = []
    make(layers=[layer()] * 3, kv_layers=[[f32(SLOTS, RANK + ROPE)] for _ in range(3)]).forward(
        **step(alive=lambda: signs.append("alive"), alive_every_s=0.0)
    )
    assert signs == ["alive"] * 3


def test_a_short_step_is_not_delayed_by_alive_callbacks():
    signs = []
    make().forward(**step(alive=lambda: signs.append("alive"), alive_every_s=3600.0))
    assert signs == []


def test_an_error_in_a_sign_of_life_ends_the_step():
    def stop() -> None:
        raise KeyError("stop")

    loaded = make()
    with pytest.raises(KeyError, match="stop"):
        loaded.forward(**step(alive=stop, alive_every_s=0.0))
    assert np.all(np.isfinite(loaded.forward(**step())))


def test_each_expert_that_any_token_chose_is_counted_once_a_step():
    subject = make()
    assert subject.expert_bytes_read == 0
    one_expert = 3 * HIDDEN * 3 * 4  # gate, up and down of width 3, in 32-bit floats
    subject.forward(**step())
    first = subject.expert_bytes_read
    assert first in (2 * one_expert, 3 * one_expert), "two per token, out of three"
    subject.forward(**step())
    assert subject.expert_bytes_read == 2 * first
    dense = make(layers=[layer(router=None, experts=None)])
    dense.forward(**step())
    assert dense.expert_bytes_read == 0
