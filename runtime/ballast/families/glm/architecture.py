"""The arithmetic of `glm4moe`: GLM-4.5, 4.5-Air, 4.6 and 4.7. (GLM-4.7-Flash's files are `deepseek2`.)"""

from __future__ import annotations

from ballast.families.architecture import PLAIN_YARN, Architecture, RouterRule
from ballast.families.family import SIGMOID

ARCHITECTURE = Architecture(
    name="glm4moe",
    attention="grouped",
    routers={"sigmoid": RouterRule(group_score="top2_sum", has_bias=True)},
    modules={"sigmoid": "Glm4Moe"},
    defaults={"expert_gating_func": SIGMOID, "expert_group_count": 1, "expert_group_used_count": 1, **PLAIN_YARN},
    ffn_norm="post_attention_norm",
    served=("GLM-4.5", "GLM-4.5-Air", "GLM-4.6", "GLM-4.7"),
)
