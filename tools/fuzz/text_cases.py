"""Damaged config.json, tokenizer.json, placement rules and --config files."""

from __future__ import annotations

import copy
import json
import random
import sys
from functools import cache
from typing import Any

import yaml

from ballast.config.options import OPTIONS
from ballast.text import byte_alphabet
from ballast.tiny.hf_config import generation_config, hf_config
from ballast.tiny.presets import V3
from ballast.tiny.tokenizer import make_tokenizer
from devkit.models.changed_spec import experts_of, latent_of
from devkit.models.vocabulary import BOS, EOS
from tools.fuzz import hostile
from tools.fuzz.gguf_cases import seed_specs

sys.set_int_max_str_digits(0)  # this program writes numbers that the reader must reject

RULES: Any = [
    {
        "match": {"name": "^model\\.layers\\.(?!.*self_attn\\.kv_b_proj).*$", "class": "torch.nn.Linear"},
        "replace": {
            "class": "ktransformers.operators.linear.KTransformersLinear",
            "kwargs": {"generate_device": "cuda", "prefill_device": "cuda:0", "generate_op": "KLinearMarlin"},
        },
    },
    {
        "match": {"name": "^model\\.layers\\..*\\.mlp\\.experts$"},
        "replace": {"class": "default", "kwargs": {"generate_device": "cpu", "out_device": "cuda"}},
        "recursive": False,
    },
    {"match": {"class": "MoEGate"}, "replace": {"class": "default", "kwargs": {"transfer_map": {10: "cuda:1"}}}},
]
PATTERNS = (
    "^(([a-z.0-9_]+)+)+$Z",
    "(a|a)*b",
    "(.*)*(.*)*(.*)*Z",
    "((a{0,1000}){0,1000}){0,1000}",
    "a{99999999999}",
    "(" * 200 + ")" * 200,
    "(" * 5000,
    "[z-a]",
    "(?P<a>x)(?P=b)",
    "(?i)[\\x00-\\U0010ffff]",
    "\\",
    "(?<=a*)b",
    "\\N{nothing}",
    "(?#",
    "(?x) # a",
    "model",
)
YAML_TEXTS = (
    "&a [*a]",
    "*a",
    "&a {x: *a}",
    "{<<: [1]}",
    "{<<: {<<: {a: 1}}}",
    "!!int ''",
    "!!float x",
    "!!bool 7",
    "!!timestamp 5",
    "!!binary aGk",
    "!!set {a}",
    "!!omap [a: 1]",
    "!!pairs [a: 1]",
    "!!python/object:os.system ls",
    "? [a]\n: b",
    "? {a: b}\n: c",
    "2026-13-45",
    "0001-01-01T00:00:00+23:59",
    "1:" * 3000 + "1",
    "9" * 5000,
    "0x" + "f" * 5000,
    '"\\ud800"',
    '"\\0"',
    "%YAML 9.9\n---\na: 1",
    "--- a\n--- b",
    "\t- a",
    "[" * 1500,
    "{a: " * 1500,
    "- " * 1500,
    "|\n  a\n b",
)


_LIKELY = (
    0,
    1,
    2,
    4096,
    2**30,
    2**40,
    0.5,
    1e9,
    True,
    False,
    "auto",
    "cpu",
    "cuda:3",
    "off",
    "text",
    "/",
    "/tmp",
    "a,b",
)
"""Values that some options accept."""


def make_config_json(rng: random.Random) -> bytes:
    """A config.json; it belongs to the `old_file` of targets."""
    return _json(_config(), rng)


def make_tokenizer_files(rng: random.Random) -> dict[str, bytes]:
    """tokenizer.json and the two files that belong to it, one of them damaged."""
    trees = _tokenizer_trees()
    name = rng.choice(("tokenizer.json", "tokenizer.json", "tokenizer.json", *trees))
    return {
        other: _json(copy.deepcopy(tree), rng) if other == name else json.dumps(tree).encode()
        for other, tree in trees.items()
    }


def make_rules(rng: random.Random) -> bytes:
    """A file of placement rules."""
    tree = copy.deepcopy(RULES)
    if rng.random() < 0.3:
        rng.choice(tree)["match"]["name"] = rng.choice(PATTERNS)
    return _yaml(tree, rng)


def make_options(rng: random.Random) -> bytes:
    """A --config file."""
    names = [opt.name for opt in OPTIONS]
    usual = {"device": "cpu", "cache_lens": 256, "max_batch_size": 1, "max_new_tokens": 16, "cpu_threads": 1, "port": 0}
    changed = rng.sample(names, rng.choice((0, 1, 1, 2, 4)))
    tree: Any = usual | {name: rng.choice((hostile.value(rng), rng.choice(_LIKELY))) for name in changed}
    return _yaml(tree, rng)


@cache
def _config_seed() -> Any:
    spec = seed_specs()[0]
    mixer, experts = latent_of(spec), experts_of(spec)
    tokenizer = make_tokenizer("v3")
    config = hf_config(V3, tokenizer, spec.vocab_size)
    assert spec.rope.yarn is not None
    return config | {
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.num_layers,
        "first_k_dense_replace": spec.routed_layers[0],
        "intermediate_size": spec.widest_dense,
        "num_attention_heads": mixer.num_heads,
        "q_lora_rank": mixer.q_lora_rank,
        "kv_lora_rank": mixer.kv_lora_rank,
        "qk_nope_head_dim": mixer.nope_dim,
        "qk_rope_head_dim": spec.rope.dim,
        "v_head_dim": mixer.v_dim,
        "n_routed_experts": spec.routing.num_experts,
        "num_experts_per_tok": spec.routing.num_experts_used,
        "n_shared_experts": experts.num_shared,
        "moe_intermediate_size": experts.width,
        "n_group": spec.routing.num_groups,
        "topk_group": spec.routing.num_groups_used,
        "routed_scaling_factor": spec.routing.weights_scale,
    }


def _config() -> Any:
    return copy.deepcopy(_config_seed())


@cache
def _tokenizer_trees() -> dict[str, Any]:
    """A vocabulary of bytes and a few merges, with every feature that a tokenizer.json may have."""
    made = make_tokenizer("v3")
    whole = json.loads(made.backend.to_str())
    added = [token for token in whole["added_tokens"] if token["content"] in (BOS, EOS)]
    vocab = [text for text in whole["model"]["vocab"] if byte_alphabet.to_bytes(text) is not None and len(text) == 1]
    whole["model"]["vocab"] = {text: at + 2 for at, text in enumerate(vocab)} | {BOS: 0, EOS: 1}
    whole["model"]["merges"] = []
    whole["added_tokens"] = [token | {"id": at} for at, token in enumerate(added)]
    whole["truncation"] = {"direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0}
    whole["padding"] = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": BOS,
    }
    return {
        "tokenizer.json": whole,
        "tokenizer_config.json": made.config(512) | {"bos_token": {"content": BOS}, "eos_token": EOS},
        "generation_config.json": generation_config(V3, made) | {"bos_token_id": 0, "eos_token_id": [1]},
    }


def _json(tree: Any, rng: random.Random) -> bytes:
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        tree = hostile.change_tree(tree, rng)
    data = json.dumps(tree, ensure_ascii=rng.random() < 0.8).encode("utf-8", errors="surrogatepass")
    kind = rng.random()
    if kind < 0.2:
        return hostile.change_bytes(data, rng)
    if kind < 0.23:
        at = rng.randrange(len(data) + 1)
        return data[:at] + rng.choice((b"[", b'{"a":')) * rng.choice((50, 5000, 100_000)) + data[at:]
    return data


def _yaml(tree: Any, rng: random.Random) -> bytes:
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        tree = hostile.change_tree(tree, rng)
    try:
        text = yaml.safe_dump(tree, allow_unicode=True)
    except (RecursionError, yaml.YAMLError):
        text = json.dumps(tree)
    lines = text.splitlines()
    kind = rng.random()
    if kind < 0.2 and lines:
        at = rng.randrange(len(lines))
        lines[at] = lines[at].partition(":")[0] + ": " + rng.choice(YAML_TEXTS)
    elif kind < 0.25:
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(YAML_TEXTS))
    elif kind < 0.3:
        lines += _bomb(rng.choice((3, 9)), rng.choice((4, 9)), merge=rng.random() < 0.5, is_list=isinstance(tree, list))
    data = "\n".join(lines).encode("utf-8", errors="surrogatepass")
    return hostile.change_bytes(data, rng) if rng.random() < 0.25 else data


def _bomb(depth: int, width: int, *, merge: bool, is_list: bool) -> list[str]:
    """Aliases of aliases."""
    lead = "- " if is_list else "a0: "
    lines = [f"{lead}&b0 {{x: 1}}"]
    for level in range(1, depth + 1):
        below = ", ".join([f"*b{level - 1}"] * width)
        lead = "- " if is_list else f"a{level}: "
        lines.append(f"{lead}&b{level} {{<<: [{below}]}}" if merge else f"{lead}&b{level} [{below}]")
    return lines
