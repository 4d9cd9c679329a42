"""The arithmetic of `step35`: the text models of Step-3.5-Flash and Step-3.7-Flash."""

from __future__ import annotations

from ballast.families.architecture import Architecture, RouterRule, WindowRule
from ballast.families.family import SIGMOID

ARCHITECTURE = Architecture(
    name="step35",
    attention="grouped",
    routers={"sigmoid": RouterRule(group_score="top2_sum", has_bias=True)},
    modules={"sigmoid": "Step3p5"},
    defaults={
        "expert_gating_func": SIGMOID,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
        "expert_weights_norm": True,
    },
    windows=WindowRule(),
    halves_full_rope=True,
    has_limits=True,
)
