"""The arithmetic of `deepseek32`: DeepSeek V3's, with attention to the positions that an indexer chooses."""

from __future__ import annotations

from ballast.families.architecture import Architecture, RouterRule

ARCHITECTURE = Architecture(
    name="deepseek32",
    attention="latent",
    routers={"sigmoid": RouterRule(group_score="top2_sum", has_bias=True, may_lack_bias=True)},
    modules={"sigmoid": "DeepseekV32"},
    index_pairs="apart",
)
