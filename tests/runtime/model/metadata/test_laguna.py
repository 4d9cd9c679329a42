"""Files of Laguna, whose layers differ in heads, windows and rotations, and whose gates are per head or per entry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ballast.errors import ModelError
from ballast.model.layers.grouped import GATE, QK_NORM, GroupedSpec
from ballast.model.layers.positions import RopeSpec
from ballast.model.metadata import HfConfig, read_spec
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors
from ballast.weights.gguf import GgufModel
from devkit.models.read_back import file_of
from devkit.models.specs.laguna import LAGUNA_FULL_SPEC, LAGUNA_SPEC

WINDOW_KEYS = ("attention.sliding_window", "rope.freq_base_swa", "rope.dimension_count_swa")
CONFIG: dict[str, Any] = {
    "gating": True,
    "moe_router_logit_softcapping": 0.0,
    "moe_routed_scaling_factor": LAGUNA_SPEC.routing.weights_scale,
    "num_attention_heads": 4,
    "num_attention_heads_per_layer": [4, 8, 8, 8, 4, 8],
    "rope_parameters": {
        "full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 64.0, "attention_factor": 1.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "sliding_window": 24,
}


def grouped(spec: ModelSpec, layer: int) -> GroupedSpec:
    mixer = spec.layers[layer].mixer
    assert isinstance(mixer, GroupedSpec)
    return mixer


@pytest.mark.parametrize("metadata", [{}, {"expert_gating_func": None, "expert_weights_norm": None}])
def test_a_file_describes_its_layers(tmp_path: Path, metadata: dict[str, Any]) -> None:
    gguf: GgufModel = file_of(tmp_path, LAGUNA_SPEC, metadata)
    found = read_spec(gguf)
    check_tensors(gguf, found)
    assert found.layers == LAGUNA_SPEC.layers
    assert [grouped(found, layer).num_heads for layer in range(6)] == [4, 8, 8, 8, 4, 8]
    assert [grouped(found, layer).window for layer in range(6)] == [None, 24, 24, 24, None, 24]
    assert grouped(found, 0).options == {QK_NORM, GATE}
    assert (grouped(found, 0).gate, grouped(found, 0).gates_entries) == ("softplus", False)
    assert grouped(found, 1).rope == RopeSpec(32, 1e4, None)
    full = grouped(found, 4).rope
    assert full.yarn is not None
    assert (full.dim, full.theta, full.yarn.factor, full.yarn.attention_factor) == (16, 5e5, 64.0, 1.0)


@pytest.mark.parametrize("window", [None, 0])
def test_a_file_without_a_window_has_none_and_may_gate_entries(tmp_path: Path, window: int | None) -> None:
    gguf = file_of(tmp_path, LAGUNA_FULL_SPEC, {"attention.sliding_window": window})
    found = read_spec(gguf)
    check_tensors(gguf, found)
    assert found.layers == LAGUNA_FULL_SPEC.layers
    assert {(grouped(found, layer).window, grouped(found, layer).gates_entries) for layer in range(4)} == {(None, True)}
    assert all(layer.mixer.rope.yarn is not None for layer in found.layers)


@pytest.mark.parametrize("key", ["rope.freq_base_swa", "rope.dimension_count_swa", "attention.key_length_swa"])
def test_a_file_with_keys_of_windows_but_without_a_window_is_refused(tmp_path: Path, key: str) -> None:
    problem = rf"laguna\.attention\.sliding_window is missing; .* because laguna\.{re.escape(key)} is set, or 0$"
    with pytest.raises(ModelError, match=problem):
        read_spec(file_of(tmp_path, LAGUNA_FULL_SPEC, {key: 16}))
    found = read_spec(file_of(tmp_path, LAGUNA_FULL_SPEC, {key: 16, "attention.sliding_window": 0}))
    assert found.layers == LAGUNA_FULL_SPEC.layers


def test_a_file_that_lost_its_window_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"laguna\.attention\.sliding_window is missing"):
        read_spec(file_of(tmp_path, LAGUNA_SPEC, {"attention.sliding_window": None}))


def test_a_period_or_a_list_of_the_file_names_layers_with_a_window(tmp_path: Path) -> None:
    every_third = [True, False, True, True, False, True]
    for pattern, windows in ((2, [None, 24] * 3), (every_third, [24 if each else None for each in every_third])):
        found = read_spec(file_of(tmp_path, LAGUNA_SPEC, {"attention.sliding_window_pattern": pattern}))
        assert [grouped(found, layer).window for layer in range(6)] == windows


def test_without_own_keys_layers_with_a_window_rotate_as_others_but_without_yarn(tmp_path: Path) -> None:
    found = read_spec(file_of(tmp_path, LAGUNA_SPEC, dict.fromkeys(WINDOW_KEYS[1:])))
    assert grouped(found, 1).rope == RopeSpec(16, 5e5, None)


def test_betas_and_the_factor_of_cos_and_sin_have_the_defaults_of_transformers(tmp_path: Path) -> None:
    keys = ("yarn_beta_fast", "yarn_beta_slow", "yarn_attn_factor")
    yarn = read_spec(file_of(tmp_path, LAGUNA_SPEC, {f"rope.scaling.{key}": None for key in keys})).rope.yarn
    assert yarn is not None
    assert (yarn.beta_fast, yarn.beta_slow, yarn.attention_factor) == (32.0, 1.0, pytest.approx(1.41589, abs=1e-5))


def test_the_factor_of_cos_and_sin_may_come_from_config_json(tmp_path: Path) -> None:
    gguf = file_of(tmp_path, LAGUNA_SPEC, {"rope.scaling.yarn_attn_factor": None})
    yarn = read_spec(gguf, HfConfig.model_validate(CONFIG)).rope.yarn
    assert yarn is not None
    assert yarn.attention_factor == 1.0


@pytest.mark.parametrize(
    ("metadata", "shapes", "message"),
    [
        ({"attention.sliding_window": "x"}, {}, "sliding_window=x; expected a whole number, at least 1"),
        ({"attention.sliding_window_pattern": [True]}, {}, "pattern=.*each of 6 layers, or a period"),
        ({"attention.head_count": [4, 8]}, {}, "head_count=.*for each of 6 layers"),
        ({"rope.dimension_count_swa": 34}, {}, "dimension_count_swa: heads of 32 with 34 rotated"),
        ({"rope.freq_base_swa": 1.0}, {}, "freq_base_swa=1.0; expected a number above 1"),
        ({"expert_gating_func": 1}, {}, r"expert_gating_func=1; expected 2 \(sigmoid\)"),
        (
            {},
            {"blk.1.attn_gate.weight": (9, LAGUNA_SPEC.hidden)},
            r"blk\.1\.attn_gate\.weight.*found shape \(9, .*expected 8 rows, one per head, or 256, one per entry",
        ),
    ],
)
def test_senseless_files_are_refused(
    tmp_path: Path, metadata: dict[str, Any], shapes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(file_of(tmp_path, LAGUNA_SPEC, metadata, shapes=shapes))


@pytest.mark.parametrize("name", ["attn_gate.weight", "attn_q_norm.weight", "exp_probs_b.bias", "ffn_up_shexp.weight"])
def test_files_without_a_tensor_are_refused(tmp_path: Path, name: str) -> None:
    shapes = {f"blk.{layer}.{name}": None for layer in range(6)}
    gguf = file_of(tmp_path, LAGUNA_SPEC, shapes=shapes)
    with pytest.raises(ModelError, match=rf"blk\.\d\.{name}.*missing"):
        check_tensors(gguf, read_spec(gguf))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_attention_heads_per_layer": [4, 8, 8, 6, 4, 8]}, "num_attention_heads is 8 in this file and 6"),
        ({"gating": "per-element"}, "gating is per-head in this file and per-element"),
        ({"moe_routed_scaling_factor": 9.0}, "moe_routed_scaling_factor is .* in this file and 9"),
        ({"moe_router_logit_softcapping": 30.0}, "moe_router_logit_softcapping=30; expected 0"),
        ({"moe_apply_router_weight_on_input": True}, "moe_apply_router_weight_on_input=true; expected false"),
        ({"sliding_window": 512}, "sliding_window is 24 in this file and 512"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
            "rope_theta is 500000.0 in this file and 10000.0",
        ),
        (
            {"rope_parameters": {"sliding_attention": {"rope_theta": 2e4}}},
            "swa_rope_theta is 10000.0 in this file and 20000.0",
        ),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    read_spec(file_of(tmp_path, LAGUNA_SPEC), HfConfig.model_validate(CONFIG))
    with pytest.raises(ModelError, match=message):
        read_spec(file_of(tmp_path, LAGUNA_SPEC), HfConfig.model_validate(CONFIG | config))


def test_a_config_may_name_gates_of_entries(tmp_path: Path) -> None:
    read_spec(file_of(tmp_path, LAGUNA_FULL_SPEC), HfConfig.model_validate({"gating": "per_element"}))
    with pytest.raises(ModelError, match="gating is per-element in this file and per-head"):
        read_spec(file_of(tmp_path, LAGUNA_FULL_SPEC), HfConfig.model_validate({"gating": True}))
