"""GLM-4.5 to 4.7, and GLM-4.7-Flash, which has DeepSeek's arithmetic.

Their published templates are replaced by ones that need no guarded process and write the same bytes.
"""

from __future__ import annotations

from ballast.families.family import Family, Release, ReplyForm
from ballast.families.glm.models import MODELS
from ballast.families.marks import Mark

FAMILY = Family(
    name="glm",
    architecture="deepseek2",
    models=MODELS,
    releases=(
        Release(
            "glm-4.5",
            "glm-4.5.jinja",
            has_switch=True,
            divides_content=True,
            object_arguments=True,
            architectures=("glm4moe",),
        ),
        Release(
            "glm-4.7",
            "glm-4.7.jinja",
            has_switch=True,
            divides_content=True,
            object_arguments=True,
            architectures=("glm4moe", "deepseek2"),
        ),
    ),
    published={
        "fe67d70dbfb40233": "glm-4.5",
        "f9779ce18ed6dd2e": "glm-4.5",  # as llama.cpp's conversion changes it
        "a604b9b6df217934": "glm-4.7",
    },
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
