"""The arithmetic of GLM's architectures. (GLM-4.7-Flash's files are `deepseek2`.)

`glm4moe` are GLM-4.5, 4.5-Air, 4.6 and 4.7; `glm-dsa` are GLM-5 to 5.3, whose attention is DeepSeek V3.2's; `glm5-next`
is GLM-5.3-Flash, most of whose layers are Kimi Delta Attention.
"""

from __future__ import annotations

from dataclasses import replace

from ballast.families.architecture import PLAIN_YARN, Architecture, RouterRule
from ballast.families.family import SIGMOID

ARCHITECTURE = Architecture(
    name="glm4moe",
    attention="grouped",
    routers={"sigmoid": RouterRule(group_score="top2_sum", has_bias=True)},
    modules={"sigmoid": "Glm4Moe"},
    defaults={"expert_gating_func": SIGMOID, "expert_group_count": 1, "expert_group_used_count": 1, **PLAIN_YARN},
    ffn_norm="post_attention_norm",
)

SPARSE_ARCHITECTURE = Architecture(
    name="glm-dsa",
    attention="latent",
    routers={"sigmoid": RouterRule(group_score="top2_sum", has_bias=True, may_lack_bias=True)},
    modules={"sigmoid": "GlmMoeDsa"},
    defaults={"expert_gating_func": SIGMOID, "expert_group_count": 1, "expert_group_used_count": 1, **PLAIN_YARN},
    index_pairs="neighbours",
    shared_index_context=1048576,
)

NEXT_ARCHITECTURE = Architecture(
    name="glm5-next",
    attention="latent",
    routers={"sigmoid": RouterRule(group_score="top2_sum", has_bias=True)},
    modules={"sigmoid": "Glm5NextText"},
    defaults={"expert_gating_func": SIGMOID, "expert_group_count": 1, "expert_group_used_count": 1},
    has_limits=True,
    limits_inputs=True,
    kimi_delta=True,
    bounds_decays=True,
    rotates=False,
    index_pairs="apart",
    pools_index_keys=True,
    hyper_connections=True,
)

EARLY_NEXT_ARCHITECTURE = replace(NEXT_ARCHITECTURE, name="glm5next")
"""As conversions before October 2026 name it."""
