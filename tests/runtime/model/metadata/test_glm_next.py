"""Files of GLM-5.3-Flash: hyper-connections, Kimi Delta Attention, and latent attention to chosen pools."""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from ballast.errors import ModelError
from ballast.families.architecture import ClampedSilu
from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.feed_forward import DenseSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.metadata import HfConfig, read_spec
from ballast.model.modules import module_tree
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors, expected_tensors
from ballast.plan.gpus.device import kv_row_bytes
from ballast.weights.gguf import open_gguf
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import metadata_of, shapes_of, write_gguf, write_hollow_model, write_model
from devkit.models.read_back import read_back
from devkit.models.specs.glm import GLM53_FLASH_SPEC, GLM_NEXT_SPEC


def plain(spec: ModelSpec) -> ModelSpec:
    """The spec without the numbers that files round."""
    assert spec.stream is not None
    assert math.isclose(spec.stream.eps, 1e-6, rel_tol=1e-6)
    same = changed(spec, weights_scale=1.0)
    layers = tuple(replace(layer, stream=replace(spec.stream, eps=0.0)) for layer in same.layers)
    return replace(same, layers=layers, rms_eps=0.0)


@pytest.mark.parametrize("layout", ["joint", "split"])
def test_a_written_file_is_read_back_equal(tmp_path: Path, layout: str) -> None:
    spec = changed(GLM_NEXT_SPEC, mla_layout=layout)
    assert plain(read_back(tmp_path, spec)) == plain(spec)
    assert spec.ropes == ()


def test_sizes_are_those_of_the_published_model(tmp_path: Path) -> None:
    gguf = open_gguf(write_hollow_model(tmp_path / "flash.gguf", GLM53_FLASH_SPEC, {}))
    spec = read_spec(gguf)
    check_tensors(gguf, spec)
    assert plain(spec) == plain(GLM53_FLASH_SPEC)
    pools = 11 * 3 * 2 * 128 * 4  # keys and gates of three tokens in each layer with attention
    assert spec.state_bytes == 152_633_344 + pools
    assert kv_row_bytes(spec, "fp16") == 11_264 + 704
    assert sum(prod(tensor.shape) for tensor in expected_tensors(spec).values()) == pytest.approx(313.4e9, rel=0.01)


def test_files_before_october_have_another_name(tmp_path: Path) -> None:
    early = {name.replace("glm5-next.", "glm5next."): value for name, value in metadata_of(GLM_NEXT_SPEC).items()}
    early["general.architecture"] = "glm5next"
    found = read_spec(open_gguf(write_gguf(tmp_path / "early.gguf", early, shapes_of(GLM_NEXT_SPEC))))
    assert found.architecture == ARCHITECTURES["glm5next"]
    assert plain(replace(found, architecture=GLM_NEXT_SPEC.architecture)) == plain(GLM_NEXT_SPEC)


def test_a_block_that_predicts_further_tokens_is_skipped(tmp_path: Path) -> None:
    shapes = {"blk.4.nextn.eh_proj.weight": (32, 64), "blk.4.attn_norm.weight": (32,)}
    found = read_back(tmp_path, GLM_NEXT_SPEC, {"block_count": 5, "nextn_predict_layers": 1}, shapes=shapes)
    assert plain(found) == plain(GLM_NEXT_SPEC)


def test_limits_of_experts_are_those_of_shared_experts_as_well(tmp_path: Path) -> None:
    found = read_back(tmp_path, GLM_NEXT_SPEC, {"swiglu_clamp_shexp": None, "swiglu_clamp_exp": [0.0, 2.0, 3.0, 4.0]})
    units = []
    for layer in found.layers:
        own = layer.feed_forward
        units.append((own.unit,) if isinstance(own, DenseSpec) else (own.unit, own.shared_unit))
    limits = [0.0, 2.0, 3.0, 4.0]
    expected = [None if limit == 0 else ClampedSilu(limit, limits_input=True) for limit in limits]
    assert units == [(unit,) if len(own) == 1 else (unit, unit) for unit, own in zip(expected, units, strict=True)]


def test_only_layers_with_attention_need_an_indexer(tmp_path: Path) -> None:
    """The last entry is that of a layer that predicts further tokens."""
    types = [False, True, False, True, False]
    assert plain(read_back(tmp_path, GLM_NEXT_SPEC, {"attention.indexer.types": types})) == plain(GLM_NEXT_SPEC)


def test_a_context_may_end_within_a_pool(tmp_path: Path) -> None:
    found = read_back(tmp_path, GLM_NEXT_SPEC, {"context_length": 1022, "attention.indexer.top_k": 2048})
    assert {mixer.index.top_k for mixer in found.mixers if isinstance(mixer, LatentSpec) and mixer.index} == {1024}


def test_files_may_name_the_epsilon_of_the_norm_of_index_keys(tmp_path: Path) -> None:
    assert plain(read_back(tmp_path, GLM_NEXT_SPEC, {"attention.layer_norm_epsilon": 1e-6})) == plain(GLM_NEXT_SPEC)


def test_decays_may_be_without_bound(tmp_path: Path) -> None:
    found = read_back(tmp_path, GLM_NEXT_SPEC, {"kda.gate_lower_bound": None})
    assert found != GLM_NEXT_SPEC
    assert {mixer.lower_bound for mixer in found.mixers if hasattr(mixer, "lower_bound")} == {0.0}


def test_placement_rules_find_hyper_connections_and_the_indexer() -> None:
    found = {module.name: module.classes for module in module_tree(GLM_NEXT_SPEC)}
    assert "Glm5NextTextHyperConnection" in found["model.layers.0.attn_hc"]
    assert "Glm5NextTextHyperConnection" in found["model.layers.1.ffn_hc"]
    assert "Glm5NextTextIndexer" in found["model.layers.1.self_attn.indexer"]
    assert "model.layers.0.self_attn.indexer" not in found


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"kda.head_dim": None}, "kda.head_dim is missing"),
        ({"kda.gate_lower_bound": 1.0}, "gate_lower_bound=1.0; expected a number below 0, at least -80"),
        ({"kda.gate_lower_bound": -1e9}, "expected a number below 0, at least -80"),
        ({"attention.indexer.kpool": None}, "kpool is missing; expected a whole number"),
        ({"attention.indexer.kpool": 1}, "kpool=1; expected pools of 2, 4, 8, 16 tokens, which divide a block"),
        ({"attention.indexer.kpool": 32}, "kpool=32; expected pools of 2, 4, 8, 16 tokens"),
        ({"attention.indexer.top_k": 6}, "top_k=6; expected a multiple of 4"),
        ({"attention.indexer.kpool_select_tail": False}, "select_tail=False; expected true"),
        ({"attention.indexer.kpool_select_tail": 0}, "select_tail=0; expected true"),
        ({"attention.indexer.types": [True, True, True]}, "expected true for each layer with attention"),
        ({"attention.indexer.types": [True, True, True, False]}, "shared selections of pools are not supported"),
        ({"rope.dimension_count": 16}, "rope.dimension_count=16; expected 0, because positions rotate neither"),
        ({"attention.key_length_mla": None}, "key_length_mla is missing; expected the width of a head, because"),
        ({"attention.value_length_mla": None}, "value_length_mla is missing; expected a whole number"),
        (
            {"attention.head_count_kv": [1, 1, 0, 1]},
            r"head_count_kv=\[1, 1, 0, 1\] gives layer 0 attention, and the file has blk\.0\.ssm_a; expected recurrent",
        ),
        (
            {"attention.head_count_kv": [0, 0, 0, 1]},
            r"gives layer 1 recurrent state, and the file has blk\.1\.attn_kv_a_mqa\.weight; expected attention",
        ),
        ({"attention.layer_norm_epsilon": 0.5}, "layer_norm_epsilon=0.5; expected 1e-06; another epsilon"),
        ({"attention.layer_norm_epsilon": 0.0}, "layer_norm_epsilon=0.0; expected a number above 0"),
        ({"hyper_connection.count": None}, "hyper_connection.count is missing"),
        ({"hyper_connection.count": 1}, "count=1; expected a whole number, at least 2 and at most 8"),
        ({"hyper_connection.count": 9}, "count=9; expected a whole number, at least 2 and at most 8"),
        ({"hyper_connection.sinkhorn_iterations": 0}, "sinkhorn_iterations=0; expected a whole number, at least 1"),
        ({"hyper_connection.sinkhorn_iterations": 10**6}, "expected a whole number, at least 1 and at most 1000"),
        ({"hyper_connection.epsilon": -1.0}, "hyper_connection.epsilon=-1.0; expected a number above 0"),
    ],
)
def test_senseless_and_absurd_sizes_are_refused(tmp_path: Path, keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        read_back(tmp_path, GLM_NEXT_SPEC, keys)


def test_config_json_must_agree(tmp_path: Path) -> None:
    gguf = open_gguf(write_model(tmp_path / "model.gguf", GLM_NEXT_SPEC))
    types = {"indexer_types": ["full"] * 4}
    read_spec(gguf, HfConfig.model_validate({"index_kpool": 4, **types}))
    read_spec(gguf, HfConfig.model_validate({"indexer_types": ["shared", "full", "shared", "full"]}))
    with pytest.raises(ModelError, match=r"index_kpool is 4 in this file and 16 in config\.json"):
        read_spec(gguf, HfConfig.model_validate({"index_kpool": 16, **types}))
    with pytest.raises(ModelError, match="indexer_types of layer 3 is full in this file and shared"):
        read_spec(gguf, HfConfig.model_validate({"indexer_types": ["full", "full", "full", "shared"]}))
