"""A file with gate and up of the experts in one tensor gives the same text as one with separate tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ballast._core import kernels
from ballast.engine.build import EngineSettings, scheduler_config
from ballast.engine.core import EngineCore
from ballast.engine.loading import load_runner
from ballast.engine.request import Request, SamplingParams
from ballast.model.metadata import read_spec
from ballast.model.tensors import check_tensors
from ballast.tiny import write_tiny_model
from ballast.weights.gguf import open_gguf
from support.generate import generate
from support.models.gguf_files import Tensors, copy_model


def fuse(tensors: Tensors) -> Tensors:
    """Each layer's ffn_gate_exps and ffn_up_exps as one tensor: gate's rows of an expert, then up's."""
    fused = {}
    for name, (data, kind) in tensors.items():
        if "ffn_gate_exps" in name:
            up, _ = tensors[name.replace("gate", "up")]
            fused[name.replace("gate", "gate_up")] = np.concatenate([data, up], axis=1), kind
        elif "ffn_up_exps" not in name:
            fused[name] = data, kind
    return fused


@pytest.mark.parametrize("isa", kernels.usable_isas())
@pytest.mark.parametrize(("arch", "quant"), [("v3", "q4_k"), ("v2lite", "q8_0")])
def test_a_fused_file_gives_the_same_text(tmp_path: Path, arch: str, quant: str, isa: str) -> None:
    apart = write_tiny_model(tmp_path, arch=arch, quant=quant).gguf
    texts = []
    for path in (apart, copy_model(apart, tmp_path / "fused.gguf", fuse)):
        model = open_gguf(path)
        spec = read_spec(model)
        check_tensors(model, spec)
        assert spec.fused_experts == (path != apart)
        settings = EngineSettings(
            cache_lens=1024,
            max_batch_size=4,
            max_new_tokens=16,
            chunk_size=64,
            prefill_chunk_size=64,
            max_queue=8,
            cpu_threads=2,
            cpu_isa=isa,
            activation_bytes=2,
        )
        core = EngineCore(load_runner(model, spec, spec.vocab_size, settings), scheduler_config(settings))
        sampling = SamplingParams(max_tokens=12, temperature=0.0)
        requests = [Request(str(i), tuple(range(5 * i, 5 * i + 20)), sampling) for i in range(6)]
        texts.append([result.token_ids for result in generate(core, requests)])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1
