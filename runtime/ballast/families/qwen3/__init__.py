"""Qwen3's mixture-of-experts models (those that reason where a request asks for it, Instruct-2507, Thinking-2507 and
Coder), Qwen3-Next, Qwen3-Coder-Next, Qwen3.5, Qwen3.6 and Qwen3.8-Flash-Next.

Their published templates are replaced by ones that need no guarded process and write the same bytes. That of
Qwen3-Next-Thinking is Thinking-2507's. `preserve_thinking` of Qwen3.6 is read for Qwen3.5 too.
"""

from __future__ import annotations

from ballast.families.family import Family, Release, ReplyForm
from ballast.families.marks import Mark

FAMILY = Family(
    name="qwen3",
    architecture="qwen3moe",
    models=(),
    releases=(
        Release("qwen3", "qwen3.jinja", has_switch=True, divides_content=True),
        Release("qwen3-instruct-2507", "qwen3.jinja", options={"reasons": "never"}, divides_content=True),
        Release(
            "qwen3-thinking-2507",
            "qwen3.jinja",
            thinks=True,
            options={"reasons": "always"},
            divides_content=True,
            architectures=("qwen3moe", "qwen3next"),
        ),
        Release("qwen3-coder", "qwen3-coder.jinja", object_arguments=True),
        Release("qwen3-next-instruct", "qwen3.jinja", options={"reasons": "unseen"}, architectures=("qwen3next",)),
        Release("qwen3-coder-next", "qwen3-coder-next.jinja", object_arguments=True, architectures=("qwen3next",)),
        Release(
            "qwen3.5",
            "qwen3.5.jinja",
            has_switch=True,
            divides_content=True,
            object_arguments=True,
            architectures=("qwen35moe",),
        ),
        Release(
            "qwen3.6",
            "qwen3.5.jinja",
            options={"writes_json": True},
            has_switch=True,
            divides_content=True,
            object_arguments=True,
            architectures=("qwen35moe",),
        ),
        Release(
            "qwen3.8",
            "qwen3.5.jinja",
            options={"writes_json": True, "writes_effort": True, "preserve_thinking": True},
            has_switch=True,
            object_arguments=True,
            architectures=("qwen4exp",),
        ),
    ),
    published={
        "e7e64d4e1b1a3f78": "qwen3",
        "26d730c00c681f6d": "qwen3",  # July 2025: content that is no text is empty
        "18ffee89669ae4a2": "qwen3-instruct-2507",
        "5e24400e17d4830d": "qwen3-thinking-2507",
        "2555919030e76e63": "qwen3-coder",
        "83c9dd6aa20c2765": "qwen3-next-instruct",
        "3175ddae5454a129": "qwen3-coder-next",
        "3a4ee346048178a5": "qwen3.5",
        "4572fd569db8b582": "qwen3.6",
        "1f923f84b6585442": "qwen3.8",
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
