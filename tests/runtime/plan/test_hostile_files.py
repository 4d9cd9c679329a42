"""Damaged files end `ballast plan` and `ballast serve` with the same code: 0, 2, 3 or 4, never with a traceback and 70.

What `make fuzz` found becomes a case here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ballast.text.gguf_vocab import build_backend
from devkit.models.gguf_files import write_model
from devkit.models.vocabulary import byte_metadata
from tools.fuzz.gguf_cases import seed_specs
from tools.fuzz.targets import TARGETS, run

V3, V2_LITE, PLAIN, *_ = seed_specs()
UNUSABLE = 3


def write_gguf(folder: Path, keys: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> None:
    vocabulary = byte_metadata(merges=((b"a", b"b"),), num_unused=4)
    write_model(folder / "m.gguf", V3, metadata=vocabulary | (keys or {}), shapes=tensors)


def codes_of(kind: str, folder: Path) -> int:
    codes = run(TARGETS[kind], folder)
    assert codes["plan"] == codes["serve"]
    return codes["serve"]


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    "name",
    [
        "blk.x.attn_norm.weight",
        "blk.x.ffn_gate_inp.weight",
        "blk.\u00b2\u00b9.attn_norm.weight",
        "blk.\u0663.attn_norm.weight",
        "blk..attn_norm.weight",
        "blk.-1.attn_norm.weight",
        "blk.4294967296.attn_norm.weight",
        "blk.7",
        "blk",
        "x",
    ],
)
def test_tensors_outside_any_layer_are_ignored(tmp_path: Path, name: str) -> None:
    write_gguf(tmp_path, tensors={name: (8,)})
    assert codes_of("gguf", tmp_path) == 0


def test_a_block_of_5000_digits_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path, tensors={f"blk.{'9' * 5000}.attn_norm.weight": (8,)})
    assert codes_of("gguf", tmp_path) == UNUSABLE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.tokens", 5),
        ("tokenizer.ggml.tokens", "a b c"),
        ("tokenizer.ggml.tokens", [1, 2, 3]),
        ("tokenizer.ggml.tokens", []),
        ("tokenizer.ggml.merges", 5),
        ("tokenizer.ggml.merges", "a b"),
        ("tokenizer.ggml.merges", [1, 2]),
        ("tokenizer.ggml.merges", ["a"]),
        ("tokenizer.ggml.merges", ["no such"]),
        ("tokenizer.ggml.token_type", 1),
        ("tokenizer.ggml.token_type", "normal"),
        ("tokenizer.ggml.bos_token_id", "0"),
        ("tokenizer.ggml.bos_token_id", [0]),
        ("tokenizer.ggml.bos_token_id", 0.5),
        ("tokenizer.ggml.eos_token_id", True),
        ("tokenizer.ggml.eos_token_id", 2**32 - 1),
        ("tokenizer.ggml.eot_token_id", ["0"]),
        ("tokenizer.ggml.add_bos_token", [True]),
        ("tokenizer.ggml.model", 5),
        ("tokenizer.ggml.model", ["gpt2"]),
        ("tokenizer.ggml.pre", [1.0]),
        ("tokenizer.chat_template", ["{{ messages }}"]),
        ("tokenizer.chat_template", "{{" + "[" * 3000),
        ("general.name", ["a", "b"]),
        ("general.name", 7),
        ("general.name", "a" * 100_000),
        ("general.architecture", ["deepseek2"]),
        ("deepseek2.block_count", [3]),
        ("deepseek2.block_count", 2**32 - 1),
        ("deepseek2.context_length", 2**32 - 1),
        ("deepseek2.context_length", True),
        ("deepseek2.embedding_length", "32"),
        ("deepseek2.feed_forward_length", []),
        ("deepseek2.feed_forward_length", ["32"]),
        ("deepseek2.expert_feed_forward_length", [0, -32]),
        ("deepseek2.attention.head_count", [2.0, 2.0]),
        ("deepseek2.attention.layer_norm_rms_epsilon", float("nan")),
        ("deepseek2.attention.layer_norm_rms_epsilon", 1e38),
        ("deepseek2.rope.freq_base", 1.0),
        ("deepseek2.rope.freq_base", 0.5),
        ("deepseek2.rope.freq_base", float("inf")),
        ("deepseek2.rope.freq_base", [10000.0]),
        ("deepseek2.rope.scaling.type", ["yarn"]),
        ("deepseek2.rope.scaling.factor", 1e-38),
        ("deepseek2.rope.scaling.factor", 1e38),
        ("deepseek2.rope.scaling.original_context_length", 4096.0),
        ("deepseek2.rope.scaling.yarn_log_multiplier", 1e38),
        ("deepseek2.rope.scaling.yarn_beta_fast", 1e-38),
        ("deepseek2.rope.scaling.yarn_attn_factor", 1e38),
        ("deepseek2.expert_gating_func", [2]),
        ("deepseek2.expert_gating_func", True),
        ("deepseek2.expert_group_count", [4]),
        ("deepseek2.expert_group_used_count", "2"),
        ("deepseek2.expert_weights_norm", 1),
        ("deepseek2.expert_weights_scale", 1e38),
        ("deepseek2.nextn_predict_layers", [1]),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_key_with_a_value_of_another_kind_is_refused(tmp_path: Path, key: str, value: object) -> None:
    write_gguf(tmp_path, {key: value})
    found = codes_of("gguf", tmp_path)
    if key not in ("deepseek2.context_length", "deepseek2.rope.scaling.yarn_beta_fast") or value is True:
        assert found == UNUSABLE


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "5",
        '"a"',
        "null",
        "{",
        deep(100_000),
        '{"a": ' * 100_000,
        '{"x": "\\ud800"}',
        '{"hidden_size": ' + "9" * 400 + "}",
        '{"hidden_size": ' + "9" * 5000 + "}",
        '{"hidden_size": 1e400}',
        '{"hidden_size": NaN}',
        '{"hidden_size": [32]}',
        '{"n_group": {}}',
        '{"rope_theta": ' + "9" * 400 + "}",
        '{"rope_theta": Infinity}',
        '{"rope_scaling": [1]}',
        '{"rope_scaling": {"type": ["yarn"]}}',
        '{"rope_scaling": {"type": "yarn", "mscale": 1e300}}',
        '{"scoring_func": ["sigmoid"]}',
        '{"text_config": 5}',
        '{"text_config": {"text_config": {"text_config": {}}}}',
    ],
    ids=lambda text: text[:40],
)
def test_a_config_json_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    write_gguf(tmp_path)
    (tmp_path / "config.json").write_text(text)
    assert codes_of("config", tmp_path) == UNUSABLE


@pytest.mark.parametrize(
    "text",
    [
        "vram_limit: 9e400GiB",
        f"vram_limit: {'9' * 400}GiB",
        f"cache_lens: {'9' * 400}",
        "request_timeout_s: 1e308",
        "drain_timeout_s: .inf",
        'host: "a\\0b"',
        f"host: {'a' * 300}",
        'served_model_name: "\\ud800"',
        "served_model_name: [a, null]",
        "gguf_path: /dev/zero",
        "optimize_config_path: /dev/zero",
        "model_path: /dev/null",
        "numa: {a: b}",
        "? [a]\n: b",
        "a: &a [*a]",
    ],
    ids=lambda text: text[:40],
)
def test_a_file_of_options_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "options.yaml").write_text(f"device: cpu\n{text}\n")
    codes = run(TARGETS["options"], tmp_path)
    assert set(codes.values()) <= {0, 2, 3, 4}
    assert {2, 3} & set(codes.values())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("config.json", '{"scoring_func": "sigmoid", "n_group": 1}'),
        ("tokenizer_config.json", deep(100_000)),
        ("tokenizer_config.json", '{"chat_template": [1]}'),
        ("tokenizer_config.json", '{"chat_template": [{"name": "default", "template": ["a"]}]}'),
        ("generation_config.json", '{"eos_token_id": [[1]]}'),
        ("generation_config.json", "\ufeff\ufeff{}"),
        ("generation_config.json", json.dumps({"eos_token_id": 10**400})),
        ("chat_template.jinja", "{% for"),
    ],
)
def test_a_damaged_companion_file_is_rejected(tmp_path: Path, name: str, value: str) -> None:
    write_gguf(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_text(value)
    assert codes_of("tokenizer", tmp_path) == UNUSABLE


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("padding", {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0}),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
        ("added_tokens", [{"id": 2**32 - 1, "content": "<x>"}]),
        ("added_tokens", [{"id": 300, "content": "<x>"}]),
        ("model", {"type": "BPE", "vocab": {"a": 2**32 - 1}, "merges": []}),
    ],
    ids=["padding", "normalizer", "id", "another id", "vocabulary"],
)
def test_a_tokenizer_json_that_would_end_the_process_is_refused(tmp_path: Path, field: str, value: object) -> None:
    write_gguf(tmp_path)
    whole = json.loads(build_backend(byte_metadata(), "bytes.gguf").to_str())
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole | {field: value}))
    assert codes_of("tokenizer", tmp_path) == UNUSABLE
