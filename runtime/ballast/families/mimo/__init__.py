"""MiMo-V2-Flash and MiMo-V2.5, whose replies have the tokens of Qwen3 and calls in tags of their own.

The published template of V2.5 is replaced by one that needs no guarded process and writes the same bytes for texts.
"""

from __future__ import annotations

from dataclasses import replace

from ballast.families.family import Family, Release
from ballast.families.qwen3 import FAMILY as QWEN3

FAMILY = Family(
    name="mimo",
    architecture="mimo2",
    models=(),
    releases=(Release("mimo-v2.5", "mimo-v2.5.jinja", has_switch=True, object_arguments=True),),
    published={"66f4bd1da5a1eb12": "mimo-v2.5"},
    reply=replace(QWEN3.reply),  # an object of its own, which tells the family
    vocabulary=("<|im_start|>", "<tool_call>", "<|mimo_audio_start|>"),
    ends=("<|im_end|>",),
)
