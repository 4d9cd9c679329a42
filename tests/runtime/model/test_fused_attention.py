"""Files with fused query-key-value tensors produce bit-identical results to files with separate tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ballast._core import kernels
from ballast.engine.request import Request, SamplingParams
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.metadata import read_spec
from ballast.tiny.presets import MIMO_V2
from ballast.weights.gguf import open_gguf
from devkit.generate import generate
from devkit.models.gguf_files import Tensors, copy_model
from devkit.models.small_core import core_of
from devkit.models.written import MakeTiny


def separate(tensors: Tensors) -> Tensors:
    heads, found = MIMO_V2.heads, dict(tensors)
    assert heads is not None
    for name in tensors:
        block, is_fused, _ = name.partition(".attn_qkv.")
        if is_fused:
            rows, kind = found.pop(name)
            queries, keys = MIMO_V2.num_heads * heads.head_dim, heads.kv_heads(int(block[4:])) * heads.head_dim
            parts = np.split(rows, [queries, queries + keys])
            found |= {f"{block}.attn_{name}.weight": (part, kind) for name, part in zip("qkv", parts, strict=True)}
    return found


@pytest.mark.parametrize("isa", kernels.usable_isas())
@pytest.mark.parametrize("quant", ["f32", "q4_k", "mxfp4"])
def test_a_file_of_separate_tensors_gives_the_same_text(
    tmp_path: Path, written: MakeTiny, quant: str, isa: str
) -> None:
    fused = written(arch="mimov2", quant=quant).gguf
    texts = []
    for path in (fused, copy_model(fused, tmp_path / "apart.gguf", separate)):
        mixers = read_spec(open_gguf(path)).mixers
        assert all(isinstance(mixer, GroupedSpec) and mixer.fuses_qkv == (path == fused) for mixer in mixers)
        sampling = SamplingParams(max_tokens=12, temperature=0.0)
        requests = [Request(str(i), tuple(range(5 * i, 5 * i + 40)), sampling) for i in range(4)]
        texts.append([result.token_ids for result in generate(core_of(path, isa), requests)])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1
