"""Files whose attention has several key and value heads: Qwen3-MoE, GLM-4.5, MiniMax-M2, Hunyuan 3 and dots.llm1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ballast.errors import ConfigError, ModelError
from ballast.model.layers.grouped import QK_NORM, GroupedSpec
from ballast.model.metadata import HfConfig, read_spec
from ballast.model.modules import module_tree
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors, expected_tensors
from ballast.plan.gpus.device import kv_row_bytes
from devkit.models.changed_spec import changed, experts_of
from devkit.models.read_back import file_of
from devkit.models.specs.dots import DOTS_SPEC
from devkit.models.specs.glm import GLM_SPEC
from devkit.models.specs.hunyuan import HUNYUAN_SPEC
from devkit.models.specs.minimax import MINIMAX_SPEC
from devkit.models.specs.qwen3 import QWEN3_SPEC


def grouped(spec: ModelSpec) -> GroupedSpec:
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, GroupedSpec)
    return mixer


WITH_NORMS = changed(GLM_SPEC, options=frozenset({QK_NORM}))


@pytest.mark.parametrize(
    "spec",
    [QWEN3_SPEC, GLM_SPEC, WITH_NORMS, MINIMAX_SPEC, HUNYUAN_SPEC, DOTS_SPEC],
    ids=["qwen3", "glm", "norms and no biases", "minimax", "hunyuan", "dots"],
)
def test_dimensions_come_from_the_file_and_other_values_from_the_architecture(tmp_path: Path, spec: ModelSpec) -> None:
    gguf = file_of(tmp_path, spec)
    check_tensors(gguf, spec)
    found = read_spec(gguf)
    rounded = {"rms_eps": 0.0, "weights_scale": 0.0}
    assert changed(found, **rounded) == changed(spec, **rounded)
    assert (found.rms_eps, found.routing.weights_scale) == pytest.approx(
        (spec.rms_eps, spec.routing.weights_scale), rel=1e-6
    )
    names = {module.name for module in module_tree(found)}
    assert {tensor.module for tensor in expected_tensors(found).values()} <= names


def test_a_norm_of_all_heads_is_as_wide_as_the_heads_together(tmp_path: Path) -> None:
    spec = read_spec(file_of(tmp_path, MINIMAX_SPEC))
    widths = [expected_tensors(spec)[f"blk.0.attn_{kind}_norm.weight"].shape for kind in ("q", "k")]
    assert widths == [(128,), (64,)]
    narrow = file_of(tmp_path, MINIMAX_SPEC, shapes={"blk.0.attn_q_norm.weight": (32,)})
    with pytest.raises(ModelError, match=r"attn_q_norm\.weight.*expected shape \(128,\), found \(32,\)"):
        check_tensors(narrow, spec)


def test_hunyuan_tensors_determine_which_layers_are_dense(tmp_path: Path) -> None:
    routers = dict.fromkeys(f"blk.{layer}.ffn_gate_inp.weight" for layer in range(3))
    assert read_spec(file_of(tmp_path, HUNYUAN_SPEC)).routed_layers == (1, 2)
    without = file_of(tmp_path, HUNYUAN_SPEC, shapes=routers)
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_gate_inp\.weight.* is missing"):
        check_tensors(without, read_spec(without))
    counted = file_of(tmp_path, HUNYUAN_SPEC, {"leading_dense_block_count": 1, "expert_shared_count": 1})
    assert changed(read_spec(counted), weights_scale=0.0, rms_eps=0.0) == changed(
        HUNYUAN_SPEC, weights_scale=0.0, rms_eps=0.0
    )


@pytest.mark.parametrize(("width", "found"), [(32, 1), (64, 2), (0, 0)])
def test_the_number_of_shared_experts_follows_from_their_width(tmp_path: Path, width: int, found: int) -> None:
    spec = changed(HUNYUAN_SPEC, num_shared=found)
    gguf = file_of(tmp_path, spec, {"expert_shared_feed_forward_length": width})
    assert experts_of(spec) == replace(experts_of(read_spec(gguf)), routing=spec.routing)


@pytest.mark.parametrize("width", [0, 48])
def test_a_width_of_shared_experts_that_is_no_multiple_is_refused(tmp_path: Path, width: int) -> None:
    with pytest.raises(ModelError, match=r"hy_v3\.expert_shared_feed_forward_length"):
        read_spec(file_of(tmp_path, HUNYUAN_SPEC, {"expert_shared_feed_forward_length": width}))


def test_a_routers_bias_is_found_under_both_of_its_names(tmp_path: Path) -> None:
    def named(name: str, tensor: str) -> dict[str, tuple[int, ...] | None]:
        return {f"blk.{layer}.{each}": (8,) if each == name else None for layer in (1, 2) for each in (name, tensor)}

    for spec, other in ((HUNYUAN_SPEC, "exp_probs_b.bias"), (GLM_SPEC, "exp_probs_b")):
        own = "exp_probs_b" if spec is HUNYUAN_SPEC else "exp_probs_b.bias"
        gguf = file_of(tmp_path, spec, shapes=named(other, own))
        found = read_spec(gguf)
        check_tensors(gguf, found)
        assert f"blk.1.{other}" in expected_tensors(found)
        assert found.routing.router_bias


def test_hunyuan_files_without_a_bias_have_none(tmp_path: Path) -> None:
    gguf = file_of(tmp_path, HUNYUAN_SPEC, shapes=dict.fromkeys(f"blk.{layer}.exp_probs_b" for layer in (1, 2)))
    found = read_spec(gguf)
    check_tensors(gguf, found)
    assert not found.routing.router_bias


def test_planes_are_keys_and_values_of_all_their_heads() -> None:
    assert [(plane.name, plane.width) for plane in QWEN3_SPEC.planes[0]] == [("keys", 64), ("values", 64)]
    assert kv_row_bytes(QWEN3_SPEC, "fp16") == 2 * (128 * QWEN3_SPEC.num_layers)


def test_a_multi_token_prediction_block_is_not_a_layer(tmp_path: Path) -> None:
    counted = {"block_count": GLM_SPEC.num_layers + 1, "nextn_predict_layers": 1}
    extra = {"blk.3.nextn.eh_proj.weight": (64, 128), "blk.3.attn_q.weight": (128, 64), "blk.3.attn_q.bias": (128,)}
    gguf = file_of(tmp_path, GLM_SPEC, counted, shapes=extra)
    found = read_spec(gguf)
    check_tensors(gguf, found)
    assert found.num_layers == GLM_SPEC.num_layers


def test_glm_files_without_a_gate_mean_sigmoid(tmp_path: Path) -> None:
    silent = dict.fromkeys(("expert_gating_func", "expert_group_count", "expert_group_used_count"))
    found = read_spec(file_of(tmp_path, GLM_SPEC, silent))
    assert (found.routing.gating, found.routing.num_groups, found.routing.router_bias) == ("sigmoid", 1, True)


def test_glm_files_must_say_whether_weights_are_normalised(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lacks glm4moe\.expert_weights_norm"):
        read_spec(file_of(tmp_path, GLM_SPEC, {"expert_weights_norm": None}))


def test_qwen3_normalises_unless_its_config_disables_it(tmp_path: Path) -> None:
    gguf = file_of(tmp_path, QWEN3_SPEC)
    assert read_spec(gguf).routing.normalize_weights
    assert not read_spec(gguf, HfConfig(norm_topk_prob=False)).routing.normalize_weights


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_key_value_heads": 4}, "num_key_value_heads is 2 in this file and 4"),
        ({"head_dim": 64}, "head_dim is 32 in this file and 64"),
        ({"num_experts": 16}, "num_experts is 8 in this file and 16"),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(file_of(tmp_path, QWEN3_SPEC), HfConfig.model_validate(config))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"attention.head_count_kv": 3}, "4 heads share 3 of the cache; expected equal groups"),
        ({"attention.head_count_kv": None}, "qwen3moe.attention.head_count_kv is missing"),
        (
            {"attention.key_length": None},
            "key_length is missing, which means 16, and blk.0.attn_k.weight has 64 rows for 2 heads; expected 32",
        ),
        ({"attention.value_length": None}, "value_length is missing, which means 16, and blk.0.attn_v.weight has 64"),
        ({"rope.dimension_count": 34}, "heads of 32 with 34 rotated dimensions"),
        ({"expert_gating_func": 2}, r"qwen3moe.expert_gating_func=2; expected 1 \(softmax\)$"),
    ],
)
def test_senseless_numbers_are_refused(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(file_of(tmp_path, QWEN3_SPEC, metadata))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"blk.1.attn_q_norm.weight": None}, r"attn_q_norm\.weight.* is missing"),
        ({"blk.1.attn_output.bias": (64,)}, r"is a bias of blk\.1\.attn_output\.weight, which is not supported"),
        ({"blk.2.attn_k.bias": (64,)}, r"is a bias of blk\.2\.attn_k\.weight, which is not supported"),
    ],
)
def test_files_with_unused_weights_are_rejected(
    tmp_path: Path, shapes: dict[str, tuple[int, ...] | None], message: str
) -> None:
    gguf = file_of(tmp_path, QWEN3_SPEC, shapes=shapes)
    with pytest.raises(ModelError, match=message):
        check_tensors(gguf, read_spec(gguf))
