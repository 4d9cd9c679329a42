"""Reads a ModelSpec from a GGUF's metadata and, if there is one, the model's config.json.

The GGUF decides. config.json supplies what older conversions left out (each use is logged) and is otherwise compared
with the GGUF: a contradiction means that the two belong to different models. Key names and their meaning:
llama.cpp's deepseek2 architecture; rules of routing and YaRN: transformers' DeepseekV2 and DeepseekV3.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeGuard

from ballast.errors import ModelError
from ballast.model.spec import ModelSpec, YarnSpec
from ballast.weights.gguf import GgufModel

log = logging.getLogger(__name__)

ARCHITECTURE = "deepseek2"
_GATING: dict[int, Literal["softmax", "sigmoid"]] = {1: "softmax", 2: "sigmoid"}
_YARN_BETA_FAST = 32.0
_YARN_BETA_SLOW = 1.0
_REFUSED_KEYS = ("attention.temperature_scale", "attention.indexer.top_k", "attention.sliding_window")
"""Keys of other models of the family whose effect on the arithmetic is not implemented here."""


def read_config(model_path: Path) -> dict[str, Any]:
    """The content of `model_path`/config.json. Raises ModelError when it is missing or not a JSON object."""
    file = model_path / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(file, f"cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ModelError(file, f"is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(file, f"expected a JSON object, found {type(config).__name__}")
    return config


def read_spec(gguf: GgufModel, config: Mapping[str, Any] | None = None) -> ModelSpec:
    """The model's spec. Raises ModelError for another architecture, a missing key, an impossible value, or a
    contradiction between the GGUF and config.json."""
    _check_architecture(gguf)
    source = _Source(gguf, config)
    spec = _read(source)
    _check_spec(source, spec)
    if config is not None:
        _check_config(source, spec, config)
    return spec


def _check_architecture(gguf: GgufModel) -> None:
    found = gguf.metadata.get("general.architecture")
    if found != ARCHITECTURE:
        raise ModelError(
            gguf.path,
            f"general.architecture={found}; supported is {ARCHITECTURE} (DeepSeek V2, V2-Lite, V2.5, V3, R1, Kimi K2)",
        )


class _Source:
    """Checked access to the GGUF's keys and the optional config.json."""

    def __init__(self, gguf: GgufModel, config: Mapping[str, Any] | None) -> None:
        self.gguf = gguf
        self.config: Mapping[str, Any] = config or {}
        self.has_config = config is not None

    def refuse(self, problem: str, tensor: str | None = None) -> ModelError:
        return ModelError(self.gguf.path, problem, tensor)

    def has(self, tensor: str) -> bool:
        return tensor in self.gguf.tensors

    def get(self, key: str) -> Any:
        """A key's value without the architecture's prefix, None when absent."""
        return self.gguf.metadata.get(f"{ARCHITECTURE}.{key}")

    def first(self, *keys: str) -> str:
        """The first of `keys` that the file has; the last one if it has none."""
        return next((key for key in keys if self.get(key) is not None), keys[-1])

    def whole(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number ≥ minimum."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self._wrong(key, value, f"a whole number, at least {minimum}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number > 0."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not _is_number(value) or not value > 0:
            raise self._wrong(key, value, "a number above 0")
        return float(value)

    def uniform(self, key: str, layers: range) -> int:
        """A whole number that newer files may list per layer; it must be the same for all of `layers`."""
        value = self.get(key)
        if not isinstance(value, list):
            return self.whole(key)
        values = set(value[layers.start : layers.stop])
        if len(value) < layers.stop or len(values) != 1 or not isinstance(value[layers.start], int):
            raise self._wrong(key, value, f"one and the same width for layers {layers.start}…{layers.stop - 1}")
        return int(values.pop())

    def setting(self, key: str, config_key: str, default: Any) -> Any:
        """The file's value, else config.json's (which is logged), else the default."""
        value = self.get(key)
        if value is not None:
            return value
        value = self.config.get(config_key)
        if value is None:
            return default
        log.info("%s: no %s.%s; using %s=%s of config.json", self.gguf.path, ARCHITECTURE, key, config_key, value)
        return value

    def _wrong(self, key: str, value: Any, expected: str) -> ModelError:
        found = f"{value}" if len(str(value)) <= 80 else f"{str(value)[:80]}…"
        if value is None:
            return self.refuse(f"{ARCHITECTURE}.{key} is missing; expected {expected}")
        return self.refuse(f"{ARCHITECTURE}.{key}={found}; expected {expected}")


def _read(source: _Source) -> ModelSpec:
    for key in _REFUSED_KEYS:
        if source.get(key):
            raise source.refuse(f"{ARCHITECTURE}.{key}={source.get(key)}: this model's attention is not supported")
    num_layers = _num_layers(source)
    num_dense_layers = source.whole("leading_dense_block_count", default=0, minimum=0)
    if num_dense_layers > num_layers:
        raise source.refuse(
            f"{ARCHITECTURE}.leading_dense_block_count={num_dense_layers}; the model has {num_layers} layers"
        )
    rope_dim = source.whole("rope.dimension_count")
    # Files of the split layout describe the latent in key_length and the heads in key_length_mla.
    key_length = source.whole(source.first("attention.key_length_mla", "attention.key_length"))
    gating = _gating(source)
    num_groups, num_groups_used = _groups(source, gating)
    return ModelSpec(
        name=str(source.gguf.metadata.get("general.name") or source.gguf.path.stem),
        num_layers=num_layers,
        num_dense_layers=num_dense_layers,
        vocab_size=_vocab_size(source),
        context_length=source.whole("context_length"),
        hidden=source.whole("embedding_length"),
        ffn_dim=source.uniform("feed_forward_length", range(num_dense_layers)) if num_dense_layers else 0,
        num_heads=source.uniform("attention.head_count", range(num_layers)),
        q_lora_rank=_q_lora_rank(source),
        kv_lora_rank=source.whole("attention.kv_lora_rank"),
        nope_dim=key_length - rope_dim,
        rope_dim=rope_dim,
        v_dim=source.whole(source.first("attention.value_length_mla", "attention.value_length")),
        mla_layout=_mla_layout(source),
        num_experts=source.whole("expert_count"),
        num_experts_used=source.whole("expert_used_count"),
        num_shared_experts=source.whole("expert_shared_count", default=0, minimum=0),
        expert_dim=source.uniform("expert_feed_forward_length", range(num_dense_layers, num_layers)),
        fused_experts=source.has(f"blk.{num_dense_layers}.ffn_gate_up_exps.weight"),
        gating=gating,
        num_groups=num_groups,
        num_groups_used=num_groups_used,
        group_score="top2_sum" if gating == "sigmoid" else "max",
        normalize_weights=_normalize_weights(source, gating),
        weights_scale=_weights_scale(source),
        rms_eps=source.number("attention.layer_norm_rms_epsilon"),
        rope_theta=source.number("rope.freq_base", default=10000.0),
        yarn=_yarn(source),
        tied_output=not source.has("output.weight"),
    )


def _num_layers(source: _Source) -> int:
    """Ordinary layers. `block_count` counts the blocks for multi-token prediction in some files and not in others:
    a block that has `nextn` tensors, or that was left out of the file altogether, is none of ours."""
    blocks: dict[int, bool] = {}
    for name in source.gguf.tensors:
        parts = name.split(".")
        if parts[0] == "blk" and len(parts) > 2 and parts[1].isdecimal():
            index = int(parts[1])
            blocks[index] = blocks.get(index, False) or parts[2] == "nextn"
    num_layers = source.whole("block_count")
    if num_layers > len(source.gguf.tensors):
        raise source.refuse(f"{ARCHITECTURE}.block_count={num_layers}; the file has {len(source.gguf.tensors)} tensors")
    num_extra = source.whole("nextn_predict_layers", default=0, minimum=0)
    for index in reversed(range(num_layers)):
        is_nextn = blocks.get(index, num_extra > 0)
        if not is_nextn:
            break
        num_layers, num_extra = num_layers - 1, num_extra - 1
    if num_layers < 1:
        raise source.refuse(f"{ARCHITECTURE}.block_count={source.get('block_count')} leaves no ordinary layer")
    return num_layers


def _vocab_size(source: _Source) -> int:
    info = source.gguf.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2:
        found = "nothing" if info is None else f"shape {info.shape}"
        raise source.refuse(f"found {found}; expected a matrix of one row per token", "token_embd.weight")
    return info.shape[0]


def _q_lora_rank(source: _Source) -> int | None:
    low_rank = source.has("blk.0.attn_q_a.weight")
    if low_rank == source.has("blk.0.attn_q.weight"):
        raise source.refuse("expected exactly one of blk.0.attn_q.weight and blk.0.attn_q_a.weight")
    return source.whole("attention.q_lora_rank") if low_rank else None


def _mla_layout(source: _Source) -> Literal["joint", "split"]:
    split = source.has("blk.0.attn_k_b.weight") and source.has("blk.0.attn_v_b.weight")
    # A file with both (some carry the joint tensor for older readers) is read in the layout that needs no transposing.
    if split:
        return "split"
    if source.has("blk.0.attn_kv_b.weight"):
        return "joint"
    raise source.refuse("expected blk.0.attn_kv_b.weight, or blk.0.attn_k_b.weight and blk.0.attn_v_b.weight")


def _gating(source: _Source) -> Literal["softmax", "sigmoid"]:
    value = source.setting("expert_gating_func", "scoring_func", default=1)
    if value in _GATING.values():  # config.json spells it out
        return "sigmoid" if value == "sigmoid" else "softmax"
    if not isinstance(value, int) or value not in _GATING:
        raise source.refuse(f"{ARCHITECTURE}.expert_gating_func={value}; expected 1 (softmax) or 2 (sigmoid)")
    return _GATING[value]


def _groups(source: _Source, gating: str) -> tuple[int, int]:
    if gating == "softmax" and source.config.get("topk_method") == "greedy":
        return 1, 1  # V2-Lite: plain top-k, whatever group counts its file carries
    num_groups = source.setting("expert_group_count", "n_group", default=0)
    num_used = source.setting("expert_group_used_count", "topk_group", default=0)
    if not num_groups:
        # Only older files lack the counts. There V2-Lite loses nothing by this, V2 some quality.
        log.warning(
            "%s: no %s.expert_group_count; experts are chosen without groups (--model_path with the model's "
            "config.json supplies the counts)",
            source.gguf.path,
            ARCHITECTURE,
        )
        return 1, 1
    if not isinstance(num_groups, int) or not isinstance(num_used, int) or not 1 <= num_used <= num_groups:
        raise source.refuse(f"{num_used} of {num_groups} expert groups used; expected at least 1 and at most all")
    return num_groups, num_used


def _normalize_weights(source: _Source, gating: str) -> bool:
    asked = bool(source.setting("expert_weights_norm", "norm_topk_prob", default=False))
    if gating == "softmax":
        if asked:
            log.warning("%s: expert weights are not normalised after softmax, as in DeepSeek-V2", source.gguf.path)
        return False
    return asked


def _weights_scale(source: _Source) -> float:
    value = source.setting("expert_weights_scale", "routed_scaling_factor", default=0.0)
    if not _is_number(value) or value < 0:
        raise source.refuse(f"{ARCHITECTURE}.expert_weights_scale={value}; expected a number, at least 0")
    return float(value) or 1.0


def _yarn(source: _Source) -> YarnSpec | None:
    kind = source.get("rope.scaling.type")
    if kind in (None, "none"):
        return None
    if kind != "yarn":
        raise source.refuse(f"{ARCHITECTURE}.rope.scaling.type={kind}; expected yarn or none")
    factor = source.number("rope.scaling.factor")
    config = _config_rope(source.config)
    # The file keeps 0.1 * mscale_all_dim. Without it there is no correction of the softmax scale.
    multiplier = source.get("rope.scaling.yarn_log_multiplier")
    if multiplier is None:
        mscale_all_dim = config.get("mscale_all_dim") or 0.0
    elif _is_number(multiplier) and multiplier >= 0:
        mscale_all_dim = multiplier * 10
    else:
        raise source.refuse(
            f"{ARCHITECTURE}.rope.scaling.yarn_log_multiplier={multiplier}; expected a number, at least 0"
        )
    return YarnSpec(
        factor=factor,
        original_context=source.whole("rope.scaling.original_context_length"),
        beta_fast=source.number("rope.scaling.yarn_beta_fast", default=config.get("beta_fast") or _YARN_BETA_FAST),
        beta_slow=source.number("rope.scaling.yarn_beta_slow", default=config.get("beta_slow") or _YARN_BETA_SLOW),
        attention_factor=source.number(
            "rope.scaling.yarn_attn_factor", default=_attention_factor(factor, mscale_all_dim, config)
        ),
        mscale_all_dim=float(mscale_all_dim),
    )


def _attention_factor(factor: float, mscale_all_dim: float, config: Mapping[str, float]) -> float:
    """What cos and sin are multiplied by. The file tells mscale_all_dim alone; every DeepSeek model has mscale equal
    to it, so the quotient is 1 unless config.json says otherwise."""
    if "attention_factor" in config:
        return config["attention_factor"]
    # config.json has both without the file's rounding to float32.
    mscale, all_dim = (config.get("mscale"), config.get("mscale_all_dim")) if config else (mscale_all_dim,) * 2
    if mscale and all_dim:
        return _mscale(factor, mscale) / _mscale(factor, all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _config_rope(config: Mapping[str, Any]) -> Mapping[str, float]:
    """The numbers of config.json's YaRN settings, under either of the names they had; empty when it has none."""
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(rope, dict) or (rope.get("type") or rope.get("rope_type")) != "yarn":
        return {}
    return {name: value for name, value in rope.items() if _is_number(value)}


def _config_theta(config: Mapping[str, Any]) -> object:
    rope = config.get("rope_parameters")
    return config.get("rope_theta") or (rope.get("rope_theta") if isinstance(rope, dict) else None)


def _check_spec(source: _Source, spec: ModelSpec) -> None:
    """Relations between the numbers that no single key can show."""
    if spec.nope_dim < 1 or spec.rope_dim % 2:
        raise source.refuse(
            f"heads of {spec.nope_dim + spec.rope_dim} with {spec.rope_dim} rotated dimensions; "
            "expected an even number of rotated dimensions, fewer than the head has"
        )
    if spec.num_dense_layers == spec.num_layers:
        raise source.refuse(f"all {spec.num_layers} layers are dense; expected a mixture-of-experts model")
    if spec.num_experts % spec.num_groups:
        raise source.refuse(f"{spec.num_experts} experts in {spec.num_groups} groups; expected equal groups")
    group_size = spec.num_experts // spec.num_groups
    reachable = group_size * spec.num_groups_used
    if spec.num_experts_used > reachable:
        raise source.refuse(
            f"{ARCHITECTURE}.expert_used_count={spec.num_experts_used}; expected at most {reachable}, "
            "the experts in the groups used"
        )
    if spec.num_groups > 1 and spec.group_score == "top2_sum" and group_size < 2:
        raise source.refuse(f"groups of {group_size} expert; expected at least 2, groups are ranked by their best two")


def _check_config(source: _Source, spec: ModelSpec, config: Mapping[str, Any]) -> None:
    rope = _config_rope(config)
    pairs: Sequence[tuple[str, object, object]] = (
        ("hidden_size", spec.hidden, config.get("hidden_size")),
        ("num_hidden_layers", spec.num_layers, config.get("num_hidden_layers")),
        ("first_k_dense_replace", spec.num_dense_layers, config.get("first_k_dense_replace")),
        ("intermediate_size", spec.ffn_dim or None, config.get("intermediate_size")),
        ("num_attention_heads", spec.num_heads, config.get("num_attention_heads")),
        ("q_lora_rank", spec.q_lora_rank or 0, config.get("q_lora_rank", spec.q_lora_rank) or 0),
        ("kv_lora_rank", spec.kv_lora_rank, config.get("kv_lora_rank")),
        ("qk_nope_head_dim", spec.nope_dim, config.get("qk_nope_head_dim")),
        ("qk_rope_head_dim", spec.rope_dim, config.get("qk_rope_head_dim")),
        ("v_head_dim", spec.v_dim, config.get("v_head_dim")),
        ("n_routed_experts", spec.num_experts, config.get("n_routed_experts")),
        ("num_experts_per_tok", spec.num_experts_used, config.get("num_experts_per_tok")),
        ("n_shared_experts", spec.num_shared_experts, config.get("n_shared_experts")),
        ("moe_intermediate_size", spec.expert_dim, config.get("moe_intermediate_size")),
        ("scoring_func", spec.gating, config.get("scoring_func")),
        ("n_group", spec.num_groups, None if _ignores_groups(spec, config) else config.get("n_group")),
        ("topk_group", spec.num_groups_used, None if _ignores_groups(spec, config) else config.get("topk_group")),
        ("routed_scaling_factor", spec.weights_scale, config.get("routed_scaling_factor")),
        ("rms_norm_eps", spec.rms_eps, config.get("rms_norm_eps")),
        ("rope_theta", spec.rope_theta, _config_theta(config)),
        ("rope_scaling.factor", spec.yarn.factor if spec.yarn else None, rope.get("factor")),
        (
            "rope_scaling.original_max_position_embeddings",
            spec.yarn.original_context if spec.yarn else None,
            rope.get("original_max_position_embeddings"),
        ),
        ("rope_scaling.mscale_all_dim", spec.yarn.mscale_all_dim if spec.yarn else None, rope.get("mscale_all_dim")),
    )
    for name, found, configured in pairs:
        if found is not None and configured is not None and not _agree(found, configured):
            raise source.refuse(
                f"{name} is {found} in this file and {configured} in config.json; expected files of the same model"
            )
    if rope and spec.yarn is None:
        raise source.refuse("config.json has YaRN positions and this file has none; expected files of the same model")


def _ignores_groups(spec: ModelSpec, config: Mapping[str, Any]) -> bool:
    return spec.gating == "softmax" and config.get("topk_method") == "greedy"


def _agree(found: object, configured: object) -> bool:
    if _is_number(found) and _is_number(configured):
        return math.isclose(found, configured, rel_tol=1e-5)  # floats are float32 in the file
    return found == configured


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
