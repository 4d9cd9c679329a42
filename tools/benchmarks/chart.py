"""A table as grouped bars: one SVG, which follows the reader's light or dark theme."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt

# Stand-ins that matplotlib draws with; the file's style sheet gives each its two colours.
_INK, _GRID = "#010101", "#020202"
_SERIES = ("#030303", "#040404", "#050505")
_LIGHT = {_INK: "#1f2328", _GRID: "#d1d9e0", _SERIES[0]: "#0969da", _SERIES[1]: "#afb8c1", _SERIES[2]: "#bc4c00"}
_DARK = {_INK: "#e6edf3", _GRID: "#3d444d", _SERIES[0]: "#58a6ff", _SERIES[1]: "#656d76", _SERIES[2]: "#f0883e"}

_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and the file is small
    "svg.hashsalt": "ballast",  # the same figures give the same file
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.edgecolor": _GRID,
}


def grouped_bars(groups: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], axis: str, title: str) -> str:
    """An SVG: a group of horizontal bars for each of `groups`, a colour for each of `series` (name, a value a group).

    `title` is what a screen reader says."""
    height = 0.8 / len(series)
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(7.2, 0.75 + 0.27 * len(groups) * len(series)))
        for number, (name, values) in enumerate(series):
            places = [place + number * height for place in range(len(groups))]
            bars = axes.barh(places, values, height * 0.92, color=_SERIES[number], label=name)
            axes.bar_label(bars, fmt=_short, padding=3, fontsize=8, color=_INK)
        axes.set_yticks([place + height * (len(series) - 1) / 2 for place in range(len(groups))], groups)
        axes.invert_yaxis()
        axes.set_xlabel(axis)
        axes.margins(x=0.12)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
        axes.grid(axis="x", color=_GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        if len(series) > 1:
            figure.legend(loc="outside upper right", ncols=len(series), frameon=False, fontsize=9)
        text = io.StringIO()
        figure.savefig(
            text, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None, "Title": title}
        )
        plt.close(figure)
    return _themed(text.getvalue())


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _themed(svg: str) -> str:
    """The drawing with the stand-ins as variables of a style sheet for light and dark."""
    names = {colour: f"--c{number}" for number, colour in enumerate(_LIGHT)}
    light = "".join(f"{names[colour]}:{value};" for colour, value in _LIGHT.items())
    dark = "".join(f"{names[colour]}:{value};" for colour, value in _DARK.items())
    style = f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    for colour, name in names.items():
        svg = svg.replace(colour, f"var({name})")
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", svg)  # the reader's font, not the one that measured
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)
    return re.sub(r"(<svg[^>]*>)", lambda tag: f"{tag[1]}\n {style}", svg, count=1)
