"""The arithmetic of `kimi-linear`: Kimi Linear, most of whose layers are Kimi Delta Attention."""

from __future__ import annotations

from ballast.families.architecture import Architecture, RouterRule

LINEAR_ARCHITECTURE = Architecture(
    name="kimi-linear",
    attention="latent",
    routers={"sigmoid": RouterRule(group_score="top2_sum", has_bias=True)},
    modules={"sigmoid": "KimiLinear"},
    defaults={"expert_group_count": 1, "expert_group_used_count": 1, "expert_weights_norm": True},
    kimi_delta=True,
    rotates=False,
)
