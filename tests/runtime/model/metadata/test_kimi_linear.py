"""Files of Kimi Linear, where most layers are Kimi Delta Attention."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as GgmlType

from ballast.errors import ModelError
from ballast.model.layers.latent import LatentSpec
from ballast.model.metadata import HfConfig, read_spec
from ballast.model.modules import module_tree
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors, expected_tensors
from ballast.plan.gpus.device import kv_row_bytes
from ballast.weights.gguf import open_gguf
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import write_hollow_model, write_model
from devkit.models.read_back import read_back
from devkit.models.specs.kimi import KIMI_LINEAR_48B_SPEC, KIMI_LINEAR_SPEC


def plain(spec: ModelSpec) -> ModelSpec:
    """The spec without the numbers that files round."""
    return replace(changed(spec, weights_scale=1.0), rms_eps=0.0)


@pytest.mark.parametrize("layout", ["joint", "split"])
def test_a_written_file_is_read_back_equal(tmp_path: Path, layout: str):
    spec = changed(KIMI_LINEAR_SPEC, mla_layout=layout)
    assert plain(read_back(tmp_path, spec)) == plain(spec)
    assert spec.ropes == ()


def test_sizes_are_those_of_the_published_model(tmp_path: Path):
    gguf = open_gguf(write_hollow_model(tmp_path / "48b.gguf", KIMI_LINEAR_48B_SPEC, {}))
    spec = read_spec(gguf)
    check_tensors(gguf, spec)
    assert plain(spec) == plain(KIMI_LINEAR_48B_SPEC)
    assert spec.state_bytes == 44_892_160
    assert kv_row_bytes(spec, "fp16") == 8_064
    assert sum(prod(tensor.shape) for tensor in expected_tensors(spec).values()) == 49_122_681_728


def test_keys_of_rotations_are_ignored(tmp_path: Path):
    keys = {"rope.freq_base": 1e4, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    assert plain(read_back(tmp_path, KIMI_LINEAR_SPEC, keys)) == plain(KIMI_LINEAR_SPEC)


@pytest.mark.parametrize("ones", [lambda rows, taps: (1, rows, 1, taps), lambda rows, taps: (rows, 1, taps)])
def test_files_may_add_dimensions_of_one(tmp_path: Path, ones: Any):
    tensors = expected_tensors(KIMI_LINEAR_SPEC)
    shapes = {name: ones(*each.shape) for name, each in tensors.items() if "ssm_conv1d" in name}
    shapes |= {name: (*each.shape, 1) for name, each in tensors.items() if name.endswith("ssm_a")}
    assert plain(read_back(tmp_path, KIMI_LINEAR_SPEC, shapes=shapes)) == plain(KIMI_LINEAR_SPEC)
    wrong = {"blk.0.ssm_conv1d_q.weight": ones(4, 128)}
    with pytest.raises(ModelError, match=r"ssm_conv1d_q\.weight.*expected shape \(64, 4\)"):
        read_back(tmp_path, KIMI_LINEAR_SPEC, shapes=wrong)


def test_rates_are_float32_in_any_number_of_dimensions(tmp_path: Path):
    with pytest.raises(ModelError, match=r"ssm_a.*F16 cannot be read; expected F32"):
        read_back(tmp_path, KIMI_LINEAR_SPEC, shapes={"blk.0.ssm_a": (2, 1)}, types={"blk.0.ssm_a": GgmlType.F16})


def test_placement_rules_find_each_kind_of_layer():
    found = {module.name: module.classes for module in module_tree(KIMI_LINEAR_SPEC)}
    assert "KimiLinearDeltaAttention" in found["model.layers.0.self_attn"]
    assert "KimiLinearAttention" in found["model.layers.1.self_attn"]
    assert "model.layers.0.self_attn.f_a_proj" in found
    assert not any(name.endswith("rotary_emb") for name in found)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (
            {"attention.head_count_kv": None},
            "head_count_kv is missing; expected a whole number for each of 4 layers",
        ),
        ({"attention.head_count_kv": 0}, "head_count_kv=0: no layer has attention"),
        ({"attention.head_count_kv": [0, 1, 0]}, "for each of 4 layers, 0 for those"),
        ({"attention.head_count_kv": [0, 1, 0, -1]}, "for each of 4 layers, 0 for those"),
        ({"attention.head_count_kv": [0, 0, 0, 0]}, "no layer has attention"),
        ({"attention.head_count": 4096}, "head_count=4096; expected a whole number, at least 1 and at most 1024"),
        ({"kda.head_dim": None}, "kda.head_dim is missing"),
        ({"kda.head_dim": 2**20}, "kda.head_dim=1048576; expected a whole number, at least 1 and at most 512"),
        ({"kda.head_dim": 40}, "kda.head_dim=40; expected a multiple of 32"),
        ({"ssm.conv_kernel": 1}, "ssm.conv_kernel=1; expected a whole number, at least 2"),
        (
            {"kda.head_dim": 512, "attention.head_count": 1024},
            "kda.head_dim=512 with 1024 heads in 2 layers: the state of a sequence takes .* bytes; expected",
        ),
        ({"kda.gate_lower_bound": -5.0}, "gate_lower_bound=-5.0: bounded decays are not supported"),
    ],
)
def test_senseless_and_absurd_sizes_are_refused(tmp_path: Path, keys: dict[str, Any], problem: str):
    with pytest.raises(ModelError, match=problem):
        read_back(tmp_path, KIMI_LINEAR_SPEC, keys)


LINEAR = {"num_heads": 2, "head_dim": 32, "short_conv_kernel_size": 4, "full_attn_layers": [2, 4]}
CONFIG = {
    "num_experts_per_token": KIMI_LINEAR_SPEC.routing.num_experts_used,
    "num_shared_experts": 2,
    "num_expert_group": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
}


def test_config_json_must_agree(tmp_path: Path):
    gguf = open_gguf(write_model(tmp_path / "model.gguf", KIMI_LINEAR_SPEC))

    def check(config: dict[str, Any], **linear: Any) -> None:
        read_spec(gguf, HfConfig.model_validate({**config, "linear_attn_config": LINEAR | linear, "rope_theta": 1e4}))

    check(CONFIG | {"mla_use_nope": True})
    others = CONFIG | {name: value + 1 for name, value in CONFIG.items() if type(value) is int}
    others |= {"moe_renormalize": False, "moe_router_activation_func": "softmax"}
    for name, other in others.items():
        with pytest.raises(ModelError, match=f"{name} is {CONFIG[name]} in this file and {other} in config.json"):
            check(CONFIG | {name: other})
    for name, other in {"num_heads": 5, "head_dim": 64, "short_conv_kernel_size": 3, "full_attn_layers": [1]}.items():
        with pytest.raises(ModelError, match=rf"linear_attn_config\.{name} is .* in config\.json"):
            check(CONFIG, **{name: other})
    with pytest.raises(ModelError, match="mla_use_nope=false; expected true"):
        check(CONFIG | {"mla_use_nope": False})


def test_queries_of_the_first_layer_do_not_decide_those_of_attention(tmp_path: Path):
    low_rank = changed(KIMI_LINEAR_SPEC, q_lora_rank=48)
    mixer = read_back(tmp_path, low_rank).attentions[0]
    assert isinstance(mixer, LatentSpec)
    assert mixer.q_lora_rank == 48
