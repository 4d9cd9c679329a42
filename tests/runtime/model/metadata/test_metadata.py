"""GGUF metadata to ModelSpec: every dimension comes from the file, in older and newer conversions."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as GgmlType
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ballast.errors import ModelError
from ballast.model.layers.positions import YarnSpec
from ballast.model.metadata import HfConfig, read_config, read_spec
from ballast.model.spec import ModelSpec
from ballast.model.tensors import TYPES, check_tensors, expected_tensors
from ballast.tiny import write_tiny_model
from ballast.tiny.presets import PRESETS
from ballast.weights.gguf import open_gguf
from devkit.models.changed_spec import changed, latent_of
from devkit.models.gguf_files import shapes_of, write_model
from devkit.models.specs.deepseek import V2_LITE_SPEC, V3_SPEC


def spec_of(
    tmp_path: Path,
    spec: ModelSpec = V3_SPEC,
    metadata: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    shapes: dict[str, tuple[int, ...] | None] | None = None,
) -> ModelSpec:
    """Write `spec` with changes (keys without their prefix), read it back."""
    keys = {f"deepseek2.{key}": value for key, value in (metadata or {}).items()}
    gguf = open_gguf(write_model(tmp_path / "m.gguf", spec, metadata=keys, shapes=shapes))
    return read_spec(gguf, None if config is None else HfConfig.model_validate(config))


def assert_same(found: ModelSpec, expected: ModelSpec) -> None:
    """Assert equality up to the file's rounding to float32."""
    plain = {"rms_eps": 0.0, "weights_scale": 0.0, "yarn": None}
    assert changed(found, **plain) == changed(expected, **plain)
    assert found.rms_eps == pytest.approx(expected.rms_eps, rel=1e-6)
    assert found.routing.weights_scale == pytest.approx(expected.routing.weights_scale, rel=1e-6)
    ours, theirs = found.rope.yarn, expected.rope.yarn
    assert (ours is None) == (theirs is None)
    if ours and theirs:
        assert [getattr(ours, name) for name in YarnSpec.__slots__] == pytest.approx(
            [getattr(theirs, name) for name in YarnSpec.__slots__], rel=1e-6
        )


V2_SPEC = changed(
    V3_SPEC,
    gating="softmax",
    group_score="max",
    router_bias=False,
    normalize_weights=False,
    weights_scale=16.0,
    mla_layout="joint",
)
KIMI_SPEC = changed(V3_SPEC, num_experts=384, num_experts_used=8, num_groups=1, num_groups_used=1, num_heads=4)
PLAIN_SPEC = changed(V3_SPEC, yarn=None, tied_output=True, num_dense_layers=0, dense_width=0, num_shared=0)
SPECS = {
    "v3": V3_SPEC,
    "v3-joint": changed(V3_SPEC, mla_layout="joint"),
    "v3-fused": changed(V3_SPEC, is_fused=True),
    "v2": V2_SPEC,
    "v2-lite": V2_LITE_SPEC,
    "v2-lite-split": changed(V2_LITE_SPEC, mla_layout="split"),
    "kimi": KIMI_SPEC,
    "plain": PLAIN_SPEC,
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_member_of_the_family_is_read_back_as_written(tmp_path: Path, spec: ModelSpec) -> None:
    keys = {"deepseek2.feed_forward_length": None} if spec.widest_dense == 0 else {}
    gguf = open_gguf(write_model(tmp_path / "m.gguf", spec, metadata=keys))
    found = read_spec(gguf)
    assert_same(found, spec)
    check_tensors(gguf, found)


@pytest.mark.parametrize(
    ("arch", "mla"),
    [
        (arch, mla)
        for arch, shape in PRESETS.items()
        for mla in ("split", "joint")
        if mla == "split" or shape.has_latents
    ],
)
def test_a_config_does_not_override_values_of_the_file(tmp_path: Path, arch: str, mla: str) -> None:
    tiny = write_tiny_model(tmp_path, arch=arch, mla=mla, quant="f32", num_shards=2)
    gguf = open_gguf(tiny.gguf)
    spec = read_spec(gguf, read_config(tmp_path / "config"))
    assert spec == read_spec(gguf)
    check_tensors(gguf, spec)


# --- layers and layout ------------------------------------------------------------------------------------------


def test_layout_is_decided_by_the_tensors_not_by_head_count_kv(tmp_path: Path) -> None:
    found = spec_of(
        tmp_path,
        changed(V3_SPEC, mla_layout="joint"),
        {"attention.head_count_kv": 1},
    )
    assert latent_of(found).mla_layout == "joint"


def test_low_rank_queries_are_decided_by_the_tensors(tmp_path: Path) -> None:
    assert latent_of(spec_of(tmp_path, V2_LITE_SPEC, {"attention.q_lora_rank": 1536})).q_lora_rank is None


def test_a_prediction_block_that_block_count_includes_is_not_a_layer(tmp_path: Path) -> None:
    nextn = {"blk.3.nextn.eh_proj.weight": (64, 128), "blk.3.attn_norm.weight": (64,)}
    counts = {"block_count": 4, "nextn_predict_layers": 1}
    assert spec_of(tmp_path, metadata=counts, shapes=nextn).num_layers == 3


def test_a_prediction_block_that_the_file_leaves_out_is_not_a_layer(tmp_path: Path) -> None:
    assert spec_of(tmp_path, metadata={"block_count": 4, "nextn_predict_layers": 1}).num_layers == 3


def test_a_prediction_block_that_block_count_leaves_out_is_ignored(tmp_path: Path) -> None:
    nextn = {"blk.3.nextn.eh_proj.weight": (64, 128)}
    assert spec_of(tmp_path, metadata={"nextn_predict_layers": 1}, shapes=nextn).num_layers == 3


def test_a_missing_ordinary_layer_is_not_taken_for_a_prediction_block(tmp_path: Path) -> None:
    gguf = open_gguf(write_model(tmp_path / "m.gguf", V3_SPEC, metadata={"deepseek2.block_count": 4}))
    with pytest.raises(ModelError, match=r"m\.gguf: tensor blk\.3\..*: is missing; expected shape \(64,\)"):
        check_tensors(gguf, read_spec(gguf))


def test_expert_width_may_be_given_per_layer(tmp_path: Path) -> None:
    assert spec_of(tmp_path, metadata={"expert_feed_forward_length": [0, 32, 32]}).widest_expert == 32
    with pytest.raises(ModelError, match=r"expert_feed_forward_length=\[0, 32, 48\]; expected one and the same"):
        spec_of(tmp_path, metadata={"expert_feed_forward_length": [0, 32, 48]})
    with pytest.raises(ModelError, match=r"expert_feed_forward_length=\[32\]; expected one and the same"):
        spec_of(tmp_path, metadata={"expert_feed_forward_length": [32]})


def test_the_vocabulary_size_is_that_of_the_embedding(tmp_path: Path) -> None:
    assert spec_of(tmp_path, changed(V3_SPEC, vocab_size=56), {"vocab_size": 40}).vocab_size == 56


def test_a_missing_output_matrix_means_a_tied_one(tmp_path: Path) -> None:
    assert spec_of(tmp_path, shapes={"output.weight": None}).tied_output


# --- routing ----------------------------------------------------------------------------------------------------


def test_an_unknown_gating_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"expert_gating_func=7; expected 1 \(softmax\) or 2 \(sigmoid\)"):
        spec_of(tmp_path, metadata={"expert_gating_func": 7})


NO_GROUPS = {"expert_group_count": None, "expert_group_used_count": None}


def test_group_counts_missing_in_the_file_come_from_the_config_and_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        found = spec_of(tmp_path, metadata=NO_GROUPS, config={"n_group": 4, "topk_group": 2})
    assert (found.routing.num_groups, found.routing.num_groups_used) == (4, 2)
    assert "using n_group=4 of config.json" in caplog.text


def test_v2_lite_routes_greedily_for_any_groups_in_its_file(tmp_path: Path) -> None:
    found = spec_of(
        tmp_path,
        V2_SPEC,
        config={"topk_method": "greedy", "n_group": 1, "topk_group": 1},
    )
    assert (found.routing.num_groups, found.routing.num_groups_used) == (1, 1)


@pytest.mark.parametrize("spec", [V2_SPEC, V3_SPEC], ids=["softmax", "sigmoid"])
@pytest.mark.parametrize("norm", [True, False])
def test_weights_are_normalised_by_the_file_for_any_gating(tmp_path: Path, spec: ModelSpec, norm: bool) -> None:
    assert spec_of(tmp_path, spec, {"expert_weights_norm": norm}).routing.normalize_weights is norm
    assert (
        spec_of(tmp_path, spec, {"expert_weights_norm": None}, {"norm_topk_prob": norm}).routing.normalize_weights
        is norm
    )


def test_a_zero_scale_means_no_scaling(tmp_path: Path) -> None:
    assert spec_of(tmp_path, metadata={"expert_weights_scale": 0.0}).routing.weights_scale == 1.0


# --- YaRN -------------------------------------------------------------------------------------------------------


def yarn_of(tmp_path: Path, metadata: dict[str, Any], rope_scaling: dict[str, Any] | None = None) -> YarnSpec:
    config = {"rope_scaling": {"type": "yarn"} | rope_scaling} if rope_scaling is not None else None
    yarn = spec_of(tmp_path, metadata=metadata, config=config).rope.yarn
    assert yarn is not None
    return yarn


def test_the_stored_multiplier_is_a_tenth_of_mscale_all_dim(tmp_path: Path) -> None:
    yarn = yarn_of(tmp_path, {"rope.scaling.yarn_log_multiplier": 0.0707})
    assert yarn.mscale_all_dim == pytest.approx(0.707)
    assert yarn.attention_factor == 1.0


def test_a_multiplier_of_zero_scales_cos_and_sin_but_not_the_softmax(tmp_path: Path) -> None:
    yarn = yarn_of(tmp_path, {"rope.scaling.yarn_log_multiplier": 0.0})
    assert yarn.mscale_all_dim == 0.0
    assert yarn.attention_factor == pytest.approx(1 + 0.1 * math.log(40))


def test_mscale_of_the_config_decides_the_attention_factor(tmp_path: Path) -> None:
    yarn = yarn_of(tmp_path, {}, {"mscale": 0.5, "mscale_all_dim": 1.0})
    assert yarn.attention_factor == pytest.approx((1 + 0.05 * math.log(40)) / (1 + 0.1 * math.log(40)))


@pytest.mark.parametrize(
    "mscales",
    [
        {"mscale": 1.0, "mscale_all_dim": 1.0},
        {"mscale": 0.707, "mscale_all_dim": 0.707},
        {"mscale": 0.8, "mscale_all_dim": 1.2},
        {"mscale_all_dim": 1.0},
        {"mscale": 1.0},
        {"attention_factor": 1.3},
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize("config_class", [DeepseekV2Config, DeepseekV3Config])
def test_the_attention_factor_is_the_one_of_transformers(
    tmp_path: Path, mscales: dict[str, float], config_class: type[Any]
) -> None:
    rope = {"factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1} | mscales
    config = config_class(
        max_position_embeddings=163_840, rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0} | rope
    )
    _, expected = ROPE_INIT_FUNCTIONS["yarn"](config, device=None)
    all_dim = mscales.get("mscale_all_dim")
    multiplier = None if all_dim is None else 0.1 * all_dim
    yarn = yarn_of(tmp_path, {"rope.scaling.yarn_log_multiplier": multiplier}, rope)
    assert yarn.attention_factor == pytest.approx(expected, rel=1e-6)


def test_ramp_bounds_come_from_the_file_then_the_config_then_the_paper(tmp_path: Path) -> None:
    without = {"rope.scaling.yarn_beta_fast": None, "rope.scaling.yarn_beta_slow": None}
    plain = yarn_of(tmp_path, without, {})
    assert (plain.beta_fast, plain.beta_slow) == (32.0, 1.0)
    configured = yarn_of(tmp_path, without, {"beta_fast": 16, "beta_slow": 2})
    assert (configured.beta_fast, configured.beta_slow) == (16, 2)
    filed = yarn_of(tmp_path, {"rope.scaling.yarn_beta_fast": 8.0}, {"beta_fast": 16})
    assert filed.beta_fast == 8.0


def test_no_scaling_type_means_no_yarn_and_another_type_is_refused(tmp_path: Path) -> None:
    assert spec_of(tmp_path, metadata={"rope.scaling.type": "none"}).rope.yarn is None
    with pytest.raises(ModelError, match=r"rope\.scaling\.factor=40\.0; expected 1, .* linear scaling"):
        spec_of(tmp_path, metadata={"rope.scaling.type": "linear"})


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.q_lora_rank",
        "attention.kv_lora_rank",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
    ],
)
def test_a_missing_or_invalid_key_is_reported(tmp_path: Path, key: str) -> None:
    for value, found in ((None, " is missing"), (0, "=0"), ("many", "=many")):
        with pytest.raises(ModelError, match=rf"m\.gguf: deepseek2\.{key}{found}; expected") as raised:
            spec_of(tmp_path, metadata={key: value})
        assert raised.value.exit_code == 3


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"expert_used_count": 5}, "expert_used_count=5; expected at most 4, the experts in the groups used"),
        ({"expert_group_count": 3}, "8 experts in 3 groups"),
        ({"expert_group_used_count": 5}, "5 of 4 expert groups used"),
        ({"expert_group_count": 8}, "groups of 1 expert; expected at least 2"),
        ({"rope.dimension_count": 48}, "key_length_mla=48 and deepseek2.rope.dimension_count=48; expected"),
        ({"rope.dimension_count": 15}, "key_length_mla=48 and deepseek2.rope.dimension_count=15; expected"),
        ({"leading_dense_block_count": 3}, "all 3 layers are dense"),
        ({"leading_dense_block_count": 4}, "leading_dense_block_count=4; the model has 3 layers"),
        ({"block_count": 2_000_000_000}, "block_count=2000000000; the file has"),
        ({"block_count": 2}, "block_count=2; the file has a block 2; expected 3"),
        ({"rope.scaling.yarn_log_multiplier": -1.0}, "yarn_log_multiplier=-1.0; expected"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        spec_of(tmp_path, metadata=metadata)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", 128),
        ("num_hidden_layers", 61),
        ("q_lora_rank", None),
        ("qk_nope_head_dim", 128),
        ("n_routed_experts", 256),
        ("n_group", 8),
        ("scoring_func", "softmax"),
        ("routed_scaling_factor", 1.0),
        ("rope_theta", 50000.0),
        ("rope_scaling", {"type": "yarn", "factor": 32}),
    ],
)
def test_a_config_of_another_model_is_refused_with_both_values(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(ModelError, match=rf"m\.gguf: {name}.* in config\.json; expected files of the same model"):
        spec_of(tmp_path, config={name: value})


def test_the_config_that_belongs_to_the_file_is_accepted(tmp_path: Path) -> None:
    config = {
        "hidden_size": 64,
        "q_lora_rank": 32,
        "rms_norm_eps": 1e-06,
        "n_group": 4,
        "topk_group": 2,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": 2.5,
        "rope_theta": 10000,
        "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0},
    }
    assert_same(spec_of(tmp_path, config=config), V3_SPEC)


def test_config_json_is_read_or_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: cannot be read: No such file"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{oops")
    with pytest.raises(ModelError, match=r"config\.json: is not JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"config\.json: expected a JSON object, found list"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64}))
    assert read_config(tmp_path) == HfConfig(hidden_size=64)


# --- tensors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [V3_SPEC, V2_LITE_SPEC, changed(V3_SPEC, mla_layout="joint")])
def test_every_missing_tensor_is_reported_with_its_expected_shape(tmp_path: Path, spec: ModelSpec) -> None:
    decide_the_layout = ("token_embd.weight", "output.weight", "blk.0.attn_")
    gguf = open_gguf(write_model(tmp_path / "m.gguf", spec))
    for name, shape in shapes_of(spec).items():
        if name.startswith(decide_the_layout):
            continue
        without = replace(gguf, tensors={key: info for key, info in gguf.tensors.items() if key != name})
        with pytest.raises(ModelError) as raised:
            check_tensors(without, read_spec(without))
        assert str(raised.value) == f"{gguf.path}: tensor {name}: is missing; expected shape {shape}"


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.attn_q_a.weight", "blk.0.attn_k_b.weight"])
def test_a_missing_tensor_that_determines_the_layout_is_reported(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        spec_of(tmp_path, shapes={name: None})


def test_a_wrong_shape_is_reported_with_both_shapes(tmp_path: Path) -> None:
    name = "blk.1.ffn_up_exps.weight"
    gguf = open_gguf(write_model(tmp_path / "m.gguf", V3_SPEC, shapes={name: (8, 32, 96)}))
    with pytest.raises(ModelError) as raised:
        check_tensors(gguf, read_spec(gguf))
    assert str(raised.value) == f"{gguf.path}: tensor {name}: expected shape (8, 32, 64), found (8, 32, 96)"


WIDE_SPEC = changed(V3_SPEC, hidden=256, width=256)


@pytest.mark.parametrize("kind", sorted(TYPES), ids=lambda kind: kind.name)
def test_every_promised_type_is_accepted(tmp_path: Path, kind: GgmlType) -> None:
    gguf = open_gguf(write_model(tmp_path / "m.gguf", WIDE_SPEC, types={"blk.1.ffn_down_exps.weight": kind}))
    check_tensors(gguf, read_spec(gguf))


@pytest.mark.parametrize("kind", [GgmlType.Q1_0, GgmlType.Q8_K, GgmlType.I8, GgmlType.F64])
def test_any_other_type_is_refused_by_name(tmp_path: Path, kind: GgmlType) -> None:
    name = "blk.2.ffn_down_exps.weight"
    gguf = open_gguf(write_model(tmp_path / "m.gguf", WIDE_SPEC, types={name: kind}))
    with pytest.raises(ModelError, match=rf"m\.gguf: tensor blk.*: type {kind.name} cannot be read; expected F32, F16"):
        check_tensors(gguf, read_spec(gguf))


def test_a_norm_that_is_not_float32_is_refused(tmp_path: Path) -> None:
    types = {"output_norm.weight": GgmlType.Q8_0}
    gguf = open_gguf(write_model(tmp_path / "m.gguf", V3_SPEC, types=types))
    with pytest.raises(ModelError, match=r"tensor output_norm\.weight: type Q8_0 cannot be read; expected F32$"):
        check_tensors(gguf, read_spec(gguf))


def test_tensors_of_no_use_are_mentioned_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shapes: dict[str, tuple[int, ...] | None] = {"blk.3.nextn.eh_proj.weight": (4, 4), "rope_freqs.weight": (8,)}
    gguf = open_gguf(write_model(tmp_path / "m.gguf", V3_SPEC, shapes=shapes))
    with caplog.at_level(logging.INFO):
        check_tensors(gguf, read_spec(gguf))
    assert [record.message for record in caplog.records] == [
        f"{gguf.path}: 2 tensors are not used, starting with blk.3.nextn.eh_proj.weight"
    ]


def test_every_expected_tensor_has_the_group_its_name_says() -> None:
    groups = {name: tensor.group for name, tensor in expected_tensors(V3_SPEC).items()}
    assert groups["token_embd.weight"] == "embedding"
    assert groups["output.weight"] == "output"
    assert groups["blk.0.ffn_down.weight"] == "dense feed-forward"
    assert groups["blk.1.ffn_down_exps.weight"] == "routed experts"
    assert groups["blk.1.ffn_down_shexp.weight"] == "shared experts"
    assert groups["blk.1.ffn_gate_inp.weight"] == groups["blk.1.exp_probs_b.bias"] == "router"
    assert groups["blk.1.attn_kv_a_norm.weight"] == groups["output_norm.weight"] == "norms"
    assert groups["blk.1.attn_k_b.weight"] == groups["blk.1.attn_output.weight"] == "attention"


@pytest.mark.parametrize(
    ("general", "reported"),
    [
        ({"architecture": "phi2"}, r"architecture=phi2; supported are deepseek2, deepseek32, .*, deepseek4$"),
        ({"architecture": "llama"}, "llama, which is a dense Llama, or Mixtral; supported are deepseek2, "),
        ({"architecture": "GPT-OSS"}, r"architecture=GPT-OSS; did you mean gpt-oss\?$"),
        ({"architecture": "qwen3_moe"}, r"architecture=qwen3_moe; did you mean qwen3moe\?$"),
        ({"architecture": "kimi-k3"}, "kimi-k3, which is Kimi K3, another architecture than K2; supported are"),
        ({"architecture": "clip"}, r"the part of a model that sees images \(mmproj\).*; name the file of its language"),
        ({"type": "mmproj"}, "sees images"),
        ({"architecture": "qwen35"}, "a dense Qwen3.5, not a mixture of experts; supported are"),
        ({"architecture": "hy_v4"}, "Hunyuan 4, .*, not Hunyuan 3; supported are"),
        ({"architecture": "hunyuan-moe"}, "Hunyuan-A13B, which norms .* after .*, not Hunyuan 3; supported are"),
        ({"architecture": "hunyuan-dense"}, "a dense Hunyuan, not Hunyuan 3; supported are"),
        ({"architecture": "minimax-m3"}, "MiniMax-M3, whose attention is sparse by blocks, not MiniMax-M2; supported"),
        ({"architecture": "minimax-text-01"}, "a relative of minimax, which is MiniMax-Text-01 or M1, .*; supported"),
        ({"architecture": "gptoss"}, "gpt-oss as Ollama converts it, with other names of tensors .*; supported are"),
        ({"architecture": "mistral3"}, "a dense Ministral 3 or Mistral Small 3, .*; supported are"),
        ({"architecture": "afmoe"}, "Trinity .*; supported are"),
        ({"architecture": "deepseek"}, "deepseek, which is DeepSeek MoE, the model before V2.*; supported are"),
        ({"architecture": "deepseek41"}, "deepseek41, which is another architecture than deepseek4; supported are"),
        ({"architecture": "mistral-large4"}, "which is Mistral Large 4, .*, not Mistral Large 3; supported are"),
        ({"architecture": "bailingmoe"}, r"bailingmoe, which is Ling \(Bailing MoE\); supported are"),
        ({"architecture": "bailingmoe2"}, r"which is Ling 2\.0 or Ring 2\.0; supported are"),
        ({"architecture": "bailingmoe3"}, r"which is Ling 3\.0; supported are"),
        ({"architecture": "bailingmoe-linear"}, "a relative of bailingmoe, which is Ling .*; supported are"),
        ({"architecture": "dots3"}, r"dots3, another architecture than dots1; supported are"),
        ({"architecture": "qwen3moe-next"}, "which is another architecture than qwen3moe; supported are"),
    ],
)
def test_a_file_of_another_architecture_is_rejected_with_its_name(
    tmp_path: Path, general: dict[str, str], reported: str
) -> None:
    keys = {f"general.{key}": value for key, value in general.items()}
    gguf = open_gguf(write_model(tmp_path / "m.gguf", V3_SPEC))
    gguf = replace(gguf, metadata={**gguf.metadata, **keys})
    with pytest.raises(ModelError, match=reported) as raised:
        read_spec(gguf)
    assert len(raised.value.problem) < 400
