"""Sends a dashboard's queries to Prometheus, as Grafana does."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Json = dict[str, Any]
Labels = Mapping[str, str]


class Source(Protocol):
    """Queries a Prometheus server."""

    def query(self, expression: str) -> list[Json]: ...
    def query_range(self, expression: str, start: float, end: float, step_s: float) -> list[Json]: ...


@dataclass(frozen=True)
class Choices:
    """Values of the variables at the top of a dashboard. A variable without a value selects everything."""

    rate_interval: str
    """Grafana computes it from the range and the scrape interval."""
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Window:
    """The range of a dashboard in Unix seconds, and the time between two points of a line."""

    start: float
    end: float
    step_s: float

    def times(self) -> list[float]:
        return [self.start + number * self.step_s for number in range(1 + round((self.end - self.start) / self.step_s))]


@dataclass(frozen=True)
class Series:
    """One line, or one value for a panel that shows only the last one."""

    legend: str
    labels: Labels
    values: tuple[float, ...]
    """One value for each of the window's times, NaN if there is none. An instant query gives a single value."""


@dataclass(frozen=True)
class Mark:
    """A time that every line panel marks."""

    colour: str
    time: float
    """Unix seconds."""


def filled_in(expression: str, board: Json, choices: Choices) -> str:
    """The query with the board's variables inserted. Raises KeyError for a variable that the board does not have."""
    values = {"__rate_interval": choices.rate_interval}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            values[variable["name"]] = variable["allValue"]
        elif variable["type"] == "textbox":
            values[variable["name"]] = variable["query"]
    values.update(choices.variables)
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expression)


def answers(board: Json, source: Source, window: Window, choices: Choices) -> dict[int, list[Series]]:
    """The series of each panel, by the panel's id."""
    return {
        panel["id"]: [
            series
            for target in panel["targets"]
            for series in _answer(target, filled_in(target["expr"], board, choices), source, window)
        ]
        for panel in board["panels"]
        if panel["type"] != "row"
    }


def marks(board: Json, source: Source, window: Window, choices: Choices) -> list[Mark]:
    """The start of each interval in which an annotation's query has a value."""
    return [
        Mark(mark["iconColor"], moment)
        for mark in board["annotations"]["list"]
        for found in source.query_range(
            filled_in(mark["expr"], board, choices), window.start, window.end, window.step_s
        )
        for moment in _beginnings([float(moment) for moment, _ in found["values"]], window.step_s)
    ]


def _answer(target: Json, expression: str, source: Source, window: Window) -> Iterator[Series]:
    if target["instant"]:
        for found in source.query(expression):
            yield _series(target, found["metric"], (_number(found["value"][1]),))
        return
    for found in source.query_range(expression, window.start, window.end, window.step_s):
        at = {round((float(time) - window.start) / window.step_s): _number(value) for time, value in found["values"]}
        values = tuple(at.get(number, math.nan) for number in range(len(window.times())))
        yield _series(target, found["metric"], values)


def _series(target: Json, labels: Labels, values: tuple[float, ...]) -> Series:
    return Series(_legend(target["legendFormat"], labels), labels, values)


def _legend(form: str, labels: Labels) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), form).strip()


def _number(text: str) -> float:
    """Returns NaN for values that a line cannot show."""
    value = float(text)
    return value if math.isfinite(value) else math.nan


def _beginnings(times: Iterable[float], step_s: float) -> Iterator[float]:
    before = -math.inf
    for time in times:
        if time - before > 1.5 * step_s:
            yield time
        before = time
