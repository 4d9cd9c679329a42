"""Laguna (Poolside), whose calls have GLM's form and whose turns are between tags.

The published templates of XS.2, XS-2.1 and S-2.1 are replaced by ones that need no guarded process and write the same
bytes. Their line breaks around the tags of XS are not in replies.
"""

from __future__ import annotations

from dataclasses import replace

from ballast.families.family import Family, Release
from ballast.families.glm import FAMILY as GLM

FAMILY = Family(
    name="laguna",
    architecture="laguna",
    models=(),
    releases=(
        Release(
            "laguna-xs.2",
            "laguna-xs.jinja",
            options={"introduces": True},
            has_switch=True,
            divides_content=True,
            object_arguments=True,
        ),
        Release("laguna-xs-2.1", "laguna-xs.jinja", has_switch=True, divides_content=True, object_arguments=True),
        Release("laguna-s-2.1", "laguna-s.jinja", has_switch=True, object_arguments=True),
    ),
    published={
        "04517fd51c73381a": "laguna-xs.2",
        "81fa0b1c80573786": "laguna-xs-2.1",
        "429891513d5728bd": "laguna-s-2.1",
    },
    reply=replace(GLM.reply),  # an object of its own, which tells the family
    vocabulary=("〈|EOS|〉", "</assistant>"),
    ends=("</assistant>",),
)
