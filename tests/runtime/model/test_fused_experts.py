"""A file with fused gate and up expert tensors produces the same text as one with separate tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ballast._core import kernels
from ballast.engine.request import Request, SamplingParams
from ballast.model.metadata import read_spec
from ballast.weights.gguf import open_gguf
from devkit.generate import generate
from devkit.long import spread
from devkit.models.changed_spec import experts_of
from devkit.models.gguf_files import Tensors, copy_model
from devkit.models.small_core import core_of
from devkit.models.written import MakeTiny


def fuse(tensors: Tensors) -> Tensors:
    """Fuse each layer's ffn_gate_exps and ffn_up_exps: for each expert the rows of gate, then those of up."""
    fused = {}
    for name, (data, kind) in tensors.items():
        if "ffn_gate_exps" in name:
            up, _ = tensors[name.replace("gate", "up")]
            fused[name.replace("gate", "gate_up")] = np.concatenate([data, up], axis=1), kind
        elif "ffn_up_exps" not in name:
            fused[name] = data, kind
    return fused


@pytest.mark.parametrize(
    ("arch", "quant", "isa"),
    spread(
        [("v3", "q4_k"), ("v2lite", "q8_0"), ("gptoss", "mxfp4"), ("step35", "q4_k"), ("mistral4", "q4_k")],
        kernels.usable_isas(),
    ),
)
def test_a_fused_file_gives_the_same_text(tmp_path: Path, written: MakeTiny, arch: str, quant: str, isa: str) -> None:
    apart = written(arch=arch, quant=quant).gguf
    texts = []
    for path in (apart, copy_model(apart, tmp_path / "fused.gguf", fuse)):
        assert experts_of(read_spec(open_gguf(path))).is_fused == (path != apart)
        core = core_of(path, isa)
        sampling = SamplingParams(max_tokens=12, temperature=0.0)
        requests = [Request(str(i), tuple(range(5 * i, 5 * i + 20)), sampling) for i in range(6)]
        texts.append([result.token_ids for result in generate(core, requests)])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1
