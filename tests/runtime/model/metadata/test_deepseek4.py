"""Files of DeepSeek V4: compressed entries, hyper-connections that end in weights, and tables of experts."""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType
from gguf import GGUFReader

from ballast._core import kernels
from ballast.errors import ModelError
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.metadata import HfConfig, read_spec
from ballast.model.modules import module_tree
from ballast.model.packed_tensors import Packing
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors, expected_tensors
from ballast.model.weights import load_weights
from ballast.plan.gpus.device import kv_row_bytes
from ballast.weights.gguf import open_gguf
from devkit.models.gguf_files import write_hollow_model, write_model
from devkit.models.read_back import read_back
from devkit.models.specs.deepseek4 import V4_FLASH_SPEC, V4_PRO_SPEC, V4_SPEC


def plain(spec: ModelSpec) -> ModelSpec:
    """The spec without the numbers that files round."""
    assert spec.stream is not None
    assert math.isclose(spec.stream.eps, 1e-6, rel_tol=1e-6)
    layers = tuple(replace(layer, stream=replace(spec.stream, eps=0.0)) for layer in spec.layers)
    return replace(spec, layers=layers, rms_eps=0.0)


def mixers_of(spec: ModelSpec) -> list[CompressedSpec]:
    return [layer.mixer for layer in spec.layers if isinstance(layer.mixer, CompressedSpec)]


def test_a_written_file_is_read_back_equal(tmp_path: Path) -> None:
    assert plain(read_back(tmp_path, V4_SPEC)) == plain(V4_SPEC)
    assert len(V4_SPEC.ropes) == 2


@pytest.mark.parametrize(
    ("spec", "kinds", "parameters", "state_bytes"),
    [
        # Windows, and for each column of entries and index keys the maximum, the sum and the total of a softmax.
        (V4_FLASH_SPEC, (2, 21, 20), 284.3e9, 4 * (43 * 128 * 512 + 21 * 3 * (1024 + 256) + 20 * 3 * 512)),
        (V4_PRO_SPEC, (0, 30, 31), 1573e9, 4 * (61 * 128 * 512 + 30 * 3 * (1024 + 256) + 31 * 3 * 512)),
    ],
    ids=("flash", "pro"),
)
def test_sizes_are_those_of_the_published_models(
    tmp_path: Path, spec: ModelSpec, kinds: tuple[int, int, int], parameters: float, state_bytes: int
) -> None:
    gguf = open_gguf(write_hollow_model(tmp_path / "whole.gguf", spec, {}))
    found = read_spec(gguf)
    check_tensors(gguf, found)
    assert plain(found) == plain(spec)
    ratios = [mixer.ratio for mixer in mixers_of(found)]
    assert tuple(map(ratios.count, (0, 4, 128))) == kinds
    assert found.state_bytes == state_bytes
    per_token = kinds[1] * (512 + 128) // 4 + kinds[2] * 512 // 16
    assert kv_row_bytes(found, "fp32") == 4 * per_token
    assert sum(prod(tensor.shape) for tensor in expected_tensors(found).values()) == pytest.approx(parameters, rel=0.01)


def test_ratios_of_blocks_that_predict_further_tokens_are_ignored(tmp_path: Path) -> None:
    found = read_back(tmp_path, V4_SPEC, {"attention.compress_ratios": [0, 4, 128, 4, 77]})
    assert plain(found) == plain(V4_SPEC)


def test_yarn_is_of_layers_with_entries_alone_and_without_its_factor(tmp_path: Path) -> None:
    found = read_back(tmp_path, V4_SPEC, {"rope.scaling.yarn_attn_factor": 1.3})
    plain_rope, *others = (mixer.rope for mixer in mixers_of(found))
    assert plain_rope.yarn is None
    assert {rope.yarn.attention_factor for rope in others if rope.yarn is not None} == {1.0}


def test_limits_of_experts_are_those_of_shared_experts_as_well(tmp_path: Path) -> None:
    found = read_back(tmp_path, V4_SPEC, {"swiglu_clamp_shexp": None, "swiglu_clamp_exp": 3.0})
    units = {(layer.experts.unit, layer.experts.shared_unit) for layer in found.layers if layer.experts is not None}
    assert [(own.limit, own.limits_input) for pair in units for own in pair if own] == [(3.0, True)] * 2


def test_layers_with_tables_have_no_bias(tmp_path: Path) -> None:
    names = expected_tensors(read_back(tmp_path, V4_SPEC)).keys()
    assert "blk.0.ffn_gate_tid2eid.weight" in names
    assert "blk.0.exp_probs_b.bias" not in names
    assert "blk.1.exp_probs_b.bias" in names
    more = read_back(tmp_path, V4_SPEC, {"hash_layer_count": 0}, shapes={"blk.0.exp_probs_b.bias": (8,)})
    assert "blk.0.ffn_gate_tid2eid.weight" not in expected_tensors(more)


def test_a_table_has_whole_numbers_and_experts_that_exist(tmp_path: Path) -> None:
    table = "blk.0.ffn_gate_tid2eid.weight"
    with pytest.raises(ModelError, match="type F32 cannot be read; expected I32"):
        read_back(tmp_path, V4_SPEC, types={table: GgmlType.F32})
    gguf = open_gguf(write_model(tmp_path / "model.gguf", V4_SPEC))
    packing = Packing(kernels.ThreadPool(1), "reference", 2)
    for wrong in (8, -1):
        [found] = [each for each in GGUFReader(gguf.path, "r+").tensors if each.name == table]
        found.data.view(np.int32)[3, 1] = wrong
        found.data.base.flush()
        with pytest.raises(ModelError, match=f"has {wrong}; expected whole numbers from 0 to 7"):
            load_weights(open_gguf(gguf.path), read_spec(gguf), 40, packing, lambda _: None)


def test_placement_rules_find_compressors_and_routers() -> None:
    found = {module.name: module.classes for module in module_tree(V4_SPEC)}
    assert "DeepseekV4CSACompressor" in found["model.layers.1.self_attn.compressor"]
    assert "DeepseekV4HCACompressor" in found["model.layers.2.self_attn.compressor"]
    assert "DeepseekV4Indexer" in found["model.layers.1.self_attn.compressor.indexer"]
    assert "DeepseekV4HyperConnection" in found["model.layers.0.attn_hc"]
    assert "DeepseekV4HyperHead" in found["model.hc_head"]
    assert "DeepseekV4SparseMoeBlock" in found["model.layers.0.mlp"]
    assert "model.layers.0.self_attn.compressor" not in found


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"expert_gating_func": 2}, r"expert_gating_func=2; expected 4 \(sqrtsoftplus\)"),
        ({"hyper_connection.count": None}, "hyper_connection.count is missing"),
        ({"hash_layer_count": None}, "hash_layer_count is missing"),
        ({"hash_layer_count": 5}, "hash_layer_count=5; expected a whole number, at least 0 and at most 4"),
        (
            {"attention.compress_ratios": None},
            "compress_ratios is missing; expected a whole number for each of 4 layers, 0 for those",
        ),
        (
            {"attention.compress_ratios": [0, 4, 128]},
            "expected a whole number for each of 4 layers, 0 for those",
        ),
        ({"attention.compress_ratios": [0, 4, 64, 4]}, "expected one of 0, 4, 128 for each of 4 layers"),
        ({"attention.compress_ratios": [0, 0, 0, 0]}, "expected 4 or 128 for one layer at least"),
        (
            {"attention.compress_ratios": [0, 0, 128, 4]},
            r"compress_ratios is 0 in layer 1, which has blk\.1\.attn_compressor_kv\.weight; expected 4 or 128",
        ),
        (
            {"swiglu_clamp_exp": None},
            "swiglu_clamp_exp is missing; expected a number, at least 0, for each of 4 ",
        ),
        ({"attention.compress_rope_freq_base": 0.0}, "compress_rope_freq_base=0.0; expected a number above 1"),
        ({"attention.head_count_kv": 2}, "head_count_kv=2; expected 1, because keys have one head"),
        ({"attention.key_length": 40}, "key_length=40; expected a multiple of 16"),
        ({"attention.key_length": 8192}, "key_length=8192; expected a whole number, at least 1 and at most 4096"),
        ({"attention.value_length": 16}, "value_length=16; expected 32, because keys are values as well"),
        ({"rope.dimension_count": 34}, "dimension_count=34; expected an even number, at most 32"),
        ({"attention.sliding_window": None}, "sliding_window is missing; expected a whole number"),
        ({"attention.sliding_window": 10**6}, "at least 1 and at most 65536"),
        ({"attention.output_group_count": 3}, "output_group_count=3; expected a divisor of 4 heads"),
        ({"attention.indexer.key_length": 24}, "key_length=24; expected a multiple of 16"),
        (
            {"attention.indexer.key_length": 8},
            "key_length=8; expected a whole number, at least 16, the entries",
        ),
        ({"attention.indexer.head_count": 2000}, "head_count=2000; expected a whole number, at least 1"),
    ],
)
def test_senseless_and_absurd_sizes_are_refused(tmp_path: Path, keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        read_back(tmp_path, V4_SPEC, keys)


def test_windows_that_no_model_has_are_refused(tmp_path: Path) -> None:
    metadata = {"attention.sliding_window": 65536, "attention.key_length": 4096, "attention.value_length": 4096}
    with pytest.raises(
        ModelError,
        match=r"sliding_window=65536 with keys of 4096 numbers: the state of a sequence takes \d+ bytes",
    ):
        read_back(tmp_path, V4_SPEC, metadata)


def test_config_json_must_agree(tmp_path: Path) -> None:
    gguf = open_gguf(write_model(tmp_path / "model.gguf", V4_SPEC))
    yarn = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
    read_spec(gguf, HfConfig.model_validate({"rope_scaling": yarn, "scoring_func": "sqrtsoftplus", "o_groups": 2}))
    for key, value, found in (("o_groups", 4, 2), ("sliding_window", 128, 8), ("index_topk", 512, 4)):
        with pytest.raises(ModelError, match=rf"{key} is {found} in this file and {value} in config\.json"):
            read_spec(gguf, HfConfig.model_validate({key: value}))
    with pytest.raises(ModelError, match=r"factor is 16.0 in this file and 40.0 in config\.json"):
        read_spec(gguf, HfConfig.model_validate({"rope_scaling": {**yarn, "factor": 40.0}}))
