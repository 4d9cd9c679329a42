"""Files with sparse attention, where an indexer chooses the visible positions: DeepSeek V3.2 and GLM-5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ballast.errors import ModelError
from ballast.model.metadata import HfConfig, read_spec
from ballast.model.modules import module_tree
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors, expected_tensors
from ballast.plan.gpus.device import kv_row_bytes
from devkit.models.changed_spec import changed, latent_of
from devkit.models.read_back import file_of
from devkit.models.specs.deepseek import V3_SPEC, V32_SPEC
from devkit.models.specs.glm import GLM_DSA_SPEC

SPECS = pytest.mark.parametrize("spec", [V32_SPEC, GLM_DSA_SPEC], ids=["deepseek32", "glm-dsa"])


@SPECS
def test_the_indexer_is_read_from_the_file(tmp_path: Path, spec: ModelSpec) -> None:
    gguf = file_of(tmp_path, spec)
    check_tensors(gguf, spec)
    found = read_spec(gguf)
    assert changed(found, yarn=None).mixers == changed(spec, yarn=None).mixers
    names = {module.name for module in module_tree(found)}
    assert {tensor.module for tensor in expected_tensors(found).values()} <= names
    assert "model.layers.2.self_attn.indexer.weights_proj" in names
    groups = {
        name.split(".", 2)[2]: tensor.group for name, tensor in expected_tensors(found).items() if ".indexer." in name
    }
    assert groups == {
        "indexer.attn_q_b.weight": "attention",
        "indexer.attn_k.weight": "attention",
        "indexer.k_norm.weight": "norms",
        "indexer.k_norm.bias": "norms",
        "indexer.proj.weight": "attention",
    }


def test_layers_with_an_indexer_have_index_keys_in_the_cache() -> None:
    widths = [[(plane.name, plane.width) for plane in planes] for planes in GLM_DSA_SPEC.planes]
    full, shared = [("latent", 80), ("index keys", 32)], [("latent", 80)]
    assert widths == [full, full, full, shared, shared, full]
    assert kv_row_bytes(GLM_DSA_SPEC, "fp16") == 2 * (6 * 80 + 4 * 32)
    assert kv_row_bytes(V32_SPEC, "fp16") == 2 * (3 * (80 + 32))


def test_layers_with_a_shared_indexer_need_no_indexer_tensors(tmp_path: Path) -> None:
    assert not any(name.startswith(("blk.3.indexer", "blk.4.indexer")) for name in expected_tensors(GLM_DSA_SPEC))
    kept = file_of(tmp_path, GLM_DSA_SPEC, shapes={"blk.4.indexer.proj.weight": (16, 64)})
    check_tensors(kept, read_spec(kept))
    lacking = file_of(tmp_path, GLM_DSA_SPEC, shapes={"blk.5.indexer.k_norm.bias": None})
    with pytest.raises(ModelError, match=r"blk\.5\.indexer\.k_norm\.bias: is missing; expected shape \(32,\)"):
        check_tensors(lacking, read_spec(lacking))


@pytest.mark.parametrize(
    ("context", "layers"),
    [(202752, (True,) * 6), (1048576, (True, True, True, False, False, False)), (2**20 + 1, None)],
)
def test_glm_files_without_the_key_share_indexers_from_a_million_tokens(
    tmp_path: Path, context: int, layers: tuple[bool, ...] | None
) -> None:
    metadata = {"attention.indexer.types": None, "context_length": context}
    spec = GLM_DSA_SPEC if layers else changed(GLM_DSA_SPEC, num_layers=3)
    found = read_spec(file_of(tmp_path, spec, metadata))
    assert tuple(latent_of(layer.mixer).has_indexer for layer in found.layers) == (layers or (True, True, True))


@SPECS
def test_a_multi_token_prediction_block_is_not_a_layer(tmp_path: Path, spec: ModelSpec) -> None:
    counted: dict[str, Any] = {"block_count": spec.num_layers + 1, "nextn_predict_layers": 1}
    if spec is GLM_DSA_SPEC:
        counted["attention.indexer.types"] = [True, True, True, False, False, True, True]
    block = f"blk.{spec.num_layers}"
    extra: dict[str, tuple[int, ...] | None] = {
        f"{block}.nextn.eh_proj.weight": (64, 128),
        f"{block}.indexer.k_norm.bias": (32,),
        f"{block}.attn_norm.weight": (64,),
    }
    gguf = file_of(tmp_path, spec, counted, shapes=extra)
    found = read_spec(gguf)
    check_tensors(gguf, found)
    assert changed(found, yarn=None).mixers == changed(spec, yarn=None).mixers
    assert found.num_layers == spec.num_layers


def test_a_file_with_only_a_prediction_block_is_rejected(tmp_path: Path) -> None:
    counted = {"block_count": 4, "nextn_predict_layers": 1}
    only = {name: None for name in expected_tensors(V32_SPEC) if name.startswith("blk.")}
    extra = {"blk.3.nextn.eh_proj.weight": (64, 128), "blk.3.attn_norm.weight": (64,)}
    gguf = file_of(tmp_path, V32_SPEC, counted, shapes={**only, **extra})
    with pytest.raises(ModelError, match=r"the first block is 3; a file of the block that predicts .* alone \(mtp-…\)"):
        read_spec(gguf)


_INDEXER = "deepseek32.attention.indexer"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"attention.indexer.top_k": None}, f"{_INDEXER}.top_k is missing; expected a whole number"),
        ({"attention.indexer.top_k": 0}, f"{_INDEXER}.top_k=0; expected a whole number, at least 1"),
        ({"attention.indexer.top_k": [24]}, f"{_INDEXER}.top_k="),
        (
            {"attention.indexer.head_count": 1025},
            f"{_INDEXER}.head_count=1025; expected a whole number, .* at most 1024",
        ),
        ({"attention.indexer.head_count": True}, f"{_INDEXER}.head_count=True"),
        (
            {"attention.indexer.key_length": 8},
            "key_length=8; expected a whole number, at least 16, the entries",
        ),
        ({"attention.indexer.types": [True] * 3}, f"{_INDEXER}.types: layers of this architecture do not share"),
        ({"expert_gating_func": 1}, r"deepseek32.expert_gating_func=1; expected 2 \(sigmoid\)$"),
    ],
)
def test_senseless_numbers_are_refused(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(file_of(tmp_path, V32_SPEC, metadata))


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ([True, False], "true or false for each of 6 layers"),
        ([1, 1, 1, 0, 0, 1], "true or false for each of 6 layers"),
        (True, "true or false for each of 6 layers"),
        ([False, True, True, True, True, True], "true for layer 0, because no layer below has an indexer"),
    ],
)
def test_senseless_lists_of_layers_are_refused(tmp_path: Path, types: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(file_of(tmp_path, GLM_DSA_SPEC, {"attention.indexer.types": types}))


def test_an_indexer_needs_queries_of_a_low_rank(tmp_path: Path) -> None:
    shapes: dict[str, tuple[int, ...] | None] = {"blk.0.attn_q_a.weight": None, "blk.0.attn_q.weight": (96, 64)}
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q_a\.weight is missing; the indexer computes"):
        read_spec(file_of(tmp_path, V32_SPEC, shapes=shapes))


def test_an_indexer_in_a_file_of_v3_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"deepseek2\.attention\.indexer\.top_k=24: this model's attention is not"):
        read_spec(file_of(tmp_path, V3_SPEC, {"attention.indexer.top_k": 24}))


def test_choosing_more_positions_than_the_context_chooses_all(tmp_path: Path) -> None:
    found = read_spec(file_of(tmp_path, V32_SPEC, {"attention.indexer.top_k": 2**31 - 1}))
    assert [index.top_k for index in found.choices] == [V32_SPEC.context_length]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"index_n_heads": 64}, "index_n_heads is 16 in this file and 64"),
        ({"index_head_dim": 128}, "index_head_dim is 32 in this file and 128"),
        ({"index_topk": 23}, "index_topk is 24 in this file and 23"),
        ({"indexer_types": ["full", "shared"]}, "the length of indexer_types is 3 in this file and 2"),
        ({"indexer_types": ["full", "full", "shared"]}, "indexer_types of layer 2 is full in this file and shared"),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(file_of(tmp_path, V32_SPEC), HfConfig.model_validate(config))


def test_config_and_file_of_a_model_agree(tmp_path: Path) -> None:
    config = {"index_topk": 2**31 - 1, "indexer_types": ["full", "full", "full", "shared", "shared", "full", "full"]}
    file = file_of(tmp_path, GLM_DSA_SPEC, {"attention.indexer.top_k": 2**31 - 1})
    assert read_spec(file, HfConfig.model_validate(config)).context_length < 2**31 - 1
    config["indexer_types"] = ["full"] * 6
    with pytest.raises(ModelError, match="indexer_types of layer 3 is shared in this file and full in config"):
        read_spec(file, HfConfig.model_validate(config))
