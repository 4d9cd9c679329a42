"""The arithmetic of `deepseek2`: DeepSeek V2 and V3, and models of others that took it over."""

from __future__ import annotations

from ballast.families.architecture import Architecture, RouterRule

ARCHITECTURE = Architecture(
    name="deepseek2",
    attention="latent",
    routers={  # V2's and V3's
        "softmax": RouterRule(group_score="max", has_bias=False),
        "sigmoid": RouterRule(group_score="top2_sum", has_bias=True),
    },
    modules={"softmax": "DeepseekV2", "sigmoid": "DeepseekV3"},
    defaults={"attention.temperature_scale": 0.0},
    scales_queries=True,
)
