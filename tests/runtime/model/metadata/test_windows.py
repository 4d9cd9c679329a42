"""Files of gpt-oss, whose layers have windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ballast.errors import ModelError
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.metadata import HfConfig, read_spec
from ballast.model.rope import inverse_frequencies
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors, expected_tensors
from ballast.weights.gguf import open_gguf
from devkit.models.changed_spec import changed, experts_of
from devkit.models.gguf_files import GgmlType, write_model
from devkit.models.read_back import file_of
from devkit.models.specs.gpt_oss import GPT_OSS_20B_SPEC, GPT_OSS_SPEC
from devkit.models.specs.qwen3 import QWEN3_SPEC


def windows(spec: ModelSpec) -> list[int | None]:
    mixers = [layer.mixer for layer in spec.layers]
    return [mixer.window for mixer in mixers if isinstance(mixer, GroupedSpec)]


@pytest.mark.parametrize(
    "metadata", [{}, {"expert_gating_func": 3, "expert_weights_norm": False}], ids=["bare", "said"]
)
def test_dimensions_come_from_the_file_and_other_values_from_the_architecture(
    tmp_path: Path, metadata: dict[str, Any]
) -> None:
    gguf = file_of(tmp_path, GPT_OSS_SPEC, metadata)
    found = read_spec(gguf)
    check_tensors(gguf, found)
    assert changed(found, rms_eps=0.0) == changed(GPT_OSS_SPEC, rms_eps=0.0)
    assert windows(found) == [24, None, 24]
    assert (found.routing.gating, found.routing.normalize_weights, found.routing.weights_scale) == (
        "softmax",
        True,
        1.0,
    )


def test_every_linear_layer_has_a_bias() -> None:
    tensors = expected_tensors(GPT_OSS_SPEC)
    matrices = {name.removesuffix(".weight") for name in tensors if name.startswith("blk.1.") and "norm" not in name}
    with_bias = {name.removesuffix(".bias") for name in tensors if name.startswith("blk.1.") and name.endswith(".bias")}
    assert {name.removesuffix(".bias") for name in matrices} == with_bias | {"blk.1.attn_sinks"}
    assert tensors["blk.1.ffn_gate_exps.bias"].shape == (8, experts_of(GPT_OSS_SPEC).width)
    assert tensors["blk.1.ffn_down_exps.bias"].shape == (8, GPT_OSS_SPEC.hidden)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ([True, True, False], [24, 24, None]),
        ([0, 0, 1], [None, None, 24]),
        (3, [24, 24, None]),
        (1, [None, None, None]),
    ],
    ids=str,
)
def test_a_pattern_names_the_layers_with_a_window(
    tmp_path: Path, pattern: int | Sequence[int], expected: list[int | None]
) -> None:
    assert (
        windows(read_spec(file_of(tmp_path, GPT_OSS_SPEC, {"attention.sliding_window_pattern": pattern}))) == expected
    )


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"attention.sliding_window": None}, r"gpt-oss\.attention\.sliding_window is missing; expected a whole number"),
        ({"attention.sliding_window": 0}, r"gpt-oss\.attention\.sliding_window=0; expected a whole number"),
        ({"attention.sliding_window_pattern": [True]}, "true or false for each of 3 layers, or a period"),
        ({"attention.sliding_window_pattern": [0, 1, 2]}, "true or false for each of 3 layers, or a period"),
        ({"attention.sliding_window_pattern": 0}, "expected a whole number, at least 1"),
        ({"expert_gating_func": 2}, r"expert_gating_func=2; expected 1 \(softmax\)"),
    ],
)
def test_senseless_windows_are_refused(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(file_of(tmp_path, GPT_OSS_SPEC, metadata))


def test_a_window_is_refused_where_the_architecture_has_none(tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", QWEN3_SPEC, metadata={"qwen3moe.attention.sliding_window": 128})
    with pytest.raises(ModelError, match=r"qwen3moe\.attention\.sliding_window=128: this model's attention is not"):
        read_spec(open_gguf(file))


def test_a_softmax_over_chosen_experts_is_refused_where_the_architecture_has_none(tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", QWEN3_SPEC, metadata={"qwen3moe.expert_gating_func": 3})
    with pytest.raises(ModelError, match=r"qwen3moe\.expert_gating_func=3; expected 1 \(softmax\)"):
        read_spec(open_gguf(file))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"sliding_window": 128}, "sliding_window is 24 in this file and 128"),
        ({"num_local_experts": 32}, "num_local_experts is 8 in this file and 32"),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(file_of(tmp_path, GPT_OSS_SPEC), HfConfig.model_validate(config))


@pytest.mark.parametrize("name", ["blk.1.ffn_up_exps.bias", "blk.2.attn_sinks.weight", "blk.0.ffn_gate_inp.bias"])
def test_a_file_without_one_of_its_biases_or_sinks_is_refused(tmp_path: Path, name: str) -> None:
    gguf = file_of(tmp_path, GPT_OSS_SPEC, shapes={name: None})
    with pytest.raises(ModelError, match=rf"{name}.* is missing"):
        check_tensors(gguf, read_spec(gguf))


def test_fused_queries_keys_and_values_are_refused_where_biases_are_needed(tmp_path: Path) -> None:
    gguf = file_of(tmp_path, GPT_OSS_SPEC, shapes={"blk.0.attn_q.weight": None, "blk.0.attn_qkv.weight": (256, 64)})
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.weight: is missing"):
        check_tensors(gguf, read_spec(gguf))


def test_biases_of_experts_are_read_as_f32_alone(tmp_path: Path) -> None:
    gguf = file_of(tmp_path, GPT_OSS_SPEC, types={"blk.1.ffn_up_exps.bias": GgmlType.F16})
    with pytest.raises(ModelError, match=r"ffn_up_exps\.bias.*type F16 cannot be read; expected F32"):
        check_tensors(gguf, read_spec(gguf))


def test_the_ramp_of_yarn_is_not_rounded() -> None:
    """transformers puts the ramp there for the real models, with truncate false: between pairs 8.0928 and 17.3980."""
    rope = GPT_OSS_20B_SPEC.ropes[0]
    plain = rope.theta ** (-np.arange(32) / 32)
    share = (1 - inverse_frequencies(rope) / plain) / (1 - 1 / 32)
    np.testing.assert_allclose(share, np.clip((np.arange(32) - 8.0928) / (17.3980 - 8.0928), 0, 1), atol=1e-4)
    assert rope.yarn is not None
    assert rope.yarn.attention_factor == pytest.approx(1 + 0.1 * math.log(32), rel=1e-9)
