"""A table as grouped bars: one SVG that follows the reader's light or dark theme."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib import pyplot as plt

from tools.svg_theme import GRID, INK, INK_AND_GRID, STYLE, themed

_SERIES = ("#030303", "#040404", "#050505")
_COLOURS = {
    **INK_AND_GRID,
    _SERIES[0]: ("#0969da", "#58a6ff"),
    _SERIES[1]: ("#afb8c1", "#656d76"),
    _SERIES[2]: ("#bc4c00", "#f0883e"),
}


def grouped_bars(groups: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], axis: str, title: str) -> str:
    """An SVG with a group of horizontal bars for each of `groups` and a colour for each of `series` (name, one value
    per group).

    Screen readers read `title`."""
    height = 0.8 / len(series)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.2, 0.75 + 0.27 * len(groups) * len(series)))
        for number, (name, values) in enumerate(series):
            places = [place + number * height for place in range(len(groups))]
            bars = axes.barh(places, values, height * 0.92, color=_SERIES[number], label=name)
            axes.bar_label(bars, fmt=_short, padding=3, fontsize=8, color=INK)
        axes.set_yticks([place + height * (len(series) - 1) / 2 for place in range(len(groups))], groups)
        axes.invert_yaxis()
        axes.set_xlabel(axis)
        axes.margins(x=0.12)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
        axes.grid(axis="x", color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        if len(series) > 1:
            figure.legend(loc="outside upper right", ncols=len(series), frameon=False, fontsize=9)
        text = io.StringIO()
        figure.savefig(
            text, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None, "Title": title}
        )
        plt.close(figure)
    return themed(text.getvalue(), _COLOURS)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
