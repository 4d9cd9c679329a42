"""Draws a dashboard with Prometheus' answers as one SVG: its panels at their positions in Grafana's grid.

Lengths are points. The origin is the upper left corner.
"""

from __future__ import annotations

import io
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, Wedge
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tools.dashboards.answers import Json, Mark, Series, Window
from tools.dashboards.units import shown
from tools.svg_theme import GRID, INK, INK_AND_GRID, STYLE, themed

# Placeholder colours, as in tools/svg_theme.py.
_MUTED, _ON_COLOUR = "#030303", "#040404"
_STATUS = {"green": "#050505", "orange": "#060606", "red": "#070707", "blue": "#080808"}
_LINES = ("#090909", "#0a0a0a", "#0b0b0b", "#0c0c0c", "#0d0d0d", "#0e0e0e", "#0f0f0f")
_COLOURS = {
    **INK_AND_GRID,
    _MUTED: ("#59636e", "#9198a1"),
    _ON_COLOUR: ("#ffffff", "#ffffff"),
    _STATUS["green"]: ("#1a7f37", "#238636"),
    _STATUS["orange"]: ("#bc4c00", "#bd561d"),
    _STATUS["red"]: ("#cf222e", "#da3633"),
    _STATUS["blue"]: ("#0969da", "#58a6ff"),
    **dict(
        zip(
            _LINES,
            (
                ("#0969da", "#58a6ff"),
                ("#bc4c00", "#f0883e"),
                ("#1a7f37", "#3fb950"),
                ("#8250df", "#bc8cff"),
                ("#6e7781", "#8b949e"),
                ("#bf3989", "#f778ba"),
                ("#9a6700", "#d29922"),
            ),
            strict=True,
        )
    ),
}

WIDTH, UNIT, GAP, HEAD = 720.0, 18.0, 4.0, 34.0
TITLE_PT, TEXT_PT, VALUE_PT = 7.5, 6.5, 15.0
LETTER = 0.6
"""Average width of a letter, relative to its height."""


@dataclass(frozen=True)
class Place:
    """The rectangle of a panel."""

    left: float
    top: float
    width: float
    height: float


def draw(board: Json, answers: Mapping[int, Sequence[Series]], marks: Sequence[Mark], window: Window) -> str:
    """The SVG. `answers` are the series of each panel by its id. The SVG group of each panel also has an id,
    `panel-N`."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    height = HEAD + rows * UNIT
    with plt.rc_context({**STYLE, "font.size": TEXT_PT, "path.simplify_threshold": 0.3}):
        figure = plt.figure(figsize=(WIDTH / 72, height / 72))
        page = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
        page.axis("off")
        page.text(GAP, 12, board["title"], fontsize=11, fontweight="bold")
        page.text(GAP, 25, _heading(window), color=_MUTED)
        for panel in board["panels"]:
            place = _place(panel["gridPos"])
            if panel["type"] == "row":
                page.text(place.left, place.top + UNIT * 0.65, panel["title"], fontsize=9, fontweight="bold").set_gid(
                    f"panel-{panel['id']}"
                )
                continue
            _frame(page, panel, place)
            series = [each for each in answers[panel["id"]] if not all(map(math.isnan, each.values))]
            if not series:
                middle = place.left + place.width / 2, place.top + place.height / 2 + 4
                page.text(*middle, "No data", color=_MUTED, ha="center", va="center")
            elif panel["type"] == "timeseries":
                _lines(figure, page, panel, place, series, marks, window)
            else:
                _NOW[panel["type"]](page, panel, place, series)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Title": _sent(board)})
        plt.close(figure)
    return themed(_rounded(text.getvalue()), _COLOURS)


def _heading(window: Window) -> str:
    minutes = (window.end - window.start) / 60
    day = time.strftime("%Y-%m-%d %H:%M", time.gmtime(window.start))
    return (
        f"{minutes:.0f} minutes from {day} UTC. Drawn from the dashboard's file and Prometheus' answers; "
        "not a screenshot of Grafana."
    )


def _sent(board: Json) -> str:
    return f"{board['title']}: drawn from the dashboard's file and Prometheus' answers"


def _place(grid: Mapping[str, int]) -> Place:
    column = WIDTH / 24
    left, top = grid["x"] * column, HEAD + grid["y"] * UNIT
    return Place(left + GAP / 2, top + GAP / 2, grid["w"] * column - GAP, grid["h"] * UNIT - GAP)


def _frame(page: Axes, panel: Json, place: Place) -> None:
    page.add_patch(Rectangle((place.left, place.top), place.width, place.height, fill=False, ec=GRID, lw=0.7))
    title = page.text(place.left + 5, place.top + 11, panel["title"], fontsize=TITLE_PT, fontweight="bold")
    title.set_gid(f"panel-{panel['id']}")


def _lines(
    figure: Figure,
    page: Axes,
    panel: Json,
    place: Place,
    series: Sequence[Series],
    marks: Sequence[Mark],
    window: Window,
) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    lines_of_legend = _legend(page, place, series)
    left, right, top, bottom = 42, 8, 20, 18 + 9 * lines_of_legend
    height = page.get_ylim()[0]
    axes = figure.add_axes(
        (
            (place.left + left) / WIDTH,
            1 - (place.top + place.height - bottom) / height,
            (place.width - left - right) / WIDTH,
            (place.height - top - bottom) / height,
        )
    )
    times = np.array(window.times())
    values = np.array([each.values for each in series])
    if defaults["custom"]["stacking"]["mode"] == "normal":
        colours = [_colour(number) for number in range(len(series))]
        axes.stackplot(times, np.nan_to_num(values), colors=colours, alpha=0.25, linewidth=0)
        values = np.cumsum(np.nan_to_num(values), axis=0)
    for number, line in enumerate(values):
        axes.plot(times, line, color=_colour(number), linewidth=0.9)
    for mark in marks:
        axes.axvline(mark.time, color=_STATUS[mark.colour], linewidth=0.8, linestyle="--")
    axes.set_xlim(window.start, window.end)
    axes.set_ylim(defaults["min"], defaults.get("max") or 1.08 * (float(np.nanmax(values)) or 1))
    ticks = np.arange(math.ceil(window.start / 60) * 60, window.end, 60)
    axes.set_xticks(ticks, [time.strftime("%H:%M", time.gmtime(tick)) for tick in ticks])
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, defaults["unit"])))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, labelsize=TEXT_PT, colors=_MUTED)
    axes.grid(axis="y", color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)


def _legend(page: Axes, place: Place, series: Sequence[Series]) -> int:
    """Returns its number of lines: at most two. The second line shows how many series are not listed."""
    lines: list[list[tuple[int, str]]] = [[]]
    left = 0.0
    for number, each in enumerate(series):
        if not each.legend:
            continue
        width = 18 + len(each.legend) * TEXT_PT * LETTER
        if left + width > place.width - 8 and lines[-1]:
            if len(lines) == 2:
                lines[-1][-1] = (-1, f"and {len(series) - number + 1} more")
                break
            lines.append([])
            left = 0
        lines[-1].append((number, each.legend))
        left += width
    lines = [line for line in lines if line]
    for row, line in enumerate(lines):
        x, y = place.left + 6, place.top + place.height - 4 - 9 * (len(lines) - 1 - row)
        for number, legend in line:
            if number >= 0:
                page.plot((x, x + 7), (y - 2.2, y - 2.2), color=_colour(number), linewidth=1.5)
            page.text(x + 10, y, legend, color=_MUTED)
            x += 18 + len(legend) * TEXT_PT * LETTER
    return len(lines)


def _colour(number: int) -> str:
    return _LINES[number % len(_LINES)]


def _stat(page: Axes, panel: Json, place: Place, series: Sequence[Series]) -> None:
    """Values next to each other. If there are several, each has its legend."""
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    width = (place.width - 8) / len(series)
    for number, each in enumerate(series):
        left, [value] = place.left + 4 + number * width, each.values
        colour = _threshold(defaults, value)
        filled = options["colorMode"] == "background"
        if filled:
            page.add_patch(Rectangle((left, place.top + 17), width, place.height - 21, fc=colour, lw=0))
        middle = left + width / 2
        text = each.legend if options["textMode"] == "name" else shown(value, defaults["unit"])
        small = len(series) > 1 and options["textMode"] != "name"
        page.text(
            middle,
            place.top + (36 if small else 41),
            text,
            fontsize=min(VALUE_PT, (width - 8) / (LETTER * max(len(text), 1))),
            fontweight="bold",
            color=_ON_COLOUR if filled else colour,
            ha="center",
            va="center",
        )
        if small:
            page.text(middle, place.top + 55, each.legend, color=_MUTED, ha="center", va="center")


def _gauge(page: Axes, panel: Json, place: Place, series: Sequence[Series]) -> None:
    """Half a ring around the value. It fills from the left."""
    defaults = panel["fieldConfig"]["defaults"]
    [value] = series[0].values
    middle, ground, radius = place.left + place.width / 2, place.top + place.height - 8, 38.0
    share = min(max(value / defaults["max"], 0), 1)
    for start, end, colour in ((180, 360, GRID), (180, 180 + 180 * share, _threshold(defaults, value))):
        if end > start:
            page.add_patch(Wedge((middle, ground), radius, start, end, width=10, fc=colour, lw=0))
    text = shown(value, defaults["unit"])
    page.text(middle, ground - 6, text, fontsize=11, fontweight="bold", ha="center", va="center")


def _table(page: Axes, panel: Json, place: Place, series: Sequence[Series]) -> None:
    """The labels as columns, sorted and coloured as the panel specifies. Returns the number of rows that did not fit."""
    order = panel["transformations"][0]["options"]["indexByName"]
    columns = sorted(order, key=order.__getitem__)
    rows = [each.labels for each in series]
    for sort in panel["options"]["sortBy"]:
        rows.sort(key=lambda row: row.get(sort["displayName"], ""), reverse=sort["desc"])
    line, top, width = 12.0, place.top + 24, (place.width - 10) / len(columns)
    room = int((place.height - 28) / line)
    for number, name in enumerate(columns):
        page.text(place.left + 6 + number * width, top, name, color=_MUTED, fontweight="bold")
    if len(rows) > room:
        page.text(place.left + 6, top + line * room, f"and {len(rows) - room + 1} more rows", color=_MUTED)
        rows = rows[: room - 1]
    for down, row in enumerate(rows, start=1):
        for number, name in enumerate(columns):
            left, colour = place.left + 6 + number * width, _mapped(panel, name, row.get(name, ""))
            if colour:
                box = Rectangle((left - 3, top + line * down - 8.5), width - 8, line - 1.5, fc=colour, lw=0)
                page.add_patch(box)
            page.text(left, top + line * down, row.get(name, ""), color=_ON_COLOUR if colour else INK)


_NOW = {"stat": _stat, "gauge": _gauge, "table": _table}
"""The text for the last value."""


def _threshold(defaults: Json, value: float) -> str:
    """The colour of the last threshold that the value reaches."""
    steps = defaults["thresholds"]["steps"]
    return _STATUS[[step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]]


def _mapped(panel: Json, column: str, text: str) -> str:
    """The colour that an override gives a cell. Empty without an override."""
    for found in _options_of(panel, column):
        if text in found:
            return _STATUS[found[text]["color"]]
    return ""


def _options_of(panel: Json, column: str) -> Iterator[dict[str, Any]]:
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] == column:
            for each in override["properties"]:
                if each["id"] == "mappings":
                    yield from (mapping["options"] for mapping in each["value"])


def _rounded(svg: str) -> str:
    """Rounds coordinates to a tenth of a point, which makes the file a third as large."""
    numbers = re.compile(r"-?\d+\.\d{2,}")

    def rounded(attribute: re.Match[str]) -> str:
        return numbers.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), attribute[0])

    return re.sub(r'\b(?:d|x|y|width|height|transform)="[^"]*"', rounded, svg)
