"""The arithmetic of `minimax-m2`: MiniMax-M2, M2.1, M2.5 and M2.7."""

from __future__ import annotations

from ballast.families.architecture import PLAIN_YARN, Architecture, RouterRule
from ballast.families.family import SIGMOID, routing_values

ARCHITECTURE = Architecture(
    name="minimax-m2",
    attention="grouped",
    routers={"sigmoid": RouterRule(group_score="top2_sum", has_bias=True)},
    modules={"sigmoid": "MiniMaxM2"},
    moe_module="SparseMoeBlock",
    defaults={**routing_values(SIGMOID, (1, 1), 1.0, norm=True), **PLAIN_YARN},
    needed_options=frozenset({"qk_norm"}),
    norms_all_heads=True,
)
