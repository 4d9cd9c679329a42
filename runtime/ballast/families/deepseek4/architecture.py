"""The arithmetic of `deepseek4`: attention to windows and compressed entries, hyper-connections, hashed experts."""

from __future__ import annotations

from ballast.families.architecture import PLAIN_YARN, Architecture, RouterRule
from ballast.families.family import SQRT_SOFTPLUS

ARCHITECTURE = Architecture(
    name="deepseek4",
    attention="compressed",
    routers={"sqrtsoftplus": RouterRule(group_score="max", has_bias=True)},
    modules={"sqrtsoftplus": "DeepseekV4"},
    moe_module="SparseMoeBlock",
    defaults={
        "expert_gating_func": SQRT_SOFTPLUS,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
        **PLAIN_YARN,
    },
    has_limits=True,
    limits_inputs=True,
    hyper_connections=True,
    weighs_stream_end=True,
    hashes_experts=True,
)
