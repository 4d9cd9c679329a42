"""Models that are known by their dimensions, and what older conversions of them left out.

Layers and vocabulary are no part of a model's identity here: a cut-down file of a known model is that model still.
Sources: the published config.json of each model as copies in several projects agree on it, and llama.cpp's loader and
conversion for what files contain. Where sources disagree (mscale of V2) or are silent, a value is left out, and a
file without it needs its own config.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ballast.model.metadata.keys import Keys, is_number

Value = bool | int | float


class Dimensions(NamedTuple):
    """What tells one model from another."""

    hidden: int
    ffn_dim: int
    """Width of a dense layer; 0 for a file that has none."""
    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    num_experts: int
    num_experts_used: int
    num_shared_experts: int
    expert_dim: int


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One row of the table. `values`: by GGUF key without prefix, those that a file may lack and those that tell
    models of the same dimensions apart."""

    name: str
    dimensions: Dimensions
    values: Mapping[str, Value]


def _yarn(factor: float, beta_fast: float, log_multiplier: float | None) -> dict[str, Value]:
    values: dict[str, Value] = {
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": 4096,
        "rope.scaling.yarn_beta_fast": beta_fast,
        "rope.scaling.yarn_beta_slow": 1.0,
    }
    return values if log_multiplier is None else values | {"rope.scaling.yarn_log_multiplier": log_multiplier}


def _routing(gating: int, groups: tuple[int, int], scale: float, *, norm: bool) -> dict[str, Value]:
    return {
        "expert_gating_func": gating,
        "expert_group_count": groups[0],
        "expert_group_used_count": groups[1],
        "expert_weights_norm": norm,
        "expert_weights_scale": scale,
    }


_SOFTMAX, _SIGMOID = 1, 2
_EPSILON = "attention.layer_norm_rms_epsilon"
_THETA = "rope.freq_base"

_V2_LITE = Dimensions(2048, 10944, 16, None, 512, 128, 64, 128, 64, 6, 2, 1408)
_V2 = Dimensions(5120, 12288, 128, 1536, 512, 128, 64, 128, 160, 6, 2, 1536)
_V3 = Dimensions(7168, 18432, 128, 1536, 512, 128, 64, 128, 256, 8, 1, 2048)
_K2 = Dimensions(7168, 18432, 64, 1536, 512, 128, 64, 128, 384, 8, 1, 2048)
_GLM_FLASH = Dimensions(2048, 10240, 20, 768, 512, 192, 64, 256, 64, 4, 1, 1536)

_K2_ROUTING = _routing(_SIGMOID, (1, 1), 2.827, norm=True) | {_THETA: 50000.0}

KNOWN_MODELS = (
    KnownModel(
        "DeepSeek V2-Lite",
        _V2_LITE,
        _routing(_SOFTMAX, (1, 1), 1.0, norm=False) | _yarn(40.0, 32.0, 0.0707) | {_EPSILON: 1e-6, _THETA: 10000.0},
    ),
    KnownModel(
        "DeepSeek V2 or V2.5",
        _V2,
        _routing(_SOFTMAX, (8, 3), 16.0, norm=False) | _yarn(40.0, 32.0, None) | {_EPSILON: 1e-6, _THETA: 10000.0},
    ),
    KnownModel(
        "DeepSeek V3, V3.1 or R1",
        _V3,
        _routing(_SIGMOID, (8, 4), 2.5, norm=True) | _yarn(40.0, 32.0, 0.1) | {_EPSILON: 1e-6, _THETA: 10000.0},
    ),
    KnownModel("Kimi K2", _K2, _K2_ROUTING | _yarn(32.0, 1.0, 0.1) | {_EPSILON: 1e-6}),
    KnownModel("Kimi K2-0905", _K2, _K2_ROUTING | _yarn(64.0, 1.0, 0.1) | {_EPSILON: 1e-6}),
    KnownModel("Kimi K2-Thinking", _K2, _K2_ROUTING | _yarn(64.0, 1.0, 0.1) | {_EPSILON: 1e-5}),
    KnownModel("Kimi K2.5 or K2.6", _K2, _K2_ROUTING | _yarn(64.0, 32.0, 0.1) | {_EPSILON: 1e-5}),
    KnownModel(
        "GLM-4.7-Flash", _GLM_FLASH, _routing(_SIGMOID, (1, 1), 1.8, norm=True) | {_EPSILON: 1e-5, _THETA: 1000000.0}
    ),
)


def matching_models(dimensions: Dimensions, keys: Keys) -> tuple[KnownModel, ...]:
    """The known models that have these dimensions and that no key of the file contradicts."""
    return tuple(
        model
        for model in KNOWN_MODELS
        if _same(model.dimensions, dimensions)
        and all(_agrees(value, keys.get(key)) for key, value in model.values.items())
    )


def common_value(models: Iterable[KnownModel], key: str) -> Value | None:
    """What all of `models` have for a key; None when they differ, or one says nothing."""
    values = {model.values.get(key) for model in models}
    return values.pop() if len(values) == 1 else None


def names(models: Sequence[KnownModel]) -> str:
    """The models' names, for messages."""
    return " or ".join(model.name for model in models)


def _same(known: Dimensions, found: Dimensions) -> bool:
    """Equal, but for the width of dense layers where a file has none."""
    return (known if found.ffn_dim else known._replace(ffn_dim=0)) == found


def _agrees(known: Value, found: object) -> bool:
    """Whether a file's value, if it has one, is the known one up to the file's rounding to float32."""
    if found is None:
        return True
    if isinstance(known, bool) or not is_number(found):
        return found is known
    return math.isclose(found, known, rel_tol=1e-5)
