"""The arithmetic of `qwen3moe`, `qwen3next`, `qwen35moe` and `qwen4exp`. Their files have no keys for the router's
rule, which is the same in every model."""

from __future__ import annotations

from dataclasses import replace

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

NEXT_ARCHITECTURE = replace(
    ARCHITECTURE,
    name="qwen3next",
    modules={"softmax": "Qwen3Next"},
    ffn_norm="post_attention_norm",
    delta_net="neighbours",
    gates_queries=True,
    gates_shared=True,
)

QWEN35_ARCHITECTURE = replace(
    NEXT_ARCHITECTURE,
    name="qwen35moe",
    modules={"softmax": "Qwen3_5Moe"},
    delta_net="alternating",
    names_rope_sections=True,
)

FLASH_NEXT_ARCHITECTURE = replace(
    QWEN35_ARCHITECTURE,
    name="qwen4exp",
    modules={"softmax": "Qwen4ExpText"},
    delta_gate="sigmoid",
    index_pairs="apart",
    pools_index_keys=True,
    hyper_connections=True,
    gates_stream=True,
    embeds_ngrams=True,
)
