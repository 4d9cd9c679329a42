"""Files of Qwen3.8-Flash-Next: a gated stream, attention to chosen blocks, and an n-gram embedding."""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from ballast.errors import ModelError
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.stream import GatedStreamSpec
from ballast.model.metadata import HfConfig, read_spec
from ballast.model.modules import module_tree
from ballast.model.spec import ModelSpec
from ballast.model.tensors import NGRAM_TABLE, check_tensors, expected_tensors
from ballast.weights.gguf import open_gguf
from devkit.models.gguf_files import write_hollow_model, write_model
from devkit.models.read_back import read_back
from devkit.models.specs.qwen3 import FLASH_NEXT_125B_SPEC, FLASH_NEXT_SPEC


def exact(spec: ModelSpec) -> ModelSpec:
    """The spec without the number that files round."""
    assert math.isclose(spec.rms_eps, FLASH_NEXT_SPEC.rms_eps, rel_tol=1e-6)
    return replace(spec, rms_eps=0.0)


def merged(spec: ModelSpec) -> ModelSpec:
    """With all tensors merged that files may merge."""
    layers = []
    for layer in spec.layers:
        mixer = layer.mixer
        if isinstance(mixer, DeltaNetSpec):
            mixer = replace(mixer, product_layout="merged", beta_layout="merged")
        assert isinstance(layer.stream, GatedStreamSpec)
        layers.append(replace(layer, mixer=mixer, stream=replace(layer.stream, is_merged=True)))
    return replace(spec, layers=tuple(layers))


@pytest.mark.parametrize("spec", [FLASH_NEXT_SPEC, merged(FLASH_NEXT_SPEC)], ids=["apart", "merged"])
def test_a_written_file_is_read_back_equal(tmp_path: Path, spec: ModelSpec) -> None:
    assert exact(read_back(tmp_path, spec)) == exact(spec)


def test_sizes_are_those_of_the_published_model(tmp_path: Path) -> None:
    gguf = open_gguf(write_hollow_model(tmp_path / "flash.gguf", FLASH_NEXT_125B_SPEC, {}))
    spec = read_spec(gguf)
    check_tensors(gguf, spec)
    assert exact(spec) == exact(FLASH_NEXT_125B_SPEC)
    blocks = 12 * 3 * 128 * 4  # keys of three tokens in each layer with attention
    assert spec.state_bytes == 118_038_528 + blocks
    assert 2 * sum(plane.width for planes in spec.planes for plane in planes) == 24_576 + 768
    sizes = {name: prod(tensor.shape) for name, tensor in expected_tensors(spec).items()}
    assert sizes.pop(NGRAM_TABLE) == pytest.approx(51.2e9, rel=0.001)
    assert sum(sizes.values()) == pytest.approx(125e9, rel=0.02)


def test_all_layers_with_attention_may_have_one_ratio(tmp_path: Path) -> None:
    assert exact(read_back(tmp_path, FLASH_NEXT_SPEC, {"attention.compress_ratios": 4})) == exact(FLASH_NEXT_SPEC)


def test_layers_may_attend_to_all_positions_and_embed_no_ngrams(tmp_path: Path) -> None:
    layers = []
    for layer in FLASH_NEXT_SPEC.layers:
        mixer = replace(layer.mixer, index=None) if isinstance(layer.mixer, GroupedSpec) else layer.mixer
        layers.append(replace(layer, mixer=mixer, ngram=None))
    dense = replace(FLASH_NEXT_SPEC, layers=tuple(layers))
    assert exact(read_back(tmp_path, dense)) == exact(dense)


def test_a_block_that_predicts_further_tokens_is_skipped(tmp_path: Path) -> None:
    shapes = {"blk.4.nextn.eh_proj.weight": (64, 128), "blk.4.nextn.hc_head_up.weight": (256, 32)}
    found = read_back(tmp_path, FLASH_NEXT_SPEC, {"block_count": 5, "nextn_predict_layers": 1}, shapes=shapes)
    assert exact(found) == exact(FLASH_NEXT_SPEC)


def test_placement_rules_find_the_stream_the_indexer_and_the_table() -> None:
    found = {module.name: module.classes for module in module_tree(FLASH_NEXT_SPEC)}
    assert "Qwen4ExpTextGatedDeltaNet" in found["model.layers.0.linear_attn"]
    assert "Qwen4ExpTextQSAIndexer" in found["model.layers.3.self_attn.indexer"]
    assert "Qwen4ExpTextNGramEmbedding" in found["model.layers.1.ple.ple_embedding"]
    assert "model.layers.0.ple.key_proj" not in found
    assert "model.hyper_connection_mixer.input_mix_weight_up" in found
    assert "model.norm" not in found


NGRAM = FLASH_NEXT_SPEC.ngram
assert NGRAM is not None


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"hyper_connection.count": 1}, "count=1; expected a whole number, at least 2 and at most 8"),
        ({"hyper_connection.low_rank": None}, "low_rank is missing"),
        ({"hyper_connection.low_rank": 10**6}, "low_rank=1000000; expected .* at most 65536"),
        ({"attention.compress_ratios": None}, "compress_ratios is 0 in layer 3, which has an indexer"),
        ({"attention.compress_ratios": [0, 0, 0]}, "expected a whole number for each of 4 layers, 0 for those"),
        (
            {"attention.compress_ratios": [0, 0, 0, -4]},
            "expected a whole number for each of 4 layers, 0 for those",
        ),
        ({"attention.compress_ratios": [0, 0, 0, 3]}, "expected pools of 2, 4, 8, 16 tokens"),
        ({"attention.indexer.top_k": 6}, "top_k=6; expected a multiple of 4"),
        ({"attention.indexer.key_length": 4}, "key_length=4; expected a whole number, at least 8"),
        ({"attention.indexer.head_count": 10**6}, "head_count=1000000; expected .* at most 1024"),
        ({"ple.layers": None}, "ple.layers is missing; expected the layer that adds rows"),
        ({"ple.layers": [0, 1]}, "ple.layers=.*; expected at most one layer"),
        ({"ple.layers": [3]}, "ple.layers=.*; expected a layer with recurrent state, counted from 0"),
        ({"ple.layers": [9]}, "expected a layer with recurrent state, counted from 0"),
        ({"ple.ngram_size": 1}, "ngram_size=1; expected a whole number, at least 2"),
        ({"ple.ngram_size": 5}, "ngram_size=5; expected a whole number, at least 2 and at most 4"),
        (
            {"ple.heads_per_ngram": 10**6},
            "heads_per_ngram=1000000; expected .* at most 512",
        ),
        ({"ple.heads_per_ngram": 5}, "head_vocab_sizes=.*; expected 10 whole numbers"),
        ({"ple.conv_kernel": 17}, "conv_kernel=17; expected .* at most 16"),
        ({"ple.eos_token_id": 10**6}, "eos_token_id=1000000; expected a token"),
        ({"ple.head_vocab_sizes": [0, *NGRAM.head_sizes[1:]]}, "head_vocab_sizes=.*; expected 8 whole numbers"),
        ({"ple.head_vocab_sizes": [2**62, *NGRAM.head_sizes[1:]]}, "head_vocab_sizes=.*at least 1 and at most 640"),
        (
            {"ple.head_offsets": [*NGRAM.head_offsets[:-1], 639]},
            "head 7 has .* rows from row 639 on; the table has 640",
        ),
        ({"ple.layer_multipliers": [1, 2]}, "layer_multipliers=.*; expected 3 whole numbers"),
        ({"ple.layer_multipliers": [1, 2, 2**63]}, "layer_multipliers=.*; expected 3 whole numbers, at least 1"),
        (
            {"embedding_length_per_layer_input": 16},
            r"found shape \(640, 8\); expected a matrix with rows of 16 numbers",
        ),
    ],
)
def test_senseless_and_absurd_sizes_are_refused(tmp_path: Path, keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        read_back(tmp_path, FLASH_NEXT_SPEC, keys)


def test_a_table_that_is_missing_or_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="found nothing; expected a matrix with rows of 8 numbers"):
        read_back(tmp_path, FLASH_NEXT_SPEC, shapes={NGRAM_TABLE: None})
    with pytest.raises(ModelError, match=r"head_(vocab_sizes|offsets).*(at most 100|the table has 100 rows)"):
        read_back(tmp_path, FLASH_NEXT_SPEC, shapes={NGRAM_TABLE: (100, 8)})


def test_a_table_whose_row_ids_exceed_32_bits_is_refused(tmp_path: Path) -> None:
    ngram = replace(NGRAM, table_rows=2**31)
    layers = tuple(replace(layer, ngram=layer.ngram and ngram) for layer in FLASH_NEXT_SPEC.layers)
    file = write_hollow_model(tmp_path / "model.gguf", replace(FLASH_NEXT_SPEC, layers=layers), {})
    with pytest.raises(ModelError, match=f"{NGRAM_TABLE}.* has 2147483648 rows; expected at most 2147483647"):
        read_spec(open_gguf(file))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("linear_num_value_heads", 6),
        ("hc_count", 4),
        ("hc_lowrank", 32),
        ("indexer_n_heads", 2),
        ("indexer_head_dim", 16),
        ("indexer_compress_ratio", 4),
    ],
)
def test_config_json_must_agree(tmp_path: Path, name: str, found: int) -> None:
    gguf = open_gguf(write_model(tmp_path / "model.gguf", FLASH_NEXT_SPEC))
    read_spec(gguf, HfConfig.model_validate({name: found}))
    with pytest.raises(ModelError, match=rf"{name} is {found} in this file and 9 in config\.json"):
        read_spec(gguf, HfConfig.model_validate({name: 9}))
