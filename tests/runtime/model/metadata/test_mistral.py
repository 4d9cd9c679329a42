"""Files of Mistral: the query factor by position, and keys that conversions omit."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ballast.errors import ConfigError, ModelError
from ballast.model.layers.positions import QueryScale
from ballast.model.metadata import HfConfig, read_spec
from ballast.model.modules import module_tree
from ballast.model.rope import build_rope_table, softmax_scale
from ballast.model.spec import ModelSpec
from ballast.weights.gguf import open_gguf
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import write_hollow_model, write_model
from devkit.models.specs.deepseek import V3_SPEC, V32_SPEC
from devkit.models.specs.mistral import MISTRAL4_SPEC, MISTRAL_LARGE3_SPEC

SCALE, LENGTH = "attention.temperature_scale", "attention.temperature_length"


def read(folder: Path, spec: ModelSpec, keys: Mapping[str, Any], config: HfConfig | None = None) -> ModelSpec:
    """The spec of a file with these keys, without their prefix; None omits a key."""
    metadata = {f"{spec.architecture.name}.{key}": value for key, value in keys.items()}
    return read_spec(open_gguf(write_model(folder / "m.gguf", spec, metadata=metadata)), config)


def test_mistral4_files_may_omit_keys_with_one_value(tmp_path: Path) -> None:
    omitted = ("expert_gating_func", "expert_group_count", "expert_weights_norm", "expert_weights_scale", SCALE)
    omitted += (LENGTH, *(f"rope.scaling.yarn_{name}" for name in ("beta_fast", "beta_slow", "log_multiplier")))
    found, given = read(tmp_path, MISTRAL4_SPEC, dict.fromkeys(omitted)), MISTRAL4_SPEC
    assert (found.routing, found.rope) == (given.routing, given.rope)
    assert read(tmp_path, MISTRAL4_SPEC, {}).routing == given.routing


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({}, None),
        ({SCALE: 0.0, LENGTH: 64}, None),
        ({SCALE: 0.25, LENGTH: 64}, QueryScale(0.25, 64)),
        ({SCALE: 0.25}, QueryScale(0.25, 4096)),
    ],
)
def test_files_of_deepseek2_may_scale_queries(tmp_path: Path, keys: dict[str, Any], found: QueryScale | None) -> None:
    assert read(tmp_path, V3_SPEC, keys).rope.query_scale == found


@pytest.mark.parametrize(
    ("spec", "keys", "problem"),
    [
        (V3_SPEC, {SCALE: -0.25}, r"temperature_scale=-0\.25; expected a number, at least 0 and at most 10"),
        (V3_SPEC, {SCALE: 0.1, LENGTH: 0}, "temperature_length=0; expected a whole number, at least 1"),
        (changed(V3_SPEC, yarn=None), {SCALE: 0.1}, "temperature_length is missing; expected a whole number"),
        (V32_SPEC, {SCALE: 0.1}, r"deepseek32\.attention\.temperature_scale=0\.1.*: this model's attention is not"),
    ],
)
def test_a_senseless_factor_is_refused(tmp_path: Path, spec: ModelSpec, keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        read(tmp_path, spec, keys)


def test_config_json_is_compared_and_supplies_what_the_file_lacks(tmp_path: Path) -> None:
    def config(beta: float) -> HfConfig:
        return HfConfig.model_validate({"rope_parameters": {"type": "yarn", "llama_4_scaling_beta": beta}})

    assert read(tmp_path, V3_SPEC, {}, config(0.5)).rope.query_scale == QueryScale(0.5, 4096)
    with pytest.raises(ModelError, match=r"llama_4_scaling_beta is 0\.25 in this file and 0\.5 in config\.json"):
        read(tmp_path, V3_SPEC, {SCALE: 0.25}, config(0.5))


def test_mistral_large_3_is_known_by_its_dimensions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cut = changed(MISTRAL_LARGE3_SPEC, num_layers=4, vocab_size=64)
    gguf = open_gguf(write_hollow_model(tmp_path / "m.gguf", cut, {}))
    lacking = {key: value for key, value in gguf.metadata.items() if "temperature" not in key}
    with caplog.at_level(logging.WARNING):
        assert read_spec(replace(gguf, metadata=lacking)).rope.query_scale == cut.rope.query_scale
    assert "using 0.1 of Mistral Large 3" in caplog.text


def test_the_softmax_scale_is_that_of_the_file(tmp_path: Path) -> None:
    plain = 1 / math.sqrt(48)
    corrected = read(tmp_path, MISTRAL4_SPEC, {})
    assert softmax_scale(corrected.layers[0].mixer) == pytest.approx(plain * (0.1 * math.log(40) + 1) ** 2)
    keys = {"rope.scaling.yarn_log_multiplier": 0.0, "rope.scaling.yarn_attn_factor": 1.0}
    uncorrected = read(tmp_path, MISTRAL4_SPEC, keys)
    assert softmax_scale(uncorrected.layers[0].mixer) == pytest.approx(plain)
    for spec in (corrected, uncorrected):
        assert spec.rope.yarn is not None
        assert spec.rope.yarn.attention_factor == 1.0


@pytest.mark.parametrize("length", [1, 7, 8192])
def test_the_factors_are_those_of_transformers(length: int) -> None:
    rope = changed(MISTRAL4_SPEC, query_scale=QueryScale(0.1, length)).rope
    positions = torch.arange(5 * length)
    # Each worker would take two seconds to import it.
    from transformers.models.mistral4.modeling_mistral4 import get_llama_4_attn_scale

    expected = get_llama_4_attn_scale(positions[None], 0.1, length)[0, 0, :, 0]
    found = build_rope_table(rope, 5 * length).query_scale
    assert found is not None
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)
    assert found[:length].tolist() == [1.0] * length


def test_placement_rules_name_the_classes_of_transformers() -> None:
    classes = set().union(*(module.classes for module in module_tree(MISTRAL4_SPEC)))
    assert {"Mistral4Attention", "Mistral4MoE", "Mistral4YarnRotaryEmbedding"} <= classes


def test_files_of_deepseek2_need_their_softmax_scale(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lacks deepseek2\.rope\.scaling\.yarn_log_multiplier"):
        read(tmp_path, V3_SPEC, {"rope.scaling.yarn_log_multiplier": None, SCALE: 0.1})
