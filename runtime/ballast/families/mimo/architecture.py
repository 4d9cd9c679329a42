"""The arithmetic of `mimo2`: MiMo-V2-Flash, V2.5 and their Pro versions. Their files do not describe the router."""

from __future__ import annotations

from ballast.families.architecture import PLAIN_YARN, Architecture, RouterRule, WindowRule
from ballast.families.family import SIGMOID, routing_values

ARCHITECTURE = Architecture(
    name="mimo2",
    attention="grouped",
    routers={"sigmoid": RouterRule(group_score="top2_sum", has_bias=True)},
    modules={"sigmoid": "MiMoV2Flash"},
    defaults={**routing_values(SIGMOID, (1, 1), 1.0, norm=True), **PLAIN_YARN},
    windowed_options=frozenset({"sinks"}),
    windows=WindowRule(),
    scales_values=True,
)
