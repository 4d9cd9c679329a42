"""Files of models most of whose layers are Gated DeltaNet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as GgmlType

from ballast.errors import ModelError
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.metadata import HfConfig, read_spec
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors
from ballast.plan.gpus.device import kv_row_bytes
from ballast.weights.gguf import open_gguf
from devkit.models.gguf_files import write_hollow_model, write_model
from devkit.models.read_back import read_back
from devkit.models.specs.qwen3 import QWEN3_NEXT_80B_SPEC, QWEN3_NEXT_SPEC, QWEN35_122B_SPEC, QWEN35_SPEC

SHARED_GATE = "blk.0.ffn_gate_inp_shexp.weight"


def plain(spec: ModelSpec) -> ModelSpec:
    """The spec without the number that files round."""
    return replace(spec, rms_eps=0.0)


def test_a_written_file_is_read_back_equal(tmp_path: Path):
    assert plain(read_back(tmp_path, QWEN3_NEXT_SPEC)) == plain(QWEN3_NEXT_SPEC)
    spec = read_spec(open_gguf(write_hollow_model(tmp_path / "80b.gguf", QWEN3_NEXT_80B_SPEC, {})))
    assert plain(spec) == plain(QWEN3_NEXT_80B_SPEC)
    assert spec.state_bytes == 79_036_416
    assert kv_row_bytes(spec, "fp16") == 24_576


def test_files_of_another_architecture_alternate_heads_and_split_gates(tmp_path: Path):
    for spec, num_bytes in ((QWEN35_SPEC, None), (QWEN35_122B_SPEC, 156_303_360)):
        gguf = open_gguf(write_hollow_model(tmp_path / "model.gguf", spec, {}))
        found = read_spec(gguf)
        assert plain(found) == plain(spec)
        check_tensors(gguf, found)
        assert num_bytes is None or found.state_bytes == num_bytes


@pytest.mark.parametrize("sections", [None, [1, 1, 1, 0], [5, -1, 0, 0], 4])
def test_sections_divide_the_rotated_pairs(tmp_path: Path, sections: object):
    metadata = {"qwen35moe.rope.dimension_sections": sections}
    gguf = open_gguf(write_model(tmp_path / "model.gguf", QWEN35_SPEC, metadata=metadata))
    with pytest.raises(ModelError, match=r"rope\.dimension_sections.* expected whole numbers that add up to 4"):
        read_spec(gguf)


def test_every_fourth_layer_has_attention_by_default(tmp_path: Path):
    assert plain(read_back(tmp_path, QWEN3_NEXT_SPEC, {"attention.recurrent_layers": None})) == plain(QWEN3_NEXT_SPEC)
    named = read_back(tmp_path, QWEN3_NEXT_SPEC, {"attention.recurrent_layers": None, "full_attention_interval": 4})
    assert plain(named) == plain(QWEN3_NEXT_SPEC)


def test_older_files_have_one_product_grouped_by_key_head(tmp_path: Path):
    layers = []
    for layer in QWEN3_NEXT_SPEC.layers:
        mixer = layer.mixer
        is_net = isinstance(mixer, DeltaNetSpec)
        layers.append(replace(layer, mixer=replace(mixer, product_layout="grouped")) if is_net else layer)
    older = replace(QWEN3_NEXT_SPEC, layers=tuple(layers))
    gguf = open_gguf(write_model(tmp_path / "model.gguf", older))
    assert plain(read_spec(gguf)) == plain(older)
    check_tensors(gguf, older)
    assert "blk.0.ssm_in.weight" in gguf.tensors
    assert "blk.0.attn_qkv.weight" not in gguf.tensors


@pytest.mark.parametrize("kind", [GgmlType.F32, GgmlType.F16, GgmlType.BF16])
def test_the_gate_of_shared_experts_may_be_short(tmp_path: Path, kind: GgmlType):
    read_back(tmp_path, QWEN3_NEXT_SPEC, types={SHARED_GATE: kind})


def test_other_vectors_may_not(tmp_path: Path):
    with pytest.raises(ModelError, match=r"ssm_norm\.weight.*BF16 cannot be read; expected F32"):
        read_back(tmp_path, QWEN3_NEXT_SPEC, types={"blk.0.ssm_norm.weight": GgmlType.BF16})


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"ssm.state_size": None}, "ssm.state_size is missing"),
        ({"ssm.state_size": 2**20}, "ssm.state_size=1048576; expected a whole number, at least 1 and at most 512"),
        ({"ssm.state_size": 40}, "expected a multiple of 32"),
        ({"ssm.time_step_rank": 2**31 - 1}, "ssm.time_step_rank=2147483647; expected .* at most 1024"),
        ({"ssm.group_count": 4}, "expected a divisor of ssm.time_step_rank, which is 6"),
        ({"ssm.inner_size": 191}, "expected 192"),
        ({"ssm.conv_kernel": 1}, "ssm.conv_kernel=1; expected a whole number, at least 2"),
        ({"ssm.conv_kernel": 10**6}, "at most 16"),
        (
            {"ssm.state_size": 512, "ssm.time_step_rank": 1024, "ssm.inner_size": 512 * 1024},
            "the state of a sequence takes .* bytes; expected at most 2147483648",
        ),
        ({"attention.recurrent_layers": [True] * 3}, "true or false for each of 4 layers"),
        ({"attention.recurrent_layers": [True] * 4}, "no layer has attention"),
        (
            {"attention.recurrent_layers": [True, False, True, False]},
            r"layer 1 attention, and the file has blk\.1\.ssm_a",
        ),
        ({"attention.recurrent_layers": None, "full_attention_interval": 2}, "interval=2 gives layer 1 attention, and"),
        ({"attention.recurrent_layers": None, "full_attention_interval": 9}, "interval=9: no layer has attention"),
        ({"attention.recurrent_layers": None, "full_attention_interval": 0}, "a whole number, at least 1"),
    ],
)
def test_senseless_and_absurd_sizes_are_refused(tmp_path: Path, keys: dict[str, Any], problem: str):
    with pytest.raises(ModelError, match=problem):
        read_back(tmp_path, QWEN3_NEXT_SPEC, keys)


def test_config_json_must_agree(tmp_path: Path):
    gguf = open_gguf(write_model(tmp_path / "model.gguf", QWEN3_NEXT_SPEC))
    sizes = {"linear_num_value_heads": 6, "linear_num_key_heads": 2, "linear_conv_kernel_dim": 4}
    sizes |= {"linear_key_head_dim": 32, "linear_value_head_dim": 32, "num_attention_heads": 4}
    read_spec(gguf, HfConfig(**sizes))
    for name, number in sizes.items():
        with pytest.raises(ModelError, match=f"{name} is {number} in this file and {number + 1} in config.json"):
            read_spec(gguf, HfConfig(**sizes | {name: number + 1}))


def test_tensors_of_another_size_are_refused(tmp_path: Path):
    with pytest.raises(ModelError, match=r"blk\.0\.ssm_ba\.weight.*expected shape \(12, "):
        read_back(tmp_path, QWEN3_NEXT_SPEC, shapes={"blk.0.ssm_ba.weight": (10, QWEN3_NEXT_SPEC.hidden)})
    with pytest.raises(ModelError, match=r"blk\.1\.ssm_a: is missing|blk\.1\.ssm_a.*is missing"):
        read_back(tmp_path, QWEN3_NEXT_SPEC, shapes={"blk.1.ssm_a": None})
