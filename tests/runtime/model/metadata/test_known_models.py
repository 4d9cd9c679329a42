"""Keys that older conversions omit: taken from the table of known models, or an error; never guessed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import DeepseekV3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ballast.errors import ConfigError, ModelError
from ballast.families.registry import KNOWN_MODELS
from ballast.model.metadata import HfConfig, read_spec
from ballast.model.rope import inverse_frequencies
from ballast.model.spec import ModelSpec
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import write_hollow_model, write_model
from devkit.models.specs.deepseek import R1_SPEC, V3_SPEC

YARN = R1_SPEC.rope.yarn
assert YARN is not None
V3 = changed(R1_SPEC, num_layers=2, num_dense_layers=1, vocab_size=64)
V2 = changed(
    V3,
    hidden=5120,
    dense_width=12288,
    num_experts=160,
    num_experts_used=6,
    num_shared=2,
    width=1536,
    gating="softmax",
    group_score="max",
    router_bias=False,
    num_groups=8,
    num_groups_used=3,
    normalize_weights=False,
    weights_scale=16.0,
)
V2_LITE = changed(
    V2,
    hidden=2048,
    dense_width=10944,
    num_heads=16,
    q_lora_rank=None,
    num_experts=64,
    width=1408,
    num_groups=1,
    num_groups_used=1,
    weights_scale=1.0,
    yarn=replace(YARN, mscale_all_dim=0.707),
)
K2 = changed(
    V3,
    num_heads=64,
    num_experts=384,
    num_groups=1,
    num_groups_used=1,
    weights_scale=2.827,
    theta=50000.0,
    yarn=replace(YARN, factor=32.0, beta_fast=1.0),
)
K2_THINKING = changed(K2, rms_eps=1e-5, yarn=replace(YARN, factor=64.0, beta_fast=1.0))
GLM_FLASH = changed(
    K2,
    hidden=2048,
    dense_width=10240,
    num_heads=20,
    q_lora_rank=768,
    nope_dim=192,
    v_dim=256,
    num_experts=64,
    num_experts_used=4,
    width=1536,
    weights_scale=1.8,
    rms_eps=1e-5,
    theta=1e6,
    yarn=None,
)

ROUTING = (
    "expert_gating_func",
    "expert_group_count",
    "expert_group_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
)
BETAS = ("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow")
MULTIPLIER = "rope.scaling.yarn_log_multiplier"


def file_of(tmp_path: Path, spec: ModelSpec, without: tuple[str, ...], **values: object) -> GgufModel:
    """A file of `spec` with some keys missing and others changed. Its weights are a hole."""
    gguf = open_gguf(write_hollow_model(tmp_path / "m.gguf", spec, {}))
    dropped = {f"deepseek2.{key}" for key in without}
    metadata: Mapping[str, Any] = {key: value for key, value in gguf.metadata.items() if key not in dropped}
    return replace(gguf, metadata={**metadata, **{f"deepseek2.{key}": value for key, value in values.items()}})


def refusal(gguf: GgufModel, config: HfConfig | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        read_spec(gguf, config)
    assert raised.value.exit_code == 2
    return str(raised.value)


@pytest.mark.parametrize(
    ("spec", "without"),
    [
        (V2_LITE, (*ROUTING, *BETAS, MULTIPLIER, "rope.freq_base")),
        (V2, (*ROUTING, *BETAS, "rope.freq_base")),
        (V3, (*ROUTING, *BETAS, MULTIPLIER, "rope.freq_base")),
        (K2, (*ROUTING, *BETAS, MULTIPLIER, "rope.freq_base")),
        (K2_THINKING, (*ROUTING, MULTIPLIER, "rope.freq_base")),
        (GLM_FLASH, (*ROUTING, "rope.freq_base")),
    ],
    ids=["v2-lite", "v2", "v3", "k2", "k2-thinking", "glm-flash"],
)
def test_a_known_model_needs_no_keys_that_old_files_lack(
    tmp_path: Path, spec: ModelSpec, without: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    whole = read_spec(file_of(tmp_path, spec, ()))
    with caplog.at_level(logging.WARNING):
        found = read_spec(file_of(tmp_path, spec, without))
    scale, yarn = whole.routing.weights_scale, whole.rope.yarn
    assert changed(found, yarn=None, weights_scale=scale) == changed(whole, yarn=None)
    assert found.routing.weights_scale == pytest.approx(scale)
    if yarn is not None:
        assert found.rope.yarn == replace(yarn, mscale_all_dim=pytest.approx(yarn.mscale_all_dim))
    for key in without:
        if not (key == "expert_group_used_count" and found.routing.num_groups == 1):
            assert sum(f"no deepseek2.{key}; using " in message for message in caplog.messages) == 1


def test_k2_without_betas_uses_the_frequencies_of_its_config(tmp_path: Path) -> None:
    """With the paper's beta_fast of 32, 11 of the 32 pairs would rotate up to 9 times too slowly."""
    found = inverse_frequencies(read_spec(file_of(tmp_path, K2, BETAS)).rope)
    rope = {"rope_type": "yarn", "rope_theta": 50000.0, "factor": 32.0, "original_max_position_embeddings": 4096}
    ramp = {"beta_fast": 1, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
    config = DeepseekV3Config(max_position_embeddings=131_072, rope_parameters=rope | ramp)
    expected, _ = ROPE_INIT_FUNCTIONS["yarn"](config, device=None)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)


def test_a_reduced_file_of_a_known_model_is_recognised(tmp_path: Path) -> None:
    no_dense = changed(V3, num_layers=1, num_dense_layers=0, dense_width=0)
    gguf = file_of(tmp_path, no_dense, ("expert_group_count", "expert_group_used_count"))
    assert read_spec(gguf).routing.num_groups == 8


def test_the_file_wins_over_config_json_and_that_over_the_table(tmp_path: Path) -> None:
    config = HfConfig.model_validate({"rope_scaling": {"type": "yarn", "beta_fast": 16, "mscale_all_dim": 1}})
    filed = read_spec(file_of(tmp_path, V3, (), **{BETAS[0]: 8.0}), config).rope.yarn
    assert filed is not None
    assert filed.beta_fast == 8.0
    configured = read_spec(file_of(tmp_path, V3, BETAS), config).rope.yarn
    assert configured is not None
    assert configured.beta_fast == 16.0


def test_models_of_the_same_dimensions_that_differ_in_a_missing_key_are_not_guessed(tmp_path: Path) -> None:
    gguf = file_of(tmp_path, K2_THINKING, BETAS)
    message = refusal(gguf)
    assert message.startswith("model_path=none: ")
    assert "m.gguf lacks deepseek2.rope.scaling.yarn_beta_fast" in message
    assert (
        "its dimensions match Kimi K2-Thinking or Kimi K2.5, K2.6 or K2.7-Code, which have different values" in message
    )
    assert (
        "pass --model_path with a directory with the model's config.json, which has rope_scaling.beta_fast" in message
    )
    config = HfConfig.model_validate({"text_config": {"rope_scaling": {"type": "yarn", "beta_fast": 32.0}}})
    found = read_spec(gguf, config.language_model).rope.yarn
    assert found is not None
    assert found.beta_fast == 32.0


def test_a_file_that_contradicts_the_table_is_no_known_model(tmp_path: Path) -> None:
    gguf = file_of(tmp_path, K2, BETAS, **{"rope.freq_base": 10000.0})
    assert "its dimensions do not match a known model" in refusal(gguf)


@pytest.mark.parametrize("key", [*ROUTING, *BETAS, MULTIPLIER, "rope.freq_base"])
def test_an_unknown_model_is_refused_for_every_missing_key_that_matters(tmp_path: Path, key: str) -> None:
    gguf = open_gguf(write_model(tmp_path / "m.gguf", V3_SPEC, metadata={f"deepseek2.{key}": None}))
    message = refusal(gguf)
    assert f"m.gguf lacks deepseek2.{key}, and its dimensions do not match a known model; pass --model_path" in message
    assert "lacks" in refusal(gguf, HfConfig()), "a config.json without the key does not help"


def test_weights_of_shared_experts_without_their_number_are_not_left_out(tmp_path: Path) -> None:
    gguf = open_gguf(write_model(tmp_path / "m.gguf", V3_SPEC, metadata={"deepseek2.expert_shared_count": None}))
    with pytest.raises(ModelError, match=r"deepseek2\.expert_shared_count is missing"):
        read_spec(gguf)


def test_every_row_of_the_table_is_unique() -> None:
    rows = [(model.dimensions, tuple(sorted(model.values.items()))) for model in KNOWN_MODELS]
    assert len(set(rows)) == len(rows)
