"""Tiny models: reproducible bytes, the same weights in every layout, keys and tokens like in real files."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from gguf import GGMLQuantizationType, GGUFReader
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ballast.errors import ConfigError
from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.tensor import matrix
from ballast.model.metadata import read_spec
from ballast.model.tensors import TYPES, check_tensors
from ballast.text.gguf_vocab import build_backend
from ballast.tiny import K2, V2, V2_LITE, V3, TinyModel, TinyShape, write_tiny_model
from ballast.tiny.presets import PRESETS, preset_of
from ballast.tiny.quant_mix import QUANTS, type_for
from ballast.weights.gguf import open_gguf
from devkit.long import if_long, times
from devkit.oracles.hf_oracle import values_of, with_scales

Make = Callable[..., TinyModel]
ARCHS = {"v2lite": V2_LITE, "v2": V2, "v3": V3, "k2": K2}
TWO_LAYERS = dataclasses.replace(V3, num_layers=2)
"""Has rows of 256 values, and rows that use the fallback type."""
SOME_QUANTS = times(("f32", "f16", "q4_0", "q8_0", "q4_k", "iq4_xs", "iq2_xxs", "tq1_0", "nvfp4", "q4_k_m"), QUANTS)
"""One of each kind; `test_quantize.py` has all types."""
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def digest(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(f.relative_to(directory)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


@functools.cache
def reader_of(path: Path) -> GGUFReader:
    return GGUFReader(path)


def keys_of(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in reader_of(path).fields.items()}


def types_of(path: Path) -> dict[str, str]:
    return {tensor.name: tensor.tensor_type.name for tensor in reader_of(path).tensors}


def floats_of(*paths: Path) -> dict[str, np.ndarray]:
    return with_scales({tensor.name: values_of(tensor) for path in paths for tensor in reader_of(path).tensors})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Writes each model once; tests only read them."""

    @functools.cache
    def write(**arguments: Any) -> TinyModel:
        return write_tiny_model(tmp_path_factory.mktemp("tiny"), **arguments)

    defaults = {"arch": "v3", "mla": "split", "quant": "q4_k", "seed": 0, "overrides": None}
    return lambda **arguments: write(**defaults | arguments)


@pytest.mark.parametrize(("arch", "mla", "quant"), [("v3", "split", "q4_k"), ("v2lite", "joint", "q4_k_m")])
def test_same_arguments_give_the_same_bytes_in_another_process(tmp_path: Path, arch: str, mla: str, quant: str):
    write_tiny_model(tmp_path / "here", arch=arch, mla=mla, quant=quant, seed=5)
    program = (
        "import sys; from pathlib import Path; from ballast.tiny import write_tiny_model; "
        f"write_tiny_model(Path(sys.argv[1]), arch={arch!r}, mla={mla!r}, quant={quant!r}, seed=5)"
    )
    # Hash order and the number of tokenizer threads must not affect the file.
    other = {**os.environ, "PYTHONHASHSEED": "12345", "RAYON_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", program, tmp_path / "there"], check=True, timeout=120, env=other)
    assert digest(tmp_path / "here") == digest(tmp_path / "there")


def test_another_seed_changes_the_weights_but_not_the_config(made: Make):
    first, second = (made(quant="q8_0", seed=seed) for seed in (0, 1))
    assert digest(first.config_dir) == digest(second.config_dir)
    ours, theirs = floats_of(first.gguf), floats_of(second.gguf)
    assert not any(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("arch", ARCHS)
def test_layouts_hold_the_same_weights(made: Make, arch: str):
    joint = floats_of(made(arch=arch, mla="joint", quant="f32").gguf)
    split = floats_of(made(arch=arch, mla="split", quant="f32").gguf)
    shape = ARCHS[arch]
    for layer in range(shape.num_layers):
        per_head = joint.pop(f"blk.{layer}.attn_kv_b.weight").reshape(
            shape.num_heads, shape.nope_dim + shape.v_dim, shape.kv_lora_rank
        )
        for head in range(shape.num_heads):
            k_b, v_b = split[f"blk.{layer}.attn_k_b.weight"][head], split[f"blk.{layer}.attn_v_b.weight"][head]
            assert np.array_equal(per_head[head, : shape.nope_dim].T, k_b)
            assert np.array_equal(per_head[head, shape.nope_dim :], v_b)
        del split[f"blk.{layer}.attn_k_b.weight"], split[f"blk.{layer}.attn_v_b.weight"]
    assert joint.keys() == split.keys()
    assert all(np.array_equal(joint[name], split[name]) for name in joint)


@pytest.fixture(scope="module")
def exact(made: Make) -> dict[str, np.ndarray]:
    """The weights of TWO_LAYERS."""
    return floats_of(made(overrides=TWO_LAYERS, quant="f32").gguf)


@pytest.mark.parametrize("quant", SOME_QUANTS)
def test_every_quantisation_is_of_the_same_weights(made: Make, exact: dict[str, np.ndarray], quant: str):
    rounded = floats_of(made(overrides=TWO_LAYERS, quant=quant).gguf)
    assert exact.keys() == rounded.keys()
    for name, values in exact.items():
        error = np.sqrt(np.mean((rounded[name] - values) ** 2) / np.mean(values**2))
        assert error <= 0.57, name  # the bound of IQ1_S; test_quantize.py has those of the other types


@pytest.mark.parametrize("quant", sorted({*SOME_QUANTS} - {"q4_k_m", "f32"}))
def test_a_plain_quantisation_uses_its_type_and_floats_for_norms_and_router(made: Make, quant: str):
    types = types_of(made(overrides=TWO_LAYERS, quant=quant).gguf)
    points = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
    fallback = dict.fromkeys(points, "IQ4_NL") | {"tq1_0": "Q4_0", "tq2_0": "Q4_0"}
    fallback |= {"q4_k": "Q5_0", "q5_k": "Q5_1", "q6_k": "Q8_0", "q2_k": "IQ4_NL", "q3_k": "IQ4_NL", "iq4_xs": "IQ4_NL"}
    for name, found in types.items():
        if "norm" in name or "gate_inp" in name or name.endswith((".bias", ".scale")):
            assert found == "F32", name
        elif "attn_k_b" in name:
            assert found == fallback.get(quant, quant.upper()), name
        else:
            assert found == quant.upper(), name


def test_nvfp4_matrices_have_separate_scales(made: Make):
    file = made(overrides=TWO_LAYERS, quant="nvfp4").gguf
    types = types_of(file)
    shapes = {tensor.name: tuple(tensor.shape) for tensor in reader_of(file).tensors}
    for name in [name for name, found in types.items() if found == "NVFP4" and name != "token_embd.weight"]:
        assert shapes[name.replace(".weight", ".scale")] == ((V3.num_experts,) if "_exps" in name else (1,))
    assert "token_embd.scale" not in types
    assert sum(name.endswith(".scale") for name in types) == list(types.values()).count("NVFP4") - 1
    gguf_model = open_gguf(file)
    check_tensors(gguf_model, read_spec(gguf_model))


def test_every_type_that_is_read_is_offered():
    assert {type_for(matrix("up", "ffn_up", (1, 256), "mlp.up_proj"), quant) for quant in QUANTS} == TYPES


def test_rows_of_v2lite_experts_fit_no_block_of_256(made: Make):
    types = types_of(made(arch="v2lite", quant="q4_k").gguf)
    assert V2_LITE.expert_dim % 256
    assert types["blk.1.ffn_down_exps.weight"] == "Q5_0"
    assert types["blk.1.ffn_gate_exps.weight"] == "Q4_K"


def test_the_mix_resembles_published_files(made: Make):
    types = types_of(made(arch="v3", quant="q4_k_m").gguf)
    assert types["blk.1.ffn_gate_exps.weight"] == "Q4_K"
    assert types["blk.1.ffn_down_exps.weight"] == "Q6_K"
    assert types["output.weight"] == "Q6_K"
    assert types["blk.1.attn_k_b.weight"] == "Q8_0"
    assert Counter(types.values()).keys() == {"F32", "Q4_K", "Q6_K", "Q8_0"}


def test_rows_that_no_block_fits_become_half_precision():
    query = matrix("query", "attn_q", (64, 48), "self_attn.q_proj")
    assert type_for(query, "q4_k") == GGMLQuantizationType.F16
    assert type_for(query, "q8_0") == GGMLQuantizationType.F16


@pytest.mark.parametrize("arch", ARCHS)
def test_keys_describe_the_layout(made: Make, arch: str):
    shape = ARCHS[arch]
    split = keys_of(made(arch=arch, mla="split").gguf)
    assert split["deepseek2.attention.head_count_kv"] == 1
    assert split["deepseek2.attention.key_length"] == shape.kv_lora_rank + shape.rope_dim == 576
    assert split["deepseek2.attention.value_length"] == shape.kv_lora_rank == 512
    assert split["deepseek2.attention.key_length_mla"] == shape.nope_dim + shape.rope_dim
    assert split["deepseek2.attention.value_length_mla"] == shape.v_dim
    joint = keys_of(made(arch=arch, mla="joint").gguf)
    assert joint["deepseek2.attention.head_count_kv"] == shape.num_heads
    assert joint["deepseek2.attention.key_length"] == shape.nope_dim + shape.rope_dim
    assert joint["deepseek2.attention.value_length"] == shape.v_dim
    assert not [key for key in joint if key.endswith("_mla")]


def test_old_keys_omit_the_keys_that_older_conversions_lacked(made: Make):
    v2, v3 = (keys_of(made(overrides=dataclasses.replace(shape, old_keys=True)).gguf) for shape in (V2, V3))
    assert not [key for key in (*v2, *v3) if "expert_group" in key or "yarn_beta" in key]
    assert "deepseek2.expert_gating_func" not in v2
    assert "deepseek2.expert_weights_norm" not in v2
    assert v3["deepseek2.expert_gating_func"] == 2
    assert v3["deepseek2.expert_weights_norm"] is True


@pytest.mark.parametrize("arch", ARCHS)
def test_config_agrees_with_the_file(made: Make, arch: str):
    model = made(arch=arch)
    keys, config = keys_of(model.gguf), json.loads((model.config_dir / "config.json").read_text())
    same = {
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "leading_dense_block_count": "first_k_dense_replace",
        "vocab_size": "vocab_size",
        "expert_count": "n_routed_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_shared_count": "n_shared_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
        "expert_weights_norm": "norm_topk_prob",
        "attention.head_count": "num_attention_heads",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.value_length_mla": "v_head_dim",
        "rope.dimension_count": "qk_rope_head_dim",
        "rope.freq_base": "rope_theta",
    }
    for key, name in same.items():
        assert keys[f"deepseek2.{key}"] == config[name], key
    assert keys.get("deepseek2.attention.q_lora_rank") == config["q_lora_rank"]
    assert keys["deepseek2.expert_weights_scale"] == pytest.approx(config["routed_scaling_factor"])
    assert {1: "softmax", 2: "sigmoid"}[keys["deepseek2.expert_gating_func"]] == config["scoring_func"]
    multiplier = keys["deepseek2.rope.scaling.yarn_log_multiplier"]
    assert multiplier == pytest.approx(0.1 * config["rope_scaling"]["mscale_all_dim"])
    for beta in ("beta_fast", "beta_slow"):
        assert keys[f"deepseek2.rope.scaling.yarn_{beta}"] == config["rope_scaling"][beta]


def test_the_tiny_k2_has_the_ramp_of_the_real_one(made: Make):
    """It leaves 11 of 32 frequencies unchanged that a beta_fast of 32 would stretch."""
    keys = keys_of(made(arch="k2").gguf)
    assert keys["deepseek2.rope.scaling.yarn_beta_fast"] == keys["deepseek2.rope.scaling.yarn_beta_slow"] == 1.0


@pytest.mark.parametrize("arch", ["v2", "v3"])
def test_tokens_of_the_file_and_of_tokenizer_json_are_the_same(made: Make, arch: str):
    model = made(arch=arch)
    keys = keys_of(model.gguf)
    spec = json.loads((model.config_dir / "tokenizer.json").read_text())
    backend = tokenizers.Tokenizer.from_file(str(model.config_dir / "tokenizer.json"))
    num_tokens, tokens = backend.get_vocab_size(), keys["tokenizer.ggml.tokens"]
    assert 1000 <= num_tokens <= 2000
    assert [backend.token_to_id(token) for token in tokens[:num_tokens]] == list(range(num_tokens))
    assert keys["tokenizer.ggml.merges"] == [" ".join(pair) for pair in spec["model"]["merges"]]
    assert keys["tokenizer.ggml.pre"] == {"v2": "deepseek-llm", "v3": "deepseek-v3"}[arch]

    config = json.loads((model.config_dir / "tokenizer_config.json").read_text())
    assert keys["tokenizer.chat_template"] == config["chat_template"]
    assert keys["tokenizer.ggml.add_bos_token"] is config["add_bos_token"] is True
    generation = json.loads((model.config_dir / "generation_config.json").read_text())
    for kind in ("bos", "eos"):
        assert tokens[keys[f"tokenizer.ggml.{kind}_token_id"]] == config[f"{kind}_token"]
        assert keys[f"tokenizer.ggml.{kind}_token_id"] == generation[f"{kind}_token_id"]
    assert tokens[keys["tokenizer.ggml.padding_token_id"]] == config["pad_token"]


@pytest.mark.parametrize("arch", ["v2", "v3"])
def test_text_round_trips_through_both_tokenizers(made: Make, arch: str):
    model = made(arch=arch)
    from_json = tokenizers.Tokenizer.from_file(str(model.config_dir / "tokenizer.json"))
    from_gguf = build_backend(keys_of(model.gguf), str(model.gguf))
    text = "Ünïcödé 😀, 船要走得稳 \r\n\n   12345 def f(x): return x<think>so</think><｜User｜>it is."
    ids = from_json.encode(text).ids
    assert from_gguf.encode(text).ids == ids
    assert from_json.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("arch", ["v2", "v3"])
def test_rows_beyond_the_tokenizer_are_unused_tokens_that_speak_up(made: Make, arch: str):
    model = made(arch=arch, quant="f32")
    keys, weights = keys_of(model.gguf), floats_of(model.gguf)
    num_tokens = tokenizers.Tokenizer.from_file(str(model.config_dir / "tokenizer.json")).get_vocab_size()
    num_rows = len(weights["output.weight"])
    assert num_tokens < num_rows == len(weights["token_embd.weight"]) == len(keys["tokenizer.ggml.tokens"])
    types = keys["tokenizer.ggml.token_type"]
    assert set(types[:num_tokens]) <= {NORMAL, CONTROL, USER_DEFINED}
    assert set(types[num_tokens:]) == {UNUSED}
    sizes = np.linalg.norm(weights["output.weight"], axis=1)
    assert sizes[num_tokens:].min() > sizes[:num_tokens].max()


def test_special_tokens_are_spelt_and_flagged_as_the_real_ones(made: Make):
    v3 = json.loads((made(arch="v3").config_dir / "tokenizer.json").read_text())
    added = {token["content"]: token for token in v3["added_tokens"]}
    bar, gap = "\uff5c", "\u2581"
    assert added[f"<{bar}begin{gap}of{gap}sentence{bar}>"]["id"] == 0
    assert added[f"<{bar}end{gap}of{gap}sentence{bar}>"]["id"] == 1
    assert added[f"<{bar}{gap}pad{gap}{bar}>"]["id"] == 2
    special = [content for content, token in added.items() if token["special"]]
    assert special == [*list(added)[:3], "<|EOT|>"]
    visible = {"<think>", "</think>", f"<{bar}User{bar}>", f"<{bar}Assistant{bar}>", f"<{bar}tool{gap}sep{bar}>"}
    assert visible <= added.keys() - set(special)

    v2 = json.loads((made(arch="v2").config_dir / "tokenizer.json").read_text())
    assert [token["content"] for token in v2["added_tokens"]] == list(added)[:2]
    assert [token["id"] for token in v2["added_tokens"]] == [1024, 1025]


def render(model: TinyModel, messages: list[dict[str, Any]], **values: Any) -> str:
    config = json.loads((model.config_dir / "tokenizer_config.json").read_text())
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(config["chat_template"])
    return template.render(messages=messages, bos_token="{bos}", eos_token="{eos}", **values)


def test_chat_is_rendered_as_the_real_templates_do(made: Make):
    v2, v3 = made(arch="v2"), made(arch="v3")
    chat = [
        {"role": "system", "content": "S1"},
        {"role": "user", "content": "U1"},
        {"role": "assistant", "content": "<think>why</think>A1"},
        {"role": "system", "content": "S2"},
        {"role": "user", "content": "U2"},
    ]
    assert render(v3, chat, add_generation_prompt=True) == (
        "{bos}S1\n\nS2<｜User｜>U1<｜Assistant｜>A1{eos}<｜User｜>U2<｜Assistant｜>"
    )
    assert render(v3, chat[1:2], add_generation_prompt=False) == "{bos}<｜User｜>U1"
    plain = [*chat[:2], {"role": "assistant", "content": "A1"}, chat[4]]
    assert render(v2, plain, add_generation_prompt=True) == (
        "{bos}S1\n\nUser: U1\n\nAssistant: A1{eos}User: U2\n\nAssistant:"
    )


def test_tool_calls_are_rendered_as_v3_writes_them(made: Make):
    v3 = made(arch="v3")
    calls = [{"type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("f", "g")]
    chat = [
        {"role": "user", "content": "U1"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "R1"},
        {"role": "tool", "content": "R2"},
    ]
    called = (
        "{bos}<｜User｜>U1<｜Assistant｜><｜tool▁calls▁begin｜>"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>{eos}<｜tool▁outputs▁begin｜>"
        "<｜tool▁output▁begin｜>R1<｜tool▁output▁end｜>\n<｜tool▁output▁begin｜>R2<｜tool▁output▁end｜>"
        "<｜tool▁outputs▁end｜>"
    )
    assert render(v3, chat, add_generation_prompt=True) == called
    answered = [*chat, {"role": "assistant", "content": "A1"}, {"role": "user", "content": "U2"}]
    assert render(v3, answered, add_generation_prompt=True) == (f"{called}A1{{eos}}<｜User｜>U2<｜Assistant｜>")


@pytest.mark.parametrize("num_shards", [3, *if_long(2, 5)])
def test_shards_hold_the_single_files_tensors_between_them(tmp_path: Path, num_shards: int):
    single = write_tiny_model(tmp_path / "single")
    sharded = write_tiny_model(tmp_path / "sharded", num_shards=num_shards)
    files = sorted((tmp_path / "sharded").glob("*.gguf"))
    assert [file.name for file in files] == [
        f"model-{index:05d}-of-{num_shards:05d}.gguf" for index in range(1, num_shards + 1)
    ]
    assert sharded.gguf == files[0]
    readers = [GGUFReader(file) for file in files]
    ours = [tensor for reader in readers for tensor in reader.tensors]
    theirs = GGUFReader(single.gguf).tensors
    assert [(t.name, t.tensor_type, t.data.tobytes()) for t in ours] == [
        (t.name, t.tensor_type, t.data.tobytes()) for t in theirs
    ]
    for index, file in enumerate(files):
        keys = keys_of(file)
        assert keys["split.no"] == index
        assert keys["split.count"] == num_shards
        assert keys["split.tensors.count"] == len(theirs)


def test_writing_again_leaves_only_the_new_model(tmp_path: Path):
    write_tiny_model(tmp_path, num_shards=3)
    (tmp_path / "notes.gguf").write_text("an unrelated file")
    write_tiny_model(tmp_path, arch="v2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config", "model.gguf", "notes.gguf"]


def test_another_shape_replaces_the_preset(made: Make):
    shape: TinyShape = dataclasses.replace(K2, num_layers=2, num_experts=32, num_experts_used=8, yarn=None)
    keys = keys_of(made(overrides=shape).gguf)
    assert keys["deepseek2.block_count"] == 2
    assert keys["deepseek2.expert_count"] == 32
    assert not [key for key in keys if "rope.scaling" in key]


def test_every_context_has_room_for_tools() -> None:
    """Two small tools take 324 tokens of bytes."""
    assert min(shape.context_length for shape in PRESETS.values()) >= 1024


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_architecture_has_a_preset(architecture: str) -> None:
    written = PRESETS[preset_of(architecture)].architecture
    assert written == {"glm5next": "glm5-next"}.get(architecture, architecture)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"arch": "v9"}, "arch=v9: expected one of v2lite, v2, v3, v32, k2"),
        ({"mla": "both"}, "mla=both: expected one of split, joint"),
        ({"arch": "qwen3", "mla": "joint"}, "mla=joint: Tiny Qwen3-MoE has no latent attention; expected split"),
        ({"quant": "q3_0"}, "quant=q3_0: expected one of f32, f16"),
        ({"num_shards": 0}, "num_shards=0: expected a number such as 1 or 2, which are possible with"),
        ({"num_shards": 1000}, r"num_shards=1000: expected a number such as \d+ or \d+, which are possible with"),
    ],
)
def test_unwritable_models_are_rejected_before_anything_is_written(
    tmp_path: Path, arguments: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        write_tiny_model(tmp_path / "model", **arguments)
    assert not list(tmp_path.rglob("*.gguf"))


def test_a_seed_or_directory_that_cannot_be_used_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="seed=-5"):
        write_tiny_model(tmp_path / "model", seed=-5)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be created"):
        write_tiny_model(tmp_path / "file")
