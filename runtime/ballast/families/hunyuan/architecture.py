"""The arithmetic of `hy_v3`: Hunyuan 3. Its files count neither dense layers nor shared experts."""

from __future__ import annotations

from ballast.families.architecture import PLAIN_YARN, Architecture, RouterRule
from ballast.families.family import SIGMOID

ARCHITECTURE = Architecture(
    name="hy_v3",
    attention="grouped",
    routers={"sigmoid": RouterRule(group_score="top2_sum", has_bias=True, may_lack_bias=True)},
    modules={"sigmoid": "HYV3"},
    defaults={
        "expert_gating_func": SIGMOID,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
        "expert_weights_norm": True,
        **PLAIN_YARN,
    },
    needed_options=frozenset({"qk_norm"}),
)
