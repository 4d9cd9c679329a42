"""The tool that writes models for speed measurements."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.model.metadata import read_spec
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors, expected_tensors
from ballast.text.gguf_vocab import tokenizer_from_gguf
from ballast.weights.gguf import open_gguf
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import common_types
from devkit.models.specs.deepseek import R1_SPEC, V32_671B_SPEC
from devkit.models.specs.qwen3 import QWEN3_30B_SPEC
from tools.synthetic_model import V2_LITE, write_random_model

V32 = changed(V32_671B_SPEC, num_layers=2, num_dense_layers=1, num_heads=4, num_groups=1, num_groups_used=1)


@pytest.mark.parametrize("shape", [V2_LITE, QWEN3_30B_SPEC, V32], ids=["v2-lite", "qwen3-30b", "v3.2"])
def test_a_random_model_has_the_requested_shape_and_types_and_can_be_served(tmp_path: Path, shape: ModelSpec) -> None:
    requested = changed(shape, num_layers=2, vocab_size=512, hidden=256, dense_width=352, num_experts=8, width=352)
    write_random_model(tmp_path / "model.gguf", requested, seed=0)
    gguf = open_gguf(tmp_path / "model.gguf")
    spec = read_spec(gguf)
    check_tensors(gguf, spec)
    assert expected_tensors(spec) == expected_tensors(requested)
    types = common_types(requested)
    assert {name: gguf.tensors[name].ggml_type for name in types} == types
    assert not np.array_equal(*(np.asarray(gguf.data(f"blk.1.ffn_{name}_exps.weight")) for name in ("gate", "up")))
    settings = EngineSettings(
        cache_lens=256, max_batch_size=1, max_new_tokens=4, chunk_size=64, prefill_chunk_size=64, max_queue=1
    )
    core = EngineCore(load_runner(gguf, spec, spec.vocab_size, settings), scheduler_config(settings))
    core.add(1, Request("one", (1, 2, 3), SamplingParams(max_tokens=2, temperature=0.0)), seed=0)
    events = [event for _ in range(2) for event in core.step().events]
    assert [event.finish_reason for event in events][-1] is not None


def test_a_hollow_model_has_all_weights_except_experts_and_takes_little_disk(tmp_path: Path) -> None:
    requested = changed(
        R1_SPEC, num_layers=5, vocab_size=512, hidden=256, dense_width=512, num_heads=2, num_experts=16, width=4096
    )
    file = tmp_path / "model.gguf"
    write_random_model(file, requested, seed=0, experts=GgmlType.Q2_K, is_hollow=True)
    gguf = open_gguf(file)
    check_tensors(gguf, read_spec(gguf))
    experts = gguf.tensors["blk.4.ffn_down_exps.weight"]
    assert experts.ggml_type == GgmlType.Q2_K
    assert not gguf.data(experts.name).any()
    for name in ("blk.4.ffn_gate_inp.weight", "blk.1.attn_output.weight", "token_embd.weight", "output.weight"):
        assert gguf.data(name).any(), name
    assert file.stat().st_blocks * 512 < sum(info.num_bytes for info in gguf.tensors.values()) / 2


def test_a_model_may_have_a_vocabulary_of_its_size(tmp_path: Path) -> None:
    requested = changed(V2_LITE, num_layers=2, vocab_size=512, hidden=256, dense_width=352, num_experts=8, width=352)
    file = tmp_path / "model.gguf"
    write_random_model(file, requested, seed=0, has_vocabulary=True)
    gguf = open_gguf(file)
    assert read_spec(gguf).vocab_size == 512
    tokenizer = tokenizer_from_gguf(gguf.metadata, file.name)
    assert len(gguf.metadata["tokenizer.ggml.tokens"]) == 512
    assert tokenizer.decode([2, 3]) == " word0 word1"
    text = "the\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_experts_with_partial_blocks_have_the_type_of_published_files(tmp_path: Path) -> None:
    requested = changed(
        V2_LITE,
        num_layers=2,
        vocab_size=512,
        hidden=256,
        dense_width=512,
        num_heads=2,
        num_experts=8,
        width=96,
    )
    file = tmp_path / "model.gguf"
    write_random_model(file, requested, seed=0, experts=GgmlType.IQ2_XXS)
    gguf = open_gguf(file)
    check_tensors(gguf, read_spec(gguf))
    types = {name: gguf.tensors[f"blk.1.ffn_{name}_exps.weight"].ggml_type for name in ("gate", "up", "down")}
    assert types == {"gate": GgmlType.IQ2_XXS, "up": GgmlType.IQ2_XXS, "down": GgmlType.IQ4_NL}
