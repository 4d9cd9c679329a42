"""Bounds of the numbers that a layer writes to its cache: no token exceeds them, and some token reaches them."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader

from ballast.engine.startup.build import EngineSettings
from ballast.model.hybrid.attention.cache_bounds import largest_normed, largest_product, largest_rotated
from ballast.model.hybrid.layers import largest_kept
from ballast.model.hybrid.pointwise.pointwise import HeadWeights
from ballast.model.hybrid.steps.step import Step
from ballast.model.rope import RopeTable
from devkit.kernels.torch_pointwise import TorchPointwise
from devkit.models.float_hybrid import load_hybrid
from devkit.models.random_blocks import dequantized
from devkit.models.written import MakeTiny

CPU = torch.device("cpu")
HIDDEN, RANK, ROPE, ROTATION = 40, 24, 8, 1.3
WIDTH = 12
"""Width of a head, whose first ROPE entries are rotated."""
SETTINGS = EngineSettings(
    cache_lens=64, max_batch_size=1, max_new_tokens=8, chunk_size=8, prefill_chunk_size=8, max_queue=1
)


def cached(norm: np.ndarray, rows: np.ndarray, latent_norm: np.ndarray, stream: np.ndarray, angle: float) -> np.ndarray:
    """The row [RANK + ROPE] of one token in the cache."""
    turns = np.full((1, ROPE // 2), angle)
    rope = RopeTable((ROTATION * np.cos(turns)).astype(np.float32), (ROTATION * np.sin(turns)).astype(np.float32))
    pointwise = TorchPointwise(0.0, rope, CPU)
    zero = torch.zeros(1, dtype=torch.int32)
    cache = torch.zeros((1, RANK + ROPE))
    normed = pointwise.norm(torch.from_numpy(stream)[None], torch.from_numpy(norm))
    latents = torch.cat([torch.eye(RANK)[:1], normed @ torch.from_numpy(rows).T], 1)  # the least even latent
    no_heads = torch.zeros((1, 1, ROPE))
    pointwise.query_and_cache(
        no_heads, no_heads, latents, torch.from_numpy(latent_norm), cache, Step(zero, zero, zero.long(), ())
    )
    return cache[0].numpy()


def test_no_token_exceeds_a_bound_and_some_token_reaches_it() -> None:
    rng = np.random.default_rng(3)
    norm, latent_norm = (rng.standard_normal(size).astype(np.float32) for size in (HIDDEN, RANK))
    latent_norm[0] = 4.0
    rows = rng.standard_normal((ROPE, HIDDEN)).astype(np.float32)
    rows[3] *= 0.0
    rows[2] *= 9.0
    products = largest_product(norm, rows, None)
    key, latent = largest_rotated(products[0::2], products[1::2], ROTATION), largest_normed(latent_norm)
    streams = rng.standard_normal((200, HIDDEN)).astype(np.float32)
    for stream in streams:
        row = cached(norm, rows, latent_norm, stream, float(rng.uniform(0, 6)))
        assert np.abs(row[RANK:]).max() <= key
    worst = cached(norm, rows, latent_norm, rows[2] * norm, 0.0)
    assert np.abs(worst[RANK:]).max() == pytest.approx(key, rel=1e-5)
    assert np.abs(worst[:RANK]).max() == pytest.approx(latent, rel=1e-5)


def test_no_head_exceeds_its_bound_and_some_head_reaches_it() -> None:
    rng = np.random.default_rng(4)
    norm, bias = (rng.standard_normal(size).astype(np.float32) for size in (HIDDEN, WIDTH))
    rows = rng.standard_normal((WIDTH, HIDDEN)).astype(np.float32)
    rows[2] *= 9.0
    heads = HeadWeights(None, torch.from_numpy(bias), torch.from_numpy(bias), None, None)
    largest = largest_product(norm, rows, bias)
    rotated = largest_rotated(largest[: ROPE // 2], largest[ROPE // 2 : ROPE], 1.0)
    streams = [*rng.standard_normal((200, HIDDEN)).astype(np.float32), np.sign(bias[2]) * rows[2] * norm]
    for stream in streams:
        angles = rng.uniform(0, 6, (1, ROPE // 2)).astype(np.float32)
        pointwise = TorchPointwise(0.0, RopeTable(np.cos(angles), np.sin(angles)), CPU)
        product = pointwise.norm(torch.from_numpy(stream)[None], torch.from_numpy(norm)) @ torch.from_numpy(rows).T
        zero, cache, head = torch.zeros(1, dtype=torch.int32), torch.zeros((1, 2 * WIDTH)), product[:, None]
        pointwise.heads_and_cache(head, head, head, heads, cache, Step(zero, zero, zero.long(), ()))
        keys, values = np.abs(cache[0].numpy()).reshape(2, WIDTH)
        assert keys[:ROPE].max() <= rotated * (1 + 1e-6)
        assert (values <= largest * (1 + 1e-6)).all()
    assert values[2] == pytest.approx(largest[2], rel=1e-5)


def test_infinite_weights_have_no_finite_bound() -> None:
    rows = np.full((ROPE, HIDDEN), np.inf, np.float32)
    assert not largest_product(np.zeros(HIDDEN, np.float32), rows, None).max() <= 65504


def test_bounds_include_the_scale_of_a_whole_matrix(written: MakeTiny, monkeypatch) -> None:
    seen: list[np.ndarray] = []
    bound = largest_kept.largest_product
    monkeypatch.setattr(
        largest_kept, "largest_product", lambda norm, rows, bias: (seen.append(rows), bound(norm, rows, bias))[1]
    )
    file = written(arch="v2lite", quant="nvfp4").gguf
    load_hybrid(file, CPU, SETTINGS)
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(file).tensors}
    name = "blk.0.attn_kv_a_mqa"
    whole = dequantized(tensors[f"{name}.weight"], GGMLQuantizationType.NVFP4) * tensors[f"{name}.scale"]
    np.testing.assert_allclose(seen[0], whole[-len(seen[0]) :], rtol=1e-6)


@pytest.mark.parametrize(("key", "level"), [(None, "INFO"), (65504.0, "INFO"), (70000.0, "WARNING")])
def test_a_start_logs_the_bound_of_keys(written: MakeTiny, monkeypatch, caplog, key: float, level: str) -> None:
    if key is not None:
        monkeypatch.setattr(largest_kept, "largest_rotated", lambda *_: key)
    caplog.set_level(logging.INFO)
    load_hybrid(written(arch="k2", quant="q4_k").gguf, CPU, SETTINGS)
    [record] = [record for record in caplog.records if "the cache" in record.message]
    assert record.levelname == level
    assert vars(record)["largest_key"] > 0
    assert vars(record)["holds"] == 65504
