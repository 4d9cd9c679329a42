"""A number that is a metric declares it in its type: `running: Annotated[int, Gauge("batch_running", "Requests …")]`.

The name, the help and the type are declared there and nowhere else; `/metrics` shows every number that is declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number that may go down. Its metric is `ballast_NAME`."""

    name: str
    help: str
    alias: str | None = None
    """vLLM's name for the same number."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that only grows. Its metric is `ballast_NAME`."""

    name: str
    help: str
    alias: str | None = None
    """vLLM's name for the same number."""


_known: dict[type[object], Mapping[str, Gauge | Counter]] = {}


def declared(kind: type[object]) -> Mapping[str, Gauge | Counter]:
    """Attribute → its metric, of the fields and properties of a class."""
    if kind not in _known:
        _known[kind] = _read(kind)
    return _known[kind]


def _read(kind: type[object]) -> Mapping[str, Gauge | Counter]:
    types = get_type_hints(kind, include_extras=True)
    for name, value in vars(kind).items():
        if isinstance(value, property):
            types[name] = get_type_hints(value.fget, include_extras=True).get("return")
    return {
        name: metric
        for name, annotation in types.items()
        if get_origin(annotation) is Annotated
        for metric in get_args(annotation)[1:]
        if isinstance(metric, Gauge | Counter)
    }


def metrics_of(numbers: object) -> Iterator[tuple[Gauge | Counter, float]]:
    """The metrics of an object, with their values."""
    for name, metric in declared(type(numbers)).items():
        yield metric, getattr(numbers, name)
