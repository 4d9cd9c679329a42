"""Kimi K2, K2-0905, K2-Thinking, K2.5, K2.6 and K2.7-Code, which have DeepSeek's arithmetic, and Kimi Linear.

The published templates of K2 and K2-Thinking identify results by their order alone, or restart the numbering of calls
in each message, so that a result may refer to a wrong call; they are replaced. Those of K2.5 and later use the ids of
the request and are used unchanged.
"""

from __future__ import annotations

from ballast.families.family import Family, Release, ReplyForm
from ballast.families.kimi.models import MODELS
from ballast.families.marks import Mark

FAMILY = Family(
    name="kimi",
    architecture="deepseek2",
    models=MODELS,
    releases=(
        Release("kimi-k2", "kimi-k2.jinja"),
        Release("kimi-k2-thinking", "kimi-k2-thinking.jinja", thinks=True, has_switch=True),
    ),
    published={
        "a0c699ea4ebcd3f5": "kimi-k2",  # July 2025
        "bca9f18908aa1ae6": "kimi-k2",  # ids of calls counted over the conversation
        "c47e9ec95b365368": "kimi-k2-thinking",  # as llama.cpp carries it: keeps reasoning since the first answer
        "619e2b7a0a1eeba6": "kimi-k2-thinking",  # since the last answer
    },
    reply=ReplyForm(
        spellings={
            Mark.THINK: "<think>",
            Mark.END_THINK: "</think>",
            Mark.CALLS: "<|tool_calls_section_begin|>",
            Mark.END_CALLS: "<|tool_calls_section_end|>",
            Mark.CALL: "<|tool_call_begin|>",
            Mark.END_CALL: "<|tool_call_end|>",
            Mark.SEPARATOR: "<|tool_call_argument_begin|>",
        },
        read_style="numbered",
    ),
    vocabulary=("<|tool_calls_section_begin|>", "<|im_middle|>"),
)
