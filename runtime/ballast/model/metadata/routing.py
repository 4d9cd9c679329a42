"""How experts are chosen and weighed."""

from __future__ import annotations

from ballast.families.architecture import GATING_NUMBERS, Gating
from ballast.families.family import SOFTMAX_OF_CHOSEN
from ballast.model.layers.feed_forward import RoutingSpec
from ballast.model.metadata.keys import Keys, is_number, is_whole
from ballast.model.metadata.layers import ROUTER_BIASES, Layers, Widths
from ballast.model.metadata.settings import Settings

_GATING: dict[object, Gating] = {
    SOFTMAX_OF_CHOSEN: "softmax",
    **{number: gating for gating, number in GATING_NUMBERS.items()},
    **{gating: gating for gating in GATING_NUMBERS},
}
"""As the file numbers them and as config.json spells them."""
_MAX_SCALE = 1e4


def read_routing(settings: Settings, layers: Layers, widths: Widths) -> RoutingSpec:
    """The rule. Raises ModelError for a senseless value, ConfigError for one that is nowhere."""
    gating = _gating(settings)
    num_groups, num_groups_used = _groups(settings, gating)
    rule = settings.keys.architecture.routers[gating]
    return RoutingSpec(
        num_experts=widths.num_experts,
        num_experts_used=widths.num_experts_used,
        gating=gating,
        num_groups=num_groups,
        num_groups_used=num_groups_used,
        group_score=rule.group_score,
        router_bias=rule.has_bias and not (rule.may_lack_bias and _lacks_bias(settings.keys, layers.num_layers)),
        normalize_weights=rule.weighs_chosen or _normalize_weights(settings),
        weights_scale=_weights_scale(settings),
    )


def _lacks_bias(keys: Keys, num_layers: int) -> bool:
    names = (f"blk.{layer}.{name}" for layer in range(num_layers) for name in ROUTER_BIASES)
    return not any(map(keys.has_tensor, names))


def _ignores_groups(settings: Settings, gating: Gating) -> bool:
    """Whether experts are selected from all, ignoring groups."""
    return gating == "softmax" and settings.config.is_greedy


def _gating(settings: Settings) -> Gating:
    key = "expert_gating_func"
    value = settings.value(key, "scoring_func", settings.config.scoring_func)
    routers = settings.keys.architecture.routers
    gating = _GATING.get(value) if isinstance(value, str) or is_whole(value, 1) else None
    is_known = gating is not None and gating in routers
    if gating is None or not is_known or (value == SOFTMAX_OF_CHOSEN and not routers[gating].weighs_chosen):
        allowed = [f"{number} ({name})" for name, number in GATING_NUMBERS.items() if name in routers]
        raise settings.keys.wrong(key, " or ".join(allowed))
    return gating


def _groups(settings: Settings, gating: Gating) -> tuple[int, int]:
    if _ignores_groups(settings, gating):
        return 1, 1
    count, used = "expert_group_count", "expert_group_used_count"
    num_groups = settings.value(count, "n_group", settings.config.n_group)
    if num_groups in (0, 1):
        return 1, 1
    num_used = settings.value(used, "topk_group", settings.config.topk_group)
    if not is_whole(num_groups, 1):
        raise settings.keys.wrong(count, "a whole number, at least 0")
    if not is_whole(num_used, 1) or num_used > num_groups:
        problem = f"{num_used} of {num_groups} expert groups used; expected at least 1 and at most all"
        raise settings.keys.refuse(f"{settings.keys.full(used)}: {problem}")
    return num_groups, num_used


def _normalize_weights(settings: Settings) -> bool:
    """The rule belongs to the model, not to its gating function: V2 has softmax without it, Qwen3 with it."""
    key = "expert_weights_norm"
    value = settings.value(key, "norm_topk_prob", settings.config.norm_topk_prob)
    if not isinstance(value, bool):
        raise settings.keys.wrong(key, "true or false")
    return value


def _weights_scale(settings: Settings) -> float:
    key = "expert_weights_scale"
    value = settings.value(key, "routed_scaling_factor", settings.config.routed_scaling_factor)
    if not is_number(value) or not 0 <= value <= _MAX_SCALE:
        raise settings.keys.wrong(key, f"a number, at least 0 and at most {_MAX_SCALE:g}")
    return float(value) or 1.0
