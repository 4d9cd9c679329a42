"""DeepSeek V3.2, whose attention is sparse and whose calls are tags with a token of their own in each, DSML.

The release ships Python and no template: Ballast's own writes the same bytes, also for files without one. llama.cpp's
copy, which others carry, opens reasoning that is off, and sets the rules for tools apart by blank lines. V3.2-Exp talks
as V3.1 does.
"""

from __future__ import annotations

from ballast.families.family import Family, Release, ReplyForm
from ballast.families.marks import Mark

FAMILY = Family(
    name="deepseek32",
    architecture="deepseek32",
    models=(),
    releases=(
        Release(
            "deepseek-v3.2",
            "deepseek-v3.2.jinja",
            has_switch=True,
            object_arguments=True,
            architectures=("deepseek32", "deepseek2"),  # the latter without the indexer
        ),
    ),
    published={"47aa15a647046667": "deepseek-v3.2"},  # as llama.cpp carries it
    reply=ReplyForm(
        spellings={Mark.THINK: "<think>", Mark.END_THINK: "</think>", Mark.TAG: "｜DSML｜"},
        read_style="dsml",
    ),
    vocabulary=("｜DSML｜",),
)
