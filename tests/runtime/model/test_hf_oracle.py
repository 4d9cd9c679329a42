"""Tests of the oracle: it loads every file completely, and detects any wrong rule."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from ballast.tiny import TinyModel
from devkit.models.written import write_tiny_model
from devkit.oracles.hf_oracle import dequantized, hf_logits, hf_model, hf_weights

Make = Callable[..., TinyModel]
ARCHS = ["v2lite", "v2", "v3", "k2"]
IDS = np.random.default_rng(3).integers(3, 1000, 48).tolist()
PERCEPTIBLE = 0.01
"""Ten times the permitted error of our own arithmetic."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    @functools.cache
    def write(arch: str, mla: str = "split", quant: str = "f32", num_shards: int = 1) -> TinyModel:
        directory = tmp_path_factory.mktemp("tiny")
        return write_tiny_model(directory, arch=arch, mla=mla, quant=quant, num_shards=num_shards)

    return write


@functools.cache
def logits_of(model: TinyModel, config_dir: Path | None = None) -> np.ndarray:
    return hf_logits(hf_model(model.gguf, config_dir or model.config_dir), IDS)


def relative_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize("arch", ARCHS)
def test_both_layouts_give_identical_logits(made: Make, arch: str):
    split, joint = logits_of(made(arch, "split")), logits_of(made(arch, "joint"))
    assert split.shape == (len(IDS), 1088)
    assert split.dtype == np.float32
    assert np.array_equal(split, joint)


def test_shards_give_the_logits_of_the_single_file(made: Make):
    assert np.array_equal(logits_of(made("v3", num_shards=3)), logits_of(made("v3")))


def test_the_model_holds_the_dequantised_weights(made: Make):
    model = made("v3", "split", "q4_k")
    parameters = hf_model(model.gguf, model.config_dir).state_dict()
    tensors = dequantized(model.gguf)
    gate, up = tensors["blk.2.ffn_gate_exps.weight"], tensors["blk.2.ffn_up_exps.weight"]
    fused = parameters["model.layers.2.mlp.experts.gate_up_proj"].numpy()
    assert np.array_equal(fused[:, : gate.shape[1]], gate)
    assert np.array_equal(fused[:, gate.shape[1] :], up)
    bias = parameters["model.layers.2.mlp.gate.e_score_correction_bias"].numpy()
    assert np.array_equal(bias, tensors["blk.2.exp_probs_b.bias"])
    assert bias.any()
    head = parameters["model.layers.1.self_attn.kv_b_proj.weight"].numpy().reshape(4, 64 + 64, 512)[3]
    assert np.array_equal(head[:64], tensors["blk.1.attn_k_b.weight"][3].T)
    assert np.array_equal(head[64:], tensors["blk.1.attn_v_b.weight"][3])
    num_weights = sum(values.size for values in tensors.values())
    assert sum(values.numel() for values in parameters.values()) == num_weights


def test_a_weight_that_is_missing_or_unknown_is_reported(made: Make, monkeypatch: pytest.MonkeyPatch):
    model = made("v3")

    def damaged(tensors: Any) -> dict[str, Any]:
        weights = hf_weights(tensors)
        weights["model.layers.9.mystery"] = weights.pop("model.norm.weight")
        return weights

    monkeypatch.setattr("devkit.oracles.hf_oracle.hf_weights", damaged)
    with pytest.raises(RuntimeError, match=r"(?s)Missing key.*model\.norm\.weight.*Unexpected key.*mystery"):
        hf_model(model.gguf, model.config_dir)


V3_RULES = {
    "softmax scale": {"mscale_all_dim": 0.0},
    "size of cos and sin": {"mscale": 0.5},
    "YaRN factor": {"factor": 20.0, "max_position_embeddings": 81920},
    "original context": {"original_max_position_embeddings": 2048, "max_position_embeddings": 81920},
    "base of the rotation": {"rope_theta": 50000.0},
    "pairs of the rotation": {"rope_interleave": False},
    "scale of expert weights": {"routed_scaling_factor": 2.0},
    "normalised expert weights": {"norm_topk_prob": False},
    "groups": {"n_group": 1, "topk_group": 1},
    "groups used": {"topk_group": 1},
    "experts used": {"num_experts_per_tok": 3},
}
V2_RULES = {
    "softmax scale": {"mscale_all_dim": 0.0},
    "base of the rotation": {"rope_theta": 50000.0},
    "scale of expert weights": {"routed_scaling_factor": 15.0},
    "groups": {"topk_method": "greedy"},
    "groups used": {"topk_group": 1},
    "experts used": {"num_experts_per_tok": 3},
}
RULES = [
    pytest.param(arch, change, id=f"{arch}: {rule}")
    for arch, rules in (("v3", V3_RULES), ("v2", V2_RULES))
    for rule, change in rules.items()
]


@pytest.mark.parametrize(("arch", "change"), RULES)
def test_every_rule_shows_in_the_logits(made: Make, tmp_path: Path, arch: str, change: dict[str, Any]):
    """Otherwise agreement with the oracle would prove nothing about this rule."""
    model = made(arch)
    config = json.loads((model.config_dir / "config.json").read_text())
    for name, value in change.items():
        section = config["rope_scaling"] if name in config["rope_scaling"] else config
        section[name] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert relative_difference(logits_of(model, tmp_path), logits_of(model)) > PERCEPTIBLE


@pytest.mark.parametrize("arch", ARCHS)
def test_tiny_models_have_moderate_logits_and_entropy(made: Make, arch: str):
    model = made(arch)
    types = GGUFReader(model.gguf).fields["tokenizer.ggml.token_type"].contents()
    num_tokens = len(types) - types.count(5)
    logits = logits_of(model).astype(np.float64)[:, :num_tokens]
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    entropy = -(shares * np.log(shares)).sum(axis=1)
    assert 2.0 < entropy.mean() < 5.0
    assert 2.0 < logits.std() < 5.0
    assert len(set(logits.argmax(axis=1))) > len(IDS) // 2
