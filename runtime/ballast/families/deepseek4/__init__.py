"""DeepSeek V4, whose calls are V3.2's in a block of another name, and whose results are parts of the user's turn.

The releases ship Python and no template: Ballast's own writes the same bytes, also for files without one. llama.cpp's
copies, which its conversions write into files, leave out the blank line before tools if there is no system message.
From July 2026 on, `high` is what `max` was, and `max` asks for more.
"""

from __future__ import annotations

from ballast.families.family import Family, Release, ReplyForm
from ballast.families.marks import Mark

FAMILY = Family(
    name="deepseek4",
    architecture="deepseek4",
    models=(),
    releases=(
        Release("deepseek-v4", "deepseek-v4.jinja", has_switch=True, object_arguments=True),
        Release(
            "deepseek-v4-0731",
            "deepseek-v4.jinja",
            options={"has_strong_effort": True},
            has_switch=True,
            object_arguments=True,
        ),
    ),
    published={"58070cda95eecdfa": "deepseek-v4", "37d982d44be1e1d3": "deepseek-v4-0731"},  # as llama.cpp carries them
    reply=ReplyForm(
        spellings={Mark.THINK: "<think>", Mark.END_THINK: "</think>", Mark.TAG: "｜DSML｜"},
        read_style="dsml_tools",
    ),
    vocabulary=("｜DSML｜", "<｜latest_reminder｜>"),
    without_template="deepseek-v4",
)
