"""Qwen3's mixture-of-experts models: instruct, thinking and coder. Their published templates are used as they are."""

from __future__ import annotations

from ballast.families.family import Family, ReplyForm
from ballast.families.marks import Mark

FAMILY = Family(
    name="qwen3",
    served="Qwen3-MoE (instruct, thinking, Coder)",
    architecture="qwen3moe",
    models=(),
    releases=(),
    published={},
    reply=ReplyForm(
        spellings={
            Mark.THINK: "<think>",
            Mark.END_THINK: "</think>",
            Mark.CALL: "<tool_call>",
            Mark.END_CALL: "</tool_call>",
        },
        styles=(("<function=", "tagged"), ("", "json")),  # Coder's template shows the model tags
    ),
    vocabulary=("<|im_start|>", "<tool_call>"),
    ends=("<|im_end|>",),
)
