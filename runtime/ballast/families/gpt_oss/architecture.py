"""The arithmetic of `gpt-oss`: gpt-oss-20b and gpt-oss-120b. Their files omit router, experts and pattern."""

from __future__ import annotations

from ballast.families.architecture import PLAIN_YARN, Architecture, ClampedSwiglu, RouterRule, WindowRule
from ballast.families.family import SOFTMAX_OF_CHOSEN, routing_values

ARCHITECTURE = Architecture(
    name="gpt-oss",
    attention="grouped",
    routers={"softmax": RouterRule(group_score="max", has_bias=False, weighs_chosen=True)},
    modules={"softmax": "GptOss"},
    moe_module="MLP",
    defaults={**routing_values(SOFTMAX_OF_CHOSEN, (1, 1), 1.0, norm=True), **PLAIN_YARN},
    ffn_norm="post_attention_norm",
    needed_options=frozenset({"qkv_bias", "output_bias", "sinks"}),
    windows=WindowRule(period=2),
    rounds_yarn=False,
    unit=ClampedSwiglu(alpha=1.702, limit=7.0),
    expert_biases=True,
)
