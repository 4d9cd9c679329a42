"""Files of Step, whose layers differ in heads, windows, rotations and limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ballast._core import kernels
from ballast.errors import ModelError
from ballast.families.architecture import ClampedSilu
from ballast.model.layers.grouped import GATE, QK_NORM, GroupedSpec
from ballast.model.layers.positions import RopeSpec
from ballast.model.metadata import HfConfig, read_config, read_spec
from ballast.model.packed_tensors import Packing
from ballast.model.rope import build_rope_table
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors, expected_tensors
from ballast.model.weights import load_weights
from ballast.weights.gguf import open_gguf
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import write_model
from devkit.models.read_back import file_of
from devkit.models.specs.glm import GLM_SPEC
from devkit.models.specs.step import STEP_SPEC

PADDED = {"block_count": 9, "nextn_predict_layers": 3}
NEXTN = {
    f"blk.{layer}.{name}": shape
    for layer in (6, 7, 8)
    for name, shape in (("attn_norm.weight", (8,)), ("nextn.eh_proj.weight", (8, 16)))
}


def grouped(spec: ModelSpec, layer: int) -> GroupedSpec:
    mixer = spec.layers[layer].mixer
    assert isinstance(mixer, GroupedSpec)
    return mixer


def units(spec: ModelSpec) -> list[tuple[object, object]]:
    """By layer: the unit of routed experts (None without), and that of the shared expert or dense layer."""
    found: list[tuple[object, object]] = []
    for layer in spec.layers:
        experts = layer.experts
        found.append((None, layer.feed_forward.unit) if experts is None else (experts.unit, experts.shared_unit))
    return found


@pytest.mark.parametrize("metadata", [{}, {"expert_gating_func": None, "expert_weights_norm": None}])
def test_a_file_describes_its_layers(tmp_path: Path, metadata: dict[str, Any]) -> None:
    gguf = file_of(tmp_path, STEP_SPEC, metadata)
    found = read_spec(gguf)
    check_tensors(gguf, found)
    assert found.layers == STEP_SPEC.layers
    assert [grouped(found, layer).num_heads for layer in range(6)] == [4, 8, 8, 8, 4, 8]
    assert [grouped(found, layer).window for layer in range(6)] == [None, 24, 24, 24, None, 24]
    assert grouped(found, 0).options == {QK_NORM, GATE}
    half = grouped(found, 0).rope
    assert grouped(found, 1).rope == RopeSpec(2 * half.dim, 1e4, None)
    assert (half.theta, half.has_factors) == (5e6, True)
    assert units(found)[1] == (None, ClampedSilu(2.0))
    assert units(found)[4:] == [(None, ClampedSilu(16.0)), (ClampedSilu(7.0), ClampedSilu(16.0))]
    assert (found.routing.gating, found.routing.normalize_weights, found.routing.weights_scale) == (
        "sigmoid",
        True,
        3.0,
    )


def test_blocks_that_predict_further_tokens_are_skipped(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "attention.head_count": [4, 8, 8, 8, 4, 8, 8, 8, 8],
        "attention.head_count_kv": [2] * 9,
        "attention.sliding_window_pattern": [False, True, True, True, False, True, True, True, True],
        "swiglu_clamp_exp": [0.0] * 5 + [7.0] + [0.0] * 3,
        "swiglu_clamp_shexp": [0.0, 2.0, 0.0, 0.0, 16.0, 16.0] + [0.0] * 3,
    }
    for shapes in (NEXTN, {}):
        assert read_spec(file_of(tmp_path, STEP_SPEC, PADDED | keys, shapes=shapes)).layers == STEP_SPEC.layers


def test_gates_norms_factors_and_limits_are_optional(tmp_path: Path) -> None:
    optional = ("attn_gate", "attn_q_norm", "attn_k_norm", "rope_freqs")
    left_out = {name: None for name in expected_tensors(STEP_SPEC) if any(each in name for each in optional)}
    gguf = file_of(tmp_path, STEP_SPEC, {"swiglu_clamp_exp": None, "swiglu_clamp_shexp": 0.0}, shapes=left_out)
    found = read_spec(gguf)
    check_tensors(gguf, found)
    assert all(grouped(found, layer).options == frozenset() for layer in range(6))
    assert not any(rope.has_factors for rope in found.ropes)
    assert units(found) == [(None, None)] * 6


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"attention.sliding_window_pattern": None}, "pattern is missing; expected true or false for each of 6 layers"),
        ({"attention.sliding_window_pattern": 4}, "pattern=4; expected true or false for each of 6 layers"),
        ({"attention.head_count": [4, 8]}, "head_count=.*expected a whole number, at least 1, for each of 6 layers"),
        ({"attention.head_count": [4, 8, 8, 0, 4, 8]}, "expected a whole number, at least 1, for each of 6 layers"),
        (
            {"attention.head_count": [4, 8, 8, 7, 4, 8]},
            r"step35\.attention\.head_count, layer 3: 7 heads share 2 of the cache; expected equal groups",
        ),
        ({"swiglu_clamp_exp": [1.0]}, "swiglu_clamp_exp=.*expected a number, at least 0, for each of 6 layers"),
        ({"swiglu_clamp_shexp": [-1.0] * 6}, "swiglu_clamp_shexp=.*expected a number, at least 0"),
        ({"rope.freq_base_swa": 0.5}, r"rope\.freq_base_swa=0\.5; expected a number above 1"),
        ({"rope.dimension_count": 18}, "dimension_count=18; expected a multiple of 4"),
    ],
)
def test_senseless_layers_are_refused(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(file_of(tmp_path, STEP_SPEC, metadata))


@pytest.mark.parametrize("names", [["attn_gate"], ["attn_q_norm", "attn_k_norm"]])
def test_tensors_that_only_later_layers_of_a_kind_have_are_refused(tmp_path: Path, names: list[str]) -> None:
    gguf = file_of(
        tmp_path, STEP_SPEC, shapes={f"blk.{layer}.{name}.weight": None for layer in (1, 2) for name in names}
    )
    message = rf"blk\.3\.{names[0]}\.weight: is not used, because the first layer of its kind has none"
    with pytest.raises(ModelError, match=message):
        check_tensors(gguf, read_spec(gguf))


def test_a_gate_of_another_shape_is_refused(tmp_path: Path) -> None:
    gguf = file_of(tmp_path, STEP_SPEC, shapes={"blk.1.attn_gate.weight": (256, STEP_SPEC.hidden)})
    with pytest.raises(ModelError, match=r"blk\.1\.attn_gate\.weight.*expected shape \(8, "):
        check_tensors(gguf, read_spec(gguf))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"attention_other_setting": {"num_attention_heads": 6}}, "num_attention_heads is 8 in this file and 6"),
        ({"num_attention_heads": 8}, "num_attention_heads is 4 in this file and 8"),
        ({"rope_theta": [1e6, 1e4]}, "rope_theta is 5000000.0 in this file and 1000000.0"),
        ({"sliding_window": 512}, "sliding_window is 24 in this file and 512"),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    same = {"num_attention_heads": 4, "attention_other_setting": {"num_attention_heads": 8}, "rope_theta": [5e6, 1e4]}
    read_spec(file_of(tmp_path, STEP_SPEC), HfConfig.model_validate(same))
    with pytest.raises(ModelError, match=message):
        read_spec(file_of(tmp_path, STEP_SPEC), HfConfig.model_validate(same | config))


@pytest.mark.parametrize(
    ("theta", "message"),
    [("x", r"rope_theta\.0=x: input should be a valid number"), ([5e6, None], r"rope_theta\.1=None: input should be")],
)
def test_a_senseless_base_in_config_json_is_named(tmp_path: Path, theta: object, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"rope_theta": theta}))
    with pytest.raises(ModelError, match=rf"config\.json: {message}"):
        read_config(tmp_path)


def test_a_file_without_the_factors_that_config_json_names_is_refused(tmp_path: Path) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        config = HfConfig.model_validate({key: {"rope_type": "llama3", "factor": 2.0}})
        read_spec(file_of(tmp_path, STEP_SPEC), config)
        with pytest.raises(ModelError, match=r"config\.json divides frequencies .* no rope_freqs\.weight"):
            read_spec(file_of(tmp_path, STEP_SPEC, shapes={"rope_freqs.weight": None}), config)


def test_factors_that_are_not_above_zero_are_refused(tmp_path: Path) -> None:
    gguf = file_of(tmp_path, STEP_SPEC)  # all zeros
    packing = Packing(kernels.ThreadPool(1), "reference", None)
    with pytest.raises(ModelError, match=r"rope_freqs\.weight.*found 0\.0; expected factors above 0"):
        load_weights(gguf, read_spec(gguf), STEP_SPEC.vocab_size, packing, lambda _: None)


def test_factors_divide_only_the_frequencies_of_their_rotation() -> None:
    factors = np.array([1.0, 2.0, 4.0, 99.0], np.float32)
    plain = build_rope_table(RopeSpec(6, 100.0, None), 9, factors)
    divided = build_rope_table(RopeSpec(6, 100.0, None, has_factors=True), 9, factors)
    np.testing.assert_array_equal(divided.cos[:, 0], plain.cos[:, 0])
    np.testing.assert_allclose(divided.sin[2::2, 1], plain.sin[1:5, 1], rtol=1e-6)
    np.testing.assert_allclose(divided.sin[4::4, 2], plain.sin[1:3, 2], rtol=1e-6)


def test_another_architecture_reads_neither_limits_nor_factors(tmp_path: Path) -> None:
    file = write_model(
        tmp_path / "m.gguf",
        GLM_SPEC,
        metadata={"glm4moe.swiglu_clamp_exp": [1.0] * GLM_SPEC.num_layers},
        shapes={"rope_freqs.weight": (8,)},
    )
    assert changed(read_spec(open_gguf(file)), rms_eps=0.0).layers == changed(GLM_SPEC, rms_eps=0.0).layers
