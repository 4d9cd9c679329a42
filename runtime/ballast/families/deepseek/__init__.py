"""DeepSeek V2, V2-Lite, Coder-V2, V2.5, V3, R1 and V3.1.

DeepSeek's published templates fail on conversations that are common today: a second tool turn, a list of tools, null
content. A template with a known fingerprint is therefore replaced by one of Ballast's.
"""

from __future__ import annotations

from ballast.families.deepseek.models import MODELS
from ballast.families.family import Family, Release, ReplyForm
from ballast.families.marks import Mark

FAMILY = Family(
    name="deepseek",
    architecture="deepseek2",
    models=MODELS,
    releases=(
        Release("deepseek-v2", "deepseek-v2.jinja"),
        Release("deepseek-v2.5", "deepseek-v3.jinja"),
        Release("deepseek-v3", "deepseek-v3.jinja"),
        Release("deepseek-r1", "deepseek-v3.jinja", thinks=True, options={"thinking": True}, has_switch=True),
        Release("deepseek-r1-0528", "deepseek-v3.jinja", thinks=True, has_switch=True),
        Release("deepseek-v3.1", "deepseek-v3.1.jinja", has_switch=True),
    ),
    published={
        "04d80a2c7611ded6": "deepseek-v2",
        "4263e45091e06728": "deepseek-v2",  # the special tokens spelled out
        "0c309b8d0564aaad": "deepseek-v2.5",
        "d9c8f40329548077": "deepseek-v3",  # December 2024
        "020d8f40da5abbb9": "deepseek-v3",  # January 2025
        "c3d67ecca2f394fa": "deepseek-v3",  # V3-0324
        "0c930de255eb68d6": "deepseek-r1",  # January 2025, still without <think>
        "3a618e4a6f85e0b9": "deepseek-r1",  # February 2025
        "7be52d1905ead4f1": "deepseek-r1",
        "d09db7922e109a77": "deepseek-r1",  # as llama.cpp carries it
        "57423294a31d012b": "deepseek-r1-0528",
        "f1f1300d611965b4": "deepseek-v3.1",
        "de75392ea51812eb": "deepseek-v3.1",  # with |tojson
        "95d06c8086613582": "deepseek-v3.1",  # as llama.cpp carries it
        "5306e34d183dfd3d": "deepseek-v3.1",  # as llama.cpp carries it, later
        "72824802a7021b75": "deepseek-v3.1",  # V3.1-Terminus
    },
    reply=ReplyForm(
        spellings={
            Mark.THINK: "<think>",
            Mark.END_THINK: "</think>",
            Mark.CALLS: "<｜tool▁calls▁begin｜>",
            Mark.END_CALLS: "<｜tool▁calls▁end｜>",
            Mark.CALL: "<｜tool▁call▁begin｜>",
            Mark.END_CALL: "<｜tool▁call▁end｜>",
            Mark.SEPARATOR: "<｜tool▁sep｜>",
        },
        styles=(("```json", "fenced"), ("", "plain")),  # all but V3.1 have a fence
        read_style="either",
    ),
    vocabulary=("<｜tool▁calls▁begin｜>",),
)
