"""Qwen3's mixture-of-experts models: those that reason where a request asks for it, Instruct-2507, Thinking-2507 and
Coder.

Their published templates are replaced by ones that need no guarded process and write the same bytes.
"""

from __future__ import annotations

from ballast.families.family import Family, Release, ReplyForm
from ballast.families.marks import Mark

FAMILY = Family(
    name="qwen3",
    served="Qwen3-MoE (instruct, thinking, Coder)",
    architecture="qwen3moe",
    models=(),
    releases=(
        Release("qwen3", "qwen3.jinja", has_switch=True, divides_content=True),
        Release("qwen3-instruct-2507", "qwen3.jinja", options={"reasons": "never"}, divides_content=True),
        Release("qwen3-thinking-2507", "qwen3.jinja", thinks=True, options={"reasons": "always"}, divides_content=True),
        Release("qwen3-coder", "qwen3-coder.jinja", object_arguments=True),
    ),
    published={
        "e7e64d4e1b1a3f78": "qwen3",
        "26d730c00c681f6d": "qwen3",  # July 2025: content that is no text is empty
        "18ffee89669ae4a2": "qwen3-instruct-2507",
        "5e24400e17d4830d": "qwen3-thinking-2507",
        "2555919030e76e63": "qwen3-coder",
    },
    reply=ReplyForm(
        spellings={
            Mark.THINK: "<think>",
            Mark.END_THINK: "</think>",
            Mark.CALL: "<tool_call>",
            Mark.END_CALL: "</tool_call>",
        },
        # The templates of Coder and of MiMo show the model tags, MiMo's without line breaks around values.
        styles=(("value_1</parameter>", "function"), ("<function=", "tagged"), ("", "json")),
    ),
    vocabulary=("<|im_start|>", "<tool_call>"),
    ends=("<|im_end|>",),
)
