"""GLM-4.7-Flash, which has DeepSeek's arithmetic. Its published template is used as it is."""

from __future__ import annotations

from ballast.families.family import Family, ReplyForm
from ballast.families.glm.models import MODELS
from ballast.families.marks import Mark

FAMILY = Family(
    name="glm",
    served="GLM-4.7-Flash",
    architecture="deepseek2",
    models=MODELS,
    releases=(),
    published={},
    reply=ReplyForm(
        spellings={
            Mark.THINK: "<think>",
            Mark.END_THINK: "</think>",
            Mark.CALL: "<tool_call>",
            Mark.END_CALL: "</tool_call>",
            Mark.KEY: "<arg_key>",
            Mark.END_KEY: "</arg_key>",
            Mark.VALUE: "<arg_value>",
            Mark.END_VALUE: "</arg_value>",
        },
        read_style="keyed",
    ),
    vocabulary=("[gMASK]", "<sop>", "<|observation|>"),
    ends=("<|user|>", "<|observation|>"),  # the token of the next role ends a turn
)
