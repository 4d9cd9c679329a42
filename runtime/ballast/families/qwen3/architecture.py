"""The arithmetic of `qwen3moe`. Its files have no keys for the router's rule, which is the same in every model."""

from __future__ import annotations

from ballast.families.architecture import PLAIN_YARN, Architecture, RouterRule
from ballast.families.family import SOFTMAX, routing_values

ARCHITECTURE = Architecture(
    name="qwen3moe",
    attention="grouped",
    routers={"softmax": RouterRule(group_score="max", has_bias=False)},
    modules={"softmax": "Qwen3Moe"},
    moe_module="SparseMoeBlock",
    defaults={**routing_values(SOFTMAX, (1, 1), 1.0, norm=True), **PLAIN_YARN},
    needed_options=frozenset({"qk_norm"}),
)
