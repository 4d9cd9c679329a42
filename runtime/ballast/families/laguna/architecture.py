"""The arithmetic of `laguna`: Laguna XS.2, XS-2.1, S-2.1 and M.1. Only M.1 has no windows, and gates of entries."""

from __future__ import annotations

from ballast.families.architecture import PLAIN_YARN, Architecture, RouterRule, WindowRule
from ballast.families.family import SIGMOID, routing_values

ARCHITECTURE = Architecture(
    name="laguna",
    attention="grouped",
    routers={"sigmoid": RouterRule(group_score="top2_sum", has_bias=True)},
    modules={"sigmoid": "Laguna"},
    moe_module="SparseMoeBlock",
    defaults={**routing_values(SIGMOID, (1, 1), 1.0, norm=True), **PLAIN_YARN},
    needed_options=frozenset({"qk_norm", "gate"}),
    windows=WindowRule(period=4, full_first=True, is_optional=True),
    yarn_in_windows=False,
    gate="softplus",
    may_gate_entries=True,
)
