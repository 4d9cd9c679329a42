"""The arithmetic of `mistral4`, Mistral Small 4. (Mistral Large 3's files are `deepseek2`.)"""

from __future__ import annotations

from ballast.families.architecture import Architecture, RouterRule
from ballast.families.family import SOFTMAX

ARCHITECTURE = Architecture(
    name="mistral4",
    attention="latent",
    routers={"softmax": RouterRule(group_score="top2_sum", has_bias=False)},
    modules={"softmax": "Mistral4"},
    defaults={
        "attention.temperature_scale": 0.1,
        "expert_gating_func": SOFTMAX,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.0,
        "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.yarn_beta_slow": 1.0,
        "rope.scaling.yarn_log_multiplier": 0.1,
    },
    scales_queries=True,
)
