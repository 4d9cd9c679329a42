"""The arithmetic of `dots1`: dots.llm1. Its chat template comes from the file, and its calls are text."""

from __future__ import annotations

from ballast.families.architecture import PLAIN_YARN, Architecture, RouterRule
from ballast.families.family import SIGMOID

ARCHITECTURE = Architecture(
    name="dots1",
    attention="grouped",
    routers={"sigmoid": RouterRule(group_score="top2_sum", has_bias=True)},
    modules={"sigmoid": "Dots1"},
    defaults={"expert_gating_func": SIGMOID, "expert_group_count": 1, "expert_group_used_count": 1, **PLAIN_YARN},
    needed_options=frozenset({"qk_norm"}),
)
