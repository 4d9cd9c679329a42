"""The tool that writes models for speed measurements."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType
from gguf import GGUFReader, GGUFValueType

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.families.registry import RELEASES
from ballast.model.metadata import read_spec
from ballast.model.tensors import check_tensors, expected_tensors
from ballast.text.gguf_vocab import tokenizer_from_gguf
from ballast.text.loading import load_text
from ballast.weights.gguf import open_gguf
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import common_types, write_model
from devkit.models.quant_recipes import mxfp4_types, q4_k_m_types
from devkit.models.specs.deepseek import R1_SPEC
from devkit.models.specs.gpt_oss import GPT_OSS_20B_SPEC
from devkit.models.specs.qwen3 import FLASH_NEXT_SPEC, QWEN35_35B_SPEC, with_small_table
from tools.synthetic_model import (
    SHAPES,
    V2_LITE,
    Shape,
    first_attention,
    made_up_vocabulary,
    main,
    write_random_model,
)


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "r1"])
def test_a_random_model_has_the_requested_shape_and_types_and_can_be_served(tmp_path: Path, name: str) -> None:
    whole = SHAPES[name].spec
    requested = changed(
        whole,
        num_layers=1 + max(1, first_attention(whole)),
        num_dense_layers=min(1, whole.routed_layers[0]),
        vocab_size=512,
        hidden=256,
        dense_width=352,
        num_experts=16,
        num_groups=1,
        num_groups_used=1,
        width=352,
    )
    requested = with_small_table(requested)
    shape = SHAPES[name]._replace(spec=requested)
    write_random_model(tmp_path / "model.gguf", shape, seed=0)
    gguf = open_gguf(tmp_path / "model.gguf")
    spec = read_spec(gguf)
    check_tensors(gguf, spec)
    assert expected_tensors(spec) == expected_tensors(requested)
    types = shape.types(requested)
    assert {name: gguf.tensors[name].ggml_type for name in types} == types
    assert not np.array_equal(*(np.asarray(gguf.data(f"blk.1.ffn_{name}_exps.weight")) for name in ("gate", "up")))
    # llama.cpp takes the experts' width from it if no key names that.
    assert gguf.metadata[f"{requested.architecture.name}.feed_forward_length"] == 352
    rates = [np.asarray(gguf.data(each)).view(np.float32) for each in gguf.tensors if each.endswith("ssm_a")]
    assert all((rate < 0).all() for rate in rates)
    settings = EngineSettings(
        cache_lens=256, max_batch_size=1, max_new_tokens=4, chunk_size=64, prefill_chunk_size=64, max_queue=1
    )
    core = EngineCore(load_runner(gguf, spec, spec.vocab_size, settings), scheduler_config(settings))
    core.add(1, Request("one", (1, 2, 3), SamplingParams(max_tokens=2, temperature=0.0)), seed=0)
    events = [event for _ in range(2) for event in core.step().events]
    assert [event.finish_reason for event in events][-1] is not None


def test_files_of_flash_next_list_rows_and_multipliers_in_64_bits(tmp_path: Path) -> None:
    """llama.cpp requires it, also for lists of small numbers."""
    file = write_model(tmp_path / "model.gguf", FLASH_NEXT_SPEC)
    fields = GGUFReader(file).fields
    for name in ("head_offsets", "head_vocab_sizes", "layer_multipliers"):
        assert fields[f"qwen4exp.ple.{name}"].types[-1] == GGUFValueType.UINT64
    assert fields["qwen4exp.ple.layers"].types[-1] == GGUFValueType.INT32


def test_types_are_those_that_llama_quantize_chooses_for_q4_k_m() -> None:
    """Of 40 layers the first and the last five have more bits, and each third between them."""
    types = q4_k_m_types(QWEN35_35B_SPEC)
    fine = {*range(5), *range(7, 35, 3), *range(35, 40)}
    for layer in range(40):
        values = "attn_v" if layer % 4 == 3 else "attn_qkv"
        for name in (values, "ffn_down_exps", "ffn_down_shexp"):
            expected = GgmlType.Q6_K if layer in fine else GgmlType.Q4_K
            assert types.pop(f"blk.{layer}.{name}.weight") == expected, (layer, name)
    assert types.pop("output.weight") == GgmlType.Q6_K
    assert set(types.values()) == {GgmlType.Q4_K}
    stems = {name.split(".", 2)[2] for name in types if name.startswith("blk.")}
    names = ("attn_q", "attn_k", "attn_output", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_out")
    names += ("ffn_gate_exps", "ffn_up_exps", "ffn_gate_shexp", "ffn_up_shexp")
    assert stems == {f"{name}.weight" for name in names}


def test_rows_of_partial_blocks_have_the_type_that_replaces_theirs() -> None:
    types = q4_k_m_types(changed(V2_LITE, num_layers=4))
    found = {types[f"blk.{layer}.ffn_down_exps.weight"].name for layer in (1, 2, 3)}
    assert found == {"Q5_0", "Q8_0"}


def test_gpt_oss_has_the_types_of_published_files() -> None:
    types = mxfp4_types(GPT_OSS_20B_SPEC)
    assert types.pop("output.weight") == types.pop("token_embd.weight") == GgmlType.Q8_0
    for name, kind in types.items():
        assert kind == (GgmlType.MXFP4 if "_exps.weight" in name else GgmlType.Q8_0), name
    assert "blk.0.ffn_gate_inp.weight" not in types
    assert len(types) == 24 * 7


def test_a_hollow_model_has_all_weights_except_experts_and_takes_little_disk(tmp_path: Path) -> None:
    requested = changed(
        R1_SPEC, num_layers=5, vocab_size=512, hidden=256, dense_width=512, num_heads=2, num_experts=16, width=4096
    )
    file = tmp_path / "model.gguf"
    write_random_model(file, Shape(requested, common_types), seed=0, experts=GgmlType.Q2_K, is_hollow=True)
    gguf = open_gguf(file)
    check_tensors(gguf, read_spec(gguf))
    experts = gguf.tensors["blk.4.ffn_down_exps.weight"]
    assert experts.ggml_type == GgmlType.Q2_K
    assert not gguf.data(experts.name).any()
    for name in ("blk.4.ffn_gate_inp.weight", "blk.1.attn_output.weight", "token_embd.weight", "output.weight"):
        assert gguf.data(name).any(), name
    assert file.stat().st_blocks * 512 < sum(info.num_bytes for info in gguf.tensors.values()) / 2


def test_skewed_routers_prefer_experts_in_an_order_of_each_layer(tmp_path: Path) -> None:
    requested = changed(
        R1_SPEC, num_layers=5, vocab_size=512, hidden=256, dense_width=512, num_heads=2, num_experts=16, width=256
    )
    file = tmp_path / "model.gguf"
    write_random_model(file, Shape(requested, common_types), seed=0, is_hollow=True, skew=0.2)
    gguf = open_gguf(file)
    check_tensors(gguf, read_spec(gguf))
    biases = [gguf.data(f"blk.{layer}.exp_probs_b.bias").view(np.float32) for layer in (3, 4)]
    expected = 0.2 * np.log(16 / np.arange(1, 17))
    for bias in biases:
        np.testing.assert_allclose(np.sort(bias)[::-1], expected, rtol=1e-6)
    assert not np.array_equal(*biases)


def test_a_skew_without_biases_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["", str(tmp_path / "model.gguf"), "--layers", "2", "--skew", "1"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert not (tmp_path / "model.gguf").exists()


def test_a_model_may_have_a_vocabulary_of_its_size(tmp_path: Path) -> None:
    requested = changed(V2_LITE, num_layers=2, vocab_size=512, hidden=256, dense_width=352, num_experts=8, width=352)
    file = tmp_path / "model.gguf"
    write_random_model(file, Shape(requested, common_types), seed=0, has_vocabulary=True)
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
    write_random_model(file, Shape(requested, common_types), seed=0, experts=GgmlType.IQ2_XXS)
    gguf = open_gguf(file)
    check_tensors(gguf, read_spec(gguf))
    types = {name: gguf.tensors[f"blk.1.ffn_{name}_exps.weight"].ggml_type for name in ("gate", "up", "down")}
    assert types == {"gate": GgmlType.IQ2_XXS, "up": GgmlType.IQ2_XXS, "down": GgmlType.IQ4_NL}


@pytest.mark.parametrize(
    ("architecture", "release"), [("qwen3next", "qwen3-coder-next"), ("qwen35moe", "qwen3.5"), ("qwen4exp", "qwen3.5")]
)
def test_a_vocabulary_has_the_tokens_of_its_chat_template(architecture: str, release: str) -> None:
    text = load_text(None, made_up_vocabulary(1024, architecture), "made-up.gguf")
    assert text.require_template().release == RELEASES[release][1]
    for token in ("<|im_start|>", "<|im_end|>", "<tool_call>"):
        assert len(text.tokenizer.encode(token)) == 1
    assert text.tokenizer.vocab_size == 1024
