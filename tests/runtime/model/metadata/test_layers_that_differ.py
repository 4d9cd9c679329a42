"""Files of MiMo-V2, whose layers differ in heads, rotations and sinks."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ballast.errors import ModelError
from ballast.model.layers.grouped import SINKS, GroupedSpec
from ballast.model.metadata import HfConfig, read_spec
from ballast.model.modules import module_tree
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors, expected_tensors
from ballast.plan.gpus.device import kv_row_bytes
from ballast.weights.gguf import open_gguf
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import shapes_of, write_model
from devkit.models.read_back import file_of
from devkit.models.specs.mimo import MIMO_FLASH_SPEC, MIMO_SPEC
from devkit.models.specs.qwen3 import QWEN3_SPEC

ROUNDED = {"rms_eps": 0.0, "value_scale": 0.0}
APART = changed(MIMO_SPEC, fuses_qkv=False)


def mixers(spec: ModelSpec) -> list[GroupedSpec]:
    found = [layer.mixer for layer in spec.layers]
    return [mixer for mixer in found if isinstance(mixer, GroupedSpec)]


@pytest.mark.parametrize("spec", [MIMO_SPEC, APART], ids=["fused", "apart"])
def test_a_file_describes_each_layer(tmp_path: Path, spec: ModelSpec) -> None:
    gguf = file_of(tmp_path, spec)
    found = read_spec(gguf)
    check_tensors(gguf, found)
    assert changed(found, **ROUNDED) == changed(spec, **ROUNDED)
    assert [mixer.num_kv_heads for mixer in mixers(found)] == [1, 2, 2, 1]
    assert [mixer.window for mixer in mixers(found)] == [None, 24, 24, None]
    assert [mixer.rope.theta for mixer in mixers(found)] == [5e6, 1e4, 1e4, 5e6]
    assert [SINKS in mixer.options for mixer in mixers(found)] == [False, True, True, False]
    assert (found.routing.gating, found.routing.router_bias, found.routed_layers[0]) == ("sigmoid", True, 1)
    names = {module.name for module in module_tree(found)}
    assert {tensor.module for tensor in expected_tensors(found).values()} <= names


def test_a_layers_cache_has_its_own_width() -> None:
    assert [[plane.width for plane in planes] for planes in MIMO_SPEC.planes] == [
        [48, 32],
        [96, 64],
        [96, 64],
        [48, 32],
    ]
    assert kv_row_bytes(MIMO_FLASH_SPEC, "fp16") == 2 * (9 * 4 * 320 + 39 * 8 * 320)


def test_arrays_may_include_prediction_blocks(tmp_path: Path) -> None:
    shapes = shapes_of(MIMO_SPEC) | {"blk.4.nextn.eh_proj.weight": (64, 128), "blk.4.attn_norm.weight": (64,)}
    metadata = {
        "block_count": 5,
        "nextn_predict_layers": 1,
        "attention.head_count_kv": [1, 2, 2, 1, 2],
        "attention.sliding_window_pattern": [0, 1, 1, 0, 1],
    }
    found = read_spec(file_of(tmp_path, MIMO_SPEC, metadata, shapes=shapes))
    assert changed(found, **ROUNDED) == changed(MIMO_SPEC, **ROUNDED)


def test_layers_with_a_window_may_have_different_widths(tmp_path: Path) -> None:
    metadata = {"attention.key_length_swa": 32, "attention.value_length_swa": 16, "rope.dimension_count_swa": 8}
    found = mixers(read_spec(file_of(tmp_path, MIMO_SPEC, metadata)))
    assert [(mixer.head_dim, mixer.v_dim, mixer.rope.dim) for mixer in found] == [
        (48, 32, 16),
        (32, 16, 8),
        (32, 16, 8),
        (48, 32, 16),
    ]


@pytest.mark.parametrize(
    ("changes", "config", "expected", "source"),
    [
        # MiMo-V2-Flash, and MiMo-V2.5-Pro: the root of 4096 / (64 · 128), and of 6144 / (128 · 128).
        ({"hidden": 4096, "num_heads": 64, "v_dim": 128}, None, 0.707, "which follows from the widths"),
        ({"hidden": 6144, "num_heads": 128, "v_dim": 128}, None, 0.612, "which follows from the widths"),
        ({}, {"attention_value_scale": 0.5}, 0.5, "attention_value_scale=0.5 of config.json"),
    ],
    ids=["flash", "pro", "config"],
)
def test_a_file_without_the_value_scale_uses_the_models_and_logs_it(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, int],
    config: dict[str, float] | None,
    expected: float,
    source: str,
) -> None:
    metadata = {
        "attention.value_scale": None,
        "embedding_length": changes.get("hidden", 64),
        "attention.head_count": changes.get("num_heads", 4),
        "attention.value_length": changes.get("v_dim", 32),
    }
    with caplog.at_level(logging.INFO):
        found = read_spec(file_of(tmp_path, MIMO_SPEC, metadata), HfConfig.model_validate(config) if config else None)
    assert {mixer.value_scale for mixer in mixers(found)} == {expected}
    assert "no mimo2.attention.value_scale; using" in caplog.text
    assert source in caplog.text


def test_the_value_scale_of_a_file_is_used_without_a_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = read_spec(file_of(tmp_path, MIMO_SPEC, {"attention.value_scale": 0.25}))
    assert {mixer.value_scale for mixer in mixers(found)} == {0.25}
    assert "value_scale" not in caplog.text


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"attention.head_count_kv": [1, 2, 2]}, "expected a whole number, at least 1, for each of 4 layers"),
        ({"attention.head_count_kv": [1, 2, 0, 1]}, "at least 1, for each of 4 layers"),
        ({"attention.head_count_kv": [1, 3, 2, 1]}, "4 heads share 3 of the cache; expected equal groups"),
        ({"attention.sliding_window": None}, r"mimo2\.attention\.sliding_window is missing"),
        ({"attention.sliding_window_pattern": None}, "sliding_window_pattern is missing; expected true or false for"),
        ({"attention.value_scale": 0.0}, r"value_scale=0\.0; expected a number above 0 and at most 10"),
        ({"rope.freq_base_swa": 0.5}, r"freq_base_swa=0\.5; expected a number above 1"),
    ],
)
def test_senseless_layers_are_refused(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(file_of(tmp_path, MIMO_SPEC, metadata))


@pytest.mark.parametrize("name", ["attn_q", "attn_k", "attn_v", "attn_qkv"])
def test_biases_of_fused_queries_keys_and_values_are_refused(tmp_path: Path, name: str) -> None:
    gguf = file_of(tmp_path, MIMO_SPEC, shapes={f"blk.1.{name}.bias": (8,)})
    with pytest.raises(ModelError, match=r"blk\.1\.attn_q"):
        check_tensors(gguf, read_spec(gguf))


@pytest.mark.parametrize(
    "name", ["blk.1.attn_sinks.weight", "blk.2.attn_sinks.weight", "blk.3.attn_qkv.weight", "blk.1.exp_probs_b.bias"]
)
def test_a_file_without_one_of_its_tensors_is_refused(tmp_path: Path, name: str) -> None:
    gguf = file_of(tmp_path, MIMO_SPEC, shapes={name: None})
    missing = name.replace("attn_qkv", "attn_q")
    with pytest.raises(ModelError, match=rf"{missing}.* is missing"):
        check_tensors(gguf, read_spec(gguf))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads is 1 in this file and 2"),
        ({"num_key_value_heads": 1, "swa_num_key_value_heads": 4}, "swa_num_key_value_heads is 2 in this file and 4"),
        ({"swa_rope_theta": 20000.0}, "swa_rope_theta is 10000.0 in this file and 20000.0"),
        ({"attention_value_scale": 0.612}, "attention_value_scale is 0.70.* in this file and 0.612"),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(file_of(tmp_path, MIMO_SPEC), HfConfig.model_validate(config))


def test_layers_of_any_grouped_model_may_differ_in_heads(tmp_path: Path) -> None:
    shapes = {"blk.1.attn_k.weight": (128, 64), "blk.1.attn_v.weight": (128, 64)}
    file = write_model(
        tmp_path / "m.gguf", QWEN3_SPEC, metadata={"qwen3moe.attention.head_count_kv": [2, 4, 2]}, shapes=shapes
    )
    gguf = open_gguf(file)
    found = read_spec(gguf)
    check_tensors(gguf, found)
    assert [mixer.num_kv_heads for mixer in mixers(found)] == [2, 4, 2]
    second = found.layers[1]
    assert isinstance(second.mixer, GroupedSpec)
    assert replace(second.mixer, num_kv_heads=2) == found.layers[0].mixer
