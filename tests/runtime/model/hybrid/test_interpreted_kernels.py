"""A GPU's kernels in whole steps of each kind of layer, run by Triton's interpreter, against torch's operations.

The models have real widths of heads and latents and are otherwise as small as their layers allow. A prompt is longer
than the windows, and a decode step follows it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ballast.engine.startup.build import EngineSettings
from ballast.model.batch import Batch
from ballast.model.layers.stream import GatedStreamSpec
from ballast.tiny.presets import PRESETS
from ballast.tiny.shape import (
    TinyCompressed,
    TinyDeltaNet,
    TinyIndex,
    TinyKimiDelta,
    TinyLimits,
    TinyNgram,
    TinyShape,
)
from devkit.long import if_long
from devkit.models.float_experts import FloatExperts
from devkit.models.float_hybrid import load_hybrid
from devkit.models.interpreted_backend import interpret_kernels
from devkit.models.written import MakeTiny

CPU = torch.device("cpu")
SETTINGS = EngineSettings(
    cache_lens=64,
    max_batch_size=2,
    max_new_tokens=8,
    chunk_size=20,
    prefill_chunk_size=20,
    max_queue=2,
    block_tokens=16,
    activation_bytes=2,
)
NUM_TOKENS = 18
MAX_DIFFERENCE = 1e-3
"""Fraction of the largest logit. Products of more than four tokens round both factors to half precision, by 5e-4 at
most; where the cache has float32, logits differ by up to 8e-4."""


def small(arch: str, **changes: Any) -> TinyShape:
    """The preset with two layers, few experts and narrow networks."""
    preset = PRESETS[arch]
    return replace(
        preset,
        **{
            "num_layers": 2,
            "num_dense_layers": min(1, preset.num_dense_layers),
            "hidden": 64,
            "ffn_dim": 64,
            "expert_dim": 64,
            "num_experts": 4,
            "num_experts_used": 2,
            "num_groups": 1,
            "num_groups_used": 1,
            "num_shared_experts": min(1, preset.num_shared_experts),
        }
        | changes,
    )


def windowed(arch: str, **changes: Any) -> TinyShape:
    """As `small`; the second layer has a window."""
    heads = PRESETS[arch].heads
    assert heads is not None
    return small(arch, heads=replace(heads, windowed_layers=(1,)), **changes)


def batches() -> list[Batch]:
    """A prompt in blocks 1 and 2, and a decode step after it. Layers with a window have the same blocks, recurrent
    layers slot 1."""
    slots = np.arange(16, 16 + NUM_TOKENS + 1, dtype=np.int32)
    blocks, ends = np.array([1, 2], np.int32), np.array([0, 2], np.int32)

    def batch(begin: int, end: int) -> Batch:
        return Batch(
            token_ids=np.arange(40 + begin, 40 + end, dtype=np.int32),
            positions=np.arange(begin, end, dtype=np.int32),
            slots=slots[begin:end],
            query_indptr=np.array([0, end - begin], np.int32),
            kv_indptr=ends,
            kv_indices=blocks,
            sampled=np.arange(end - begin, dtype=np.int64),
            states=tuple(np.array(table, np.int32) for table in ([1 if begin else 0], [1], [0, 0], [], [])),
            earlier_ids=np.array([37, 38, 39], np.int32) + begin if begin else None,
        )

    return [batch(0, NUM_TOKENS), batch(NUM_TOKENS, NUM_TOKENS + 1)]


CASES = {
    "gptoss": (small("gptoss"), "mxfp4"),
    "mimov2": (windowed("mimov2"), "q8_0"),
    "laguna": (small("laguna"), "q8_0"),
    "mistral4": (small("mistral4"), "q8_0"),
    "step35": (
        windowed("step35", limits=replace(PRESETS["step35"].limits, experts=(0.0, 0.5), shared=(0.5, 1.0))),
        "q8_0",
    ),
    "v3": (small("v3"), "q8_0"),
    "kimilinear": (small("kimilinear", kimi_delta=TinyKimiDelta(attention_layers=(1,))), "q8_0"),
    "glm53flash": (
        small(
            "glm53flash",
            index=TinyIndex(top_k=8, pool=4),
            kimi_delta=TinyKimiDelta(attention_layers=(1,), lower_bound=-5.0),
            limits=TinyLimits(experts=(0.5, 0.5), shared=(0.5, 0.5)),
        ),
        "q8_0",
    ),
    "qwen38flashnext": (
        small(
            "qwen38flashnext",
            index=TinyIndex(num_heads=4, key_dim=64, top_k=8, pool=4),
            delta_net=TinyDeltaNet(beta_layout="split", interval=2),
            stream=GatedStreamSpec(num_rows=4, rank=32),
            ngram=TinyNgram(layer=0, heads_per_length=1),
            expert_dim=96,
        ),
        "q8_0",
    ),
    "v4": (
        small(
            "v4",
            index=TinyIndex(key_dim=32, top_k=2),
            compressed=TinyCompressed(ratios=(4, 128), num_hashed=1, head_dim=64, window=8),
            limits=TinyLimits(experts=(0.5, 0.5), shared=(0.5, 0.5)),
        ),
        "q8_0",
    ),
}


# One with grouped-query attention, windows and sinks, one with latent attention and recurrent layers, one of these with
# hyper-connections and pools, one with gated rows, blocks of positions and n-grams, and one with compressed entries.
@pytest.mark.parametrize(
    "arch",
    [
        *("gptoss", "kimilinear", "glm53flash", "qwen38flashnext", "v4"),
        *if_long("laguna", "mistral4", "mimov2", "step35", "v3"),
    ],
)
def test_a_gpus_kernels_give_the_logits_of_torchs_operations(
    written: MakeTiny, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, quant = CASES[arch]
    file = written(arch=arch, quant=quant, overrides=shape).gguf
    options: dict[str, Any] = {"kv_dtype": torch.float32, "stream_from_tokens": 0}
    plain = load_hybrid(file, CPU, SETTINGS, make_experts=FloatExperts, **options)
    expected = [plain.forward(batch, lambda: None).copy() for batch in batches()]
    interpret_kernels(monkeypatch)
    model = load_hybrid(file, CPU, SETTINGS, **options)
    for batch, logits in zip(batches(), expected, strict=True):
        found = model.forward(batch, lambda: None)
        np.testing.assert_allclose(found, logits, rtol=0, atol=MAX_DIFFERENCE * np.abs(logits).max())


@pytest.mark.parametrize("arch", ["gptoss", "v3"])
def test_a_cache_of_8_bits_gives_nearly_the_logits_of_one_of_32(
    written: MakeTiny, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels and torch's operations round the same numbers, some of which are between two codes. What rounding to 8
    bits changes is larger: up to 1/16 of each number."""
    shape, quant = CASES[arch]
    # All experts are used: another choice of experts would change more.
    file = written(arch=arch, quant=quant, overrides=replace(shape, num_experts_used=shape.num_experts)).gguf

    def logits(dtype: torch.dtype, **options: Any) -> list[np.ndarray]:
        model = load_hybrid(file, CPU, SETTINGS, kv_dtype=dtype, stream_from_tokens=0, **options)
        return [model.forward(batch, lambda: None).copy() for batch in batches()]

    exact, plain = (logits(dtype, make_experts=FloatExperts) for dtype in (torch.float32, torch.float8_e4m3fn))
    interpret_kernels(monkeypatch)
    for found, torchs, of_32_bits in zip(logits(torch.float8_e4m3fn), plain, exact, strict=True):
        largest = np.abs(of_32_bits).max()
        assert np.abs(found - torchs).max() <= 0.01 * largest
        assert 1e-4 * largest < np.abs(torchs - of_32_bits).max() <= 0.1 * largest
