"""Files with a NaN or an infinity in a norm, a bias or a matrix that selects positions are refused when loaded, and
those whose states would grow."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from ballast.engine.startup.build import EngineSettings
from ballast.errors import ModelError
from devkit.models.float_hybrid import CPU, load_hybrid
from devkit.models.gguf_files import Tensors, copy_model
from devkit.models.small_core import core_of
from devkit.models.written import tiny_model

SETTINGS = EngineSettings(
    cache_lens=256,
    max_batch_size=1,
    max_new_tokens=8,
    chunk_size=16,
    prefill_chunk_size=16,
    max_queue=1,
    block_tokens=16,
    cpu_threads=1,
)


def damaged(folder: Path, arch: str, name: str, value: float) -> Path:
    """A tiny model whose tensor `name` has `value` as its last number."""

    def damage(tensors: Tensors) -> Tensors:
        data, kind = tensors[name]
        values = np.array(gguf.quants.dequantize(data, kind), dtype=np.float32)
        values.flat[-1] = value
        return tensors | {name: (values, gguf.GGMLQuantizationType.F32)}

    return copy_model(tiny_model(arch=arch, quant="q8_0").gguf, folder / "damaged.gguf", damage)


@pytest.mark.parametrize(
    ("arch", "name", "value"),
    [
        ("v32", "blk.1.indexer.proj.weight", np.nan),
        ("v32", "blk.1.indexer.k_norm.bias", np.inf),
        ("v32", "blk.1.indexer.k_norm.weight", -np.inf),
        ("v32", "blk.0.attn_norm.weight", np.nan),
        ("v32", "blk.1.ffn_norm.weight", np.inf),
        ("v32", "blk.2.attn_q_a_norm.weight", np.nan),
        ("v32", "blk.1.exp_probs_b.bias", np.nan),
        ("v32", "output_norm.weight", np.nan),
        ("glm53flash", "blk.0.ssm_dt.bias", np.inf),
        ("glm53flash", "blk.3.hc_ffn_base.weight", np.nan),
    ],
)
def test_values_that_are_not_finite_are_found_by_name(tmp_path: Path, arch: str, name: str, value: float) -> None:
    file = damaged(tmp_path, arch, name, value)
    message = rf"{re.escape(name)}: 1 of \d+ values are NaN or infinite; the file is damaged"
    with pytest.raises(ModelError, match=message):
        core_of(file)
    with pytest.raises(ModelError, match=message):
        load_hybrid(file, CPU, SETTINGS)


@pytest.mark.parametrize("arch", ["qwen3next", "kimilinear"])
def test_a_rate_with_which_a_state_would_grow_is_refused(tmp_path: Path, arch: str) -> None:
    file = damaged(tmp_path, arch, "blk.0.ssm_a", 0.5)
    message = r"blk\.0\.ssm_a: has 0\.5; expected -exp\(A_log\), which is at most 0"
    with pytest.raises(ModelError, match=message):
        core_of(file)
    with pytest.raises(ModelError, match=message):
        load_hybrid(file, CPU, SETTINGS)
