"""MiniMax-M2, M2.1, M2.5 and M2.7, which always reason and write calls as invoke tags between two tokens.

The published template of M2 is replaced by one that needs no guarded process and writes the same bytes. Those of later
releases are used as they are; a file without a template gets M2's, since its keys do not tell the releases apart.
"""

from __future__ import annotations

from ballast.families.family import Family, Release, ReplyForm
from ballast.families.marks import Mark

FAMILY = Family(
    name="minimax",
    architecture="minimax-m2",
    models=(),
    releases=(Release("minimax-m2", "minimax-m2.jinja", divides_content=True, object_arguments=True),),
    published={"9c5ae4538fe04a7c": "minimax-m2"},
    reply=ReplyForm(
        spellings={
            Mark.THINK: "<think>",
            Mark.END_THINK: "</think>",
            Mark.CALL: "<minimax:tool_call>",
            Mark.END_CALL: "</minimax:tool_call>",
        },
        read_style="invoke",
    ),
    vocabulary=("]~b]", "<minimax:tool_call>"),
    ends=("[e~[",),
)
