"""A CPU's cache of half precision: logits near those of float32, the same bits however a text is computed, and copies
of its blocks.

Tolerance: numbers are rounded by 2⁻¹¹ once. Relative errors of logits are up to 1e-3 on random models; errors in the
addressing or the conversion of rows are above 0.1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.model.kv_pool import KvPool
from ballast.model.layers.plane import KvType, Plane
from ballast.model.metadata import read_spec
from ballast.model.tiers.cache_blocks import PoolBlocks
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.generate import Generated, generate
from devkit.kernels.isas import FAST_ISAS, isa_params
from devkit.long import spread
from devkit.models.written import MakeTiny
from runtime.model.test_against_oracle import RecordingRunner, make_prompt, relative_errors

MOST_ERROR = 5e-3
SETTINGS = EngineSettings(
    cache_lens=512,
    max_batch_size=1,
    max_new_tokens=64,
    chunk_size=64,
    prefill_chunk_size=64,
    max_queue=4,
    block_tokens=16,
    activation_bytes=2,
)
# Grouped heads; windows and sinks; latents; index keys; pools of them; recurrent layers; blocks of keys; entries.
ARCHS = ["qwen3", "gptoss", "v3", "v32", "glm53flash", "qwen3next", "qwen38flashnext", "v4"]


def logits_of(
    gguf: GgufModel, settings: EngineSettings, num_passes: int = 1
) -> list[tuple[Generated, dict[int, np.ndarray]]]:
    """Of each pass over the prompt the reply, and the logits by position; later passes read a cached prefix."""
    spec = read_spec(gguf, None)
    runner = RecordingRunner(load_runner(gguf, spec, spec.vocab_size, settings))
    core = EngineCore(runner, scheduler_config(settings))
    found = []
    for seq in range(1, 1 + num_passes):
        runner.seen = {}
        request = Request("half", make_prompt(), SamplingParams(max_tokens=8, temperature=0.0))
        [result] = generate(core, [request], first_seq=seq)
        found.append((result, runner.seen))
    return found


@pytest.mark.parametrize("arch", ARCHS)
def test_logits_are_near_those_of_a_float32_cache(written: MakeTiny, arch: str) -> None:
    gguf = open_gguf(written(arch=arch, quant="f32").gguf)
    prompt = range(len(make_prompt()))
    rows = {}
    for kv_type in ("fp32", "fp16"):
        [(_, seen)] = logits_of(gguf, replace(SETTINGS, kv_type=kv_type, cpu_isa="reference"))
        rows[kv_type] = np.stack([seen[position] for position in prompt])
    errors = relative_errors(rows["fp16"], rows["fp32"])
    assert 0 < np.median(errors) < MOST_ERROR / 5
    # Another choice of an expert or a position changes a token more, and those after it.
    assert np.mean(errors > MOST_ERROR) < 0.2


@pytest.mark.parametrize(("arch", "isa"), spread(ARCHS, isa_params(*FAST_ISAS, "reference")))
def test_logits_do_not_depend_on_chunks_and_cached_prefixes(written: MakeTiny, arch: str, isa: str) -> None:
    gguf = open_gguf(written(arch=arch, quant="q8_0").gguf)
    settings = replace(SETTINGS, kv_type="fp16", cpu_isa=isa)
    (whole, expected), (again, of_rest) = logits_of(gguf, settings, num_passes=2)
    [(_, in_chunks)] = logits_of(gguf, replace(settings, chunk_size=7, prefill_chunk_size=7))
    assert again.cached_tokens > 0
    assert again.token_ids == whole.token_ids
    for seen in (of_rest, in_chunks):
        for position, row in seen.items():
            np.testing.assert_array_equal(row, expected[position])


def test_blocks_are_copied_with_their_bytes_and_are_not_those_of_float32() -> None:
    rng = np.random.default_rng(0)
    planes = [[Plane("keys", 24), Plane("values", 20)], [Plane("latent", 12)]]
    pools: dict[KvType, KvPool] = {kv: KvPool(planes, 6, 16, None, kv) for kv in ("fp32", "fp16")}
    pool = pools["fp16"]
    for of_layer in pool.layers:
        for plane in of_layer:
            plane[:] = rng.standard_normal(plane.shape)
    blocks = PoolBlocks(pool)
    assert blocks.block_bytes == 16 * (24 + 20 + 12) * 2
    assert blocks.layout != PoolBlocks(pools["fp32"]).layout
    [memory] = blocks.new_memory(1)
    blocks.copy_out([3], [memory])
    blocks.copy_in([5], [memory])
    for of_layer in pool.layers:
        for plane in of_layer:
            np.testing.assert_array_equal(plane[5 * 16 : 6 * 16], plane[3 * 16 : 4 * 16])
    assert pool.nbytes * 2 == pools["fp32"].nbytes
