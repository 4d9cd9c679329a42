"""Step-3.5-Flash and Step-3.7-Flash, which always reason and write calls as tags.

The published template of Step-3.5-Flash is replaced by one that needs no guarded process. It trims texts of messages,
as llama.cpp does, since with spaces around them the model may reason without end; otherwise it writes the same bytes.
With the levels of effort of Step-3.7-Flash it serves that one too, for which a file's own template is used by default.
"""

from __future__ import annotations

from ballast.families.family import Family, Release, ReplyForm
from ballast.families.marks import Mark

FAMILY = Family(
    name="step",
    architecture="step35",
    models=(),
    releases=(
        Release("step-3.5-flash", "step.jinja", divides_content=True, object_arguments=True),
        Release(
            "step-3.7-flash", "step.jinja", options={"takes_effort": True}, divides_content=True, object_arguments=True
        ),
    ),
    published={"b362ce5c14c6abeb": "step-3.5-flash"},
    reply=ReplyForm(
        spellings={
            Mark.THINK: "<think>",
            Mark.END_THINK: "</think>",
            Mark.CALL: "<tool_call>",
            Mark.END_CALL: "</tool_call>",
        },
        read_style="tagged",
    ),
    vocabulary=("<｜begin▁of▁sentence｜>", "<|im_start|>", "<tool_call>", "<tool_response>"),
    without_template="step-3.5-flash",
    ends=("<|im_end|>",),
)
