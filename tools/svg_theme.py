"""Saves matplotlib drawings as SVG files that follow the reader's light or dark theme.

Drawings use placeholder colours. The file's style sheet maps each to a light and a dark colour.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import matplotlib

matplotlib.use("svg")

INK, GRID = "#010101", "#020202"
INK_AND_GRID = {INK: ("#1f2328", "#e6edf3"), GRID: ("#d1d9e0", "#3d444d")}

STYLE: Any = {
    "svg.fonttype": "none",  # text stays text, so it is searchable and the file is small
    "svg.hashsalt": "ballast",  # the same figures give the same file
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": GRID,
}
"""Settings for `pyplot.rc_context`."""


def themed(svg: str, colours: Mapping[str, tuple[str, str]]) -> str:
    """The drawing with each placeholder as a variable of a style sheet. `colours` maps placeholders to light and dark
    colours."""
    names = {colour: f"--c{number}" for number, colour in enumerate(colours)}
    light, dark = ("".join(f"{names[stand_in]}:{both[i]};" for stand_in, both in colours.items()) for i in (0, 1))
    style = f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    for colour, name in names.items():
        svg = svg.replace(colour, f"var({name})")
    # the reader's font, not the font used for measuring
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", svg)
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)
    return re.sub(r"(<svg[^>]*>)", lambda tag: f"{tag[1]}\n {style}", svg, count=1)
