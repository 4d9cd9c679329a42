"""Hunyuan 3 (Hy3), every special token of which ends in `:opensource`.

The published template is replaced by one that needs no guarded process and writes the same bytes. It also takes the
API's levels of effort and its switch, since the published one knows no_think, low and high alone.
"""

from __future__ import annotations

from ballast.families.family import Family, Release, ReplyForm
from ballast.families.marks import Mark

FAMILY = Family(
    name="hunyuan",
    architecture="hy_v3",
    models=(),
    releases=(Release("hy3", "hy3.jinja", has_switch=True, object_arguments=True),),
    published={"43157fb3fa854a2d": "hy3"},
    reply=ReplyForm(
        spellings={
            Mark.THINK: "<think:opensource>",
            Mark.END_THINK: "</think:opensource>",
            Mark.CALLS: "<tool_calls:opensource>",
            Mark.END_CALLS: "</tool_calls:opensource>",
            Mark.CALL: "<tool_call:opensource>",
            Mark.END_CALL: "</tool_call:opensource>",
            Mark.SEPARATOR: "<tool_sep:opensource>",
            Mark.KEY: "<arg_key:opensource>",
            Mark.END_KEY: "</arg_key:opensource>",
            Mark.VALUE: "<arg_value:opensource>",
            Mark.END_VALUE: "</arg_value:opensource>",
        },
        read_style="keyed",
    ),
    vocabulary=("<｜hy_User:opensource｜>", "<tool_sep:opensource>"),
    ends=("<｜hy_eos:opensource｜>",),
)
