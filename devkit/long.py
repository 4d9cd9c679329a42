"""A pytest plugin: `--long` runs every repetition of a property. Without it, tests run a selection.

`times` chooses the number of repetitions, `pairwise` the cases of a product, and `if_long` adds cases. The cases left
out test the same code as the remaining ones, with other values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

_is_long = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--long`."""
    parser.addoption("--long", action="store_true", help="run all repetitions of a property, not a selection")


def pytest_configure(config: pytest.Config) -> None:
    """Store the option before test modules are imported, because they call `times`."""
    global _is_long
    _is_long = config.getoption("--long")


def times(short: T, long: T) -> T:
    """Number of repetitions of a property, or its cases: `long` with `--long`, else `short`."""
    return long if _is_long else short


def if_long(*cases: object) -> list[object]:
    """Additional cases of a property, only with `--long`."""
    return list(cases) if _is_long else []


def pairwise(*axes: Sequence[object], where: Callable[..., bool] = lambda *_: True) -> list[Any]:
    """Parameters: cases of the product of `axes` that cover every pair of values of two axes. With `--long`, all cases.

    A value may be a tuple (for several arguments) or a `pytest.param` with marks. `where` gets the values of a case and
    returns false for invalid combinations. A skipped case does not cover pairs of values that are not skipped.
    """
    marked = [[_with_marks(value) for value in axis] for axis in axes]
    cases = [
        case
        for case in itertools.product(*marked)
        if where(*(value[0] if len(value) == 1 else value for value, _ in case))
    ]
    pairs = [_pairs(case) for case in cases]
    missing = set().union(*pairs)
    selected: set[int] = set()
    while missing:
        best = max(range(len(cases)), key=lambda index: len(pairs[index] & missing))
        selected.add(best)
        missing -= pairs[best]
    return [
        pytest.param(
            *itertools.chain.from_iterable(value for value, _ in case),
            marks=[mark for _, marks in case for mark in marks],
        )
        for index, case in enumerate(cases)
        if index in selected or _is_long
    ]


def _with_marks(value: object) -> tuple[tuple[object, ...], tuple[Any, ...]]:
    """The arguments of a value, and its marks."""
    if isinstance(value, type(pytest.param())):
        marks: Any = value.marks
        return tuple(value.values), tuple(marks)
    return (value if isinstance(value, tuple) else (value,)), ()


def _pairs(case: Sequence[tuple[tuple[object, ...], tuple[Any, ...]]]) -> set[object]:
    """The pairs that a case covers; if one of its values is skipped, only the pairs with a skipped value."""
    skipped = {axis for axis, (_, marks) in enumerate(case) if any(mark.name == "skip" for mark in marks)}
    found: set[object] = set()
    for (a, (first, _)), (b, (second, _)) in itertools.combinations(enumerate(case), 2):
        if not skipped or a in skipped or b in skipped:
            found.add((a, repr(first), b, repr(second)))
    return found
