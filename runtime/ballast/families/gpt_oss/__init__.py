"""gpt-oss, whose replies are messages on channels (the harmony format).

The published template is replaced by one that needs no guarded process and writes the same bytes. It also takes several
calls in a message, text next to calls, and reasoning in `reasoning_content`.
"""

from __future__ import annotations

from ballast.families.family import Family, Release, ReplyForm
from ballast.families.marks import Mark

_SPELLINGS = {
    Mark.START: "<|start|>",
    Mark.CHANNEL: "<|channel|>",
    Mark.CONSTRAIN: "<|constrain|>",
    Mark.MESSAGE: "<|message|>",
    Mark.END: "<|end|>",
}

FAMILY = Family(
    name="gpt_oss",
    architecture="gpt-oss",
    models=(),
    releases=(Release("gpt-oss", "gpt-oss.jinja", has_switch=True, object_arguments=True),),
    published={"665cc3253ec1d792": "gpt-oss"},
    reply=ReplyForm(spellings=_SPELLINGS, read_style="channels"),
    vocabulary=tuple(_SPELLINGS.values()),  # replies on channels need them all
    ends=("<|return|>", "<|call|>"),
    never_ends=("<|end|>",),
)
