"""How positions are encoded: the rotation's base, and YaRN."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ballast.errors import shown
from ballast.model.layers.positions import NO_ROPE, QueryScale, RopeSpec, YarnSpec
from ballast.model.metadata.hf_config import HfRope
from ballast.model.metadata.keys import Keys, is_number
from ballast.model.metadata.settings import Settings

# Bounds far beyond any model's values. Within them all tables are finite in float32.
MAX_THETA = 1e12
_MAX_FACTOR = 1e4
_MAX_TURNS = 1e6
_MAX_MSCALE = 10.0
_MAX_QUERY_BETA = 10.0

# What config.json means that has YaRN and does not name them: the defaults of transformers.
_BETA_FAST, _BETA_SLOW = 32.0, 1.0


_NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.alpha": (0.0,),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
}
"""Keys that llama.cpp reads as well, and the values that change nothing."""


def read_rope(settings: Settings) -> RopeSpec:
    """The rotation without its dimensions. Raises ModelError for a senseless value, ConfigError for one that is
    nowhere. Without a base in an architecture that rotates nothing."""
    if not settings.keys.architecture.rotates:
        return NO_ROPE
    yarn = _read_yarn(settings)
    return RopeSpec(0, _read_theta(settings), yarn, query_scale=_read_query_scale(settings, yarn))


def _read_query_scale(settings: Settings, yarn: YarnSpec | None) -> QueryScale | None:
    """The factor of queries by position; None for a file without it."""
    keys = settings.keys
    if not keys.architecture.scales_queries:
        return None
    key = "attention.temperature_scale"
    configured = None if settings.config.yarn is None else settings.config.yarn.llama_4_scaling_beta
    beta = settings.value(key, "rope_parameters.llama_4_scaling_beta", configured)
    if not is_number(beta) or not 0 <= beta <= _MAX_QUERY_BETA:
        raise keys.wrong(key, f"a number, at least 0 and at most {_MAX_QUERY_BETA:g}")
    if beta == 0:
        return None
    length = None if yarn is None else yarn.original_context
    return QueryScale(float(beta), keys.whole("attention.temperature_length", default=length))


def _read_theta(settings: Settings) -> float:
    """The base of the frequencies."""
    return _number(settings, "rope.freq_base", "rope_theta", settings.config.theta, above=1.0, most=MAX_THETA)


def _read_yarn(settings: Settings) -> YarnSpec | None:
    """YaRN's numbers; None for a file without it."""
    keys = settings.keys
    _check_neutral(keys)
    kind = keys.get("rope.scaling.type")
    if kind == "none":
        return None
    if kind in (None, "linear"):
        _check_not_linear(keys)
        return None
    if kind != "yarn":
        raise keys.wrong("rope.scaling.type", "yarn or none")
    config = settings.config.yarn
    factor = keys.number("rope.scaling.factor", most=_MAX_FACTOR)
    if factor < 1:
        raise keys.wrong("rope.scaling.factor", f"a number, at least 1 and at most {_MAX_FACTOR:g}")
    mscale_all_dim = _mscale_all_dim(settings, config)
    # The converter's copy of config.json's attention_factor. llama.cpp overwrites it, transformers uses it.
    if keys.get("rope.scaling.yarn_attn_factor") is not None:
        attention_factor = keys.number("rope.scaling.yarn_attn_factor", most=_MAX_MSCALE)
    else:
        attention_factor = _attention_factor(factor, mscale_all_dim, config)
    return YarnSpec(
        factor=factor,
        original_context=keys.whole("rope.scaling.original_context_length"),
        beta_fast=_beta(settings, "beta_fast", None if config is None else config.beta_fast or _BETA_FAST),
        beta_slow=_beta(settings, "beta_slow", None if config is None else config.beta_slow or _BETA_SLOW),
        attention_factor=attention_factor,
        mscale_all_dim=mscale_all_dim,
        is_rounded=keys.architecture.rounds_yarn,
    )


def _check_neutral(keys: Keys) -> None:
    """Refuse keys that would change the positions in a way that is not computed here."""
    for key, neutral in _NEUTRAL.items():
        value = keys.get(key)
        if value is not None and value not in neutral:
            raise keys.wrong(key, f"{' or '.join(f'{each:g}' for each in neutral)}; other values are not supported")


def _check_not_linear(keys: Keys) -> None:
    """Refuse linear scaling, which is what a factor without a type means in llama.cpp. Factors of 0 and 1 scale
    nothing."""
    key = keys.first("rope.scaling.factor", "rope.scale_linear")
    if keys.get(key) not in (None, 0, 1):
        raise keys.wrong(key, "1, or rope.scaling.type yarn: linear scaling of positions is not supported")


def _beta(settings: Settings, name: str, configured: float | None) -> float:
    key = f"rope.scaling.yarn_{name}"
    return _number(settings, key, f"rope_scaling.{name}", configured, above=0.0, most=_MAX_TURNS)


def _number(
    settings: Settings, key: str, config_key: str, configured: float | None, *, above: float, most: float
) -> float:
    value = settings.value(key, config_key, configured)
    if not is_number(value) or not above < value <= most:
        raise settings.keys.refuse(
            f"{settings.keys.full(key)}, or {config_key} of config.json, is {shown(value)}; expected a number above "
            f"{above:g} and at most {most:g}"
        )
    return float(value)


def _mscale_all_dim(settings: Settings, config: HfRope | None) -> float:
    """The file keeps a tenth of it. 0: no correction of the softmax scale."""
    key = "rope.scaling.yarn_log_multiplier"
    configured = None if config is None else 0.1 * (config.mscale_all_dim or 0.0)
    value = settings.value(key, "rope_scaling.mscale_all_dim", configured)
    if not is_number(value) or not 0 <= value <= 0.1 * _MAX_MSCALE:
        raise settings.keys.wrong(key, f"a number, at least 0 and at most {0.1 * _MAX_MSCALE:g}")
    if value and settings.keys.architecture.attention != "latent":
        raise settings.keys.wrong(key, "0: only latent attention has a corrected softmax scale")
    return value * 10


def _attention_factor(factor: float, mscale_all_dim: float, config: HfRope | None) -> float:
    """Factor of cos and sin. The file contains only mscale_all_dim; in every DeepSeek model mscale is equal to it, so
    the quotient is 1 unless config.json has another value."""
    # config.json has both without the file's rounding to float32.
    mscale, all_dim = mscale_all_dim or None, mscale_all_dim or None
    if config is not None:
        if config.attention_factor is not None:
            return config.attention_factor
        mscale, all_dim = config.mscale, config.mscale_all_dim
    if mscale and all_dim:
        return _mscale(factor, mscale) / _mscale(factor, all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
