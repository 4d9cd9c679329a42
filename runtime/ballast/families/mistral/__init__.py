"""Mistral Large 3 and Mistral Small 4, whose calls have no end mark.

Conversions of Mistral Large 3 carry a template of another model, Devstral, with its instructions. It is replaced by one
that writes what mistral-common does, without default instructions. For Mistral Small 4, whose requests set the effort
of reasoning, a file's own template is used by default; `mistral4` files are all of this model.
"""

from __future__ import annotations

from ballast.families.family import Family, Release, ReplyForm
from ballast.families.marks import Mark
from ballast.families.mistral.models import MODELS

FAMILY = Family(
    name="mistral",
    architecture="deepseek2",
    models=MODELS,
    releases=(
        Release("mistral-large-3", "mistral.jinja"),
        Release(
            "mistral-small-4",
            "mistral.jinja",
            options={"takes_effort": True},
            has_switch=True,
            architectures=("mistral4",),
        ),
    ),
    published={"13eab2de51728d1b": "mistral-large-3"},
    reply=ReplyForm(
        spellings={
            Mark.THINK: "[THINK]",
            Mark.END_THINK: "[/THINK]",
            Mark.CALL: "[TOOL_CALLS]",
            Mark.SEPARATOR: "[ARGS]",
        },
        read_style="named",
    ),
    vocabulary=("[INST]", "[TOOL_CALLS]", "[ARGS]"),
)
