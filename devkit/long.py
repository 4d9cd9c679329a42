"""A pytest plugin: `--long` runs every repetition of a property. Without it, tests run a selection.

`times` chooses the number of repetitions, `pairwise` and `spread` the cases of a product, and `if_long` adds cases. The
cases left out test the same code as the remaining ones, with other values. The summary of a run counts them; those of a
fixture count once, though several tests may use it.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

_is_long = False
_cases_left_out = 0
_num_left_out = 0
"""`_cases_left_out` when all tests were collected."""
_tried_less_often: set[str] = set()
"""The calls of `times`, by file and line."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--long`."""
    parser.addoption("--long", action="store_true", help="run all repetitions of a property, not a selection")


def pytest_configure(config: pytest.Config) -> None:
    """Store the option before test modules are imported, because they call `times`."""
    global _is_long
    _is_long = config.getoption("--long")


def pytest_collection_finish() -> None:
    """Cases that a test selects itself are not left out of a run."""
    global _num_left_out
    _num_left_out = _cases_left_out


def pytest_sessionfinish(session: pytest.Session) -> None:
    """pytest-xdist's workers send what was left out to the process that writes the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = [_num_left_out, sorted(_tried_less_often)]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each worker has collected all tests, and run some."""
    global _num_left_out
    cases, calls = getattr(node, "workeroutput", {}).get("left_out", (0, ()))
    _num_left_out = max(_num_left_out, cases)
    _tried_less_often.update(calls)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much was left out and how to run it."""
    if _num_left_out or _tried_less_often:
        terminalreporter.write_line(
            f"at least {_num_left_out} cases left out and {len(_tried_less_often)} properties tried less often: "
            "`make test-long` runs them all, `--long` those of some tests"
        )


def times(short: T, long: T) -> T:
    """Number of repetitions of a property, or its cases: `long` with `--long`, else `short`."""
    if _is_long:
        return long
    caller = sys._getframe(1)
    _tried_less_often.add(f"{caller.f_code.co_filename}:{caller.f_lineno}")
    return short


def if_long(*cases: T) -> list[T]:
    """Additional cases of a property, only with `--long`."""
    global _cases_left_out
    _cases_left_out += 0 if _is_long else len(cases)
    return list(cases) if _is_long else []


def pairwise(*axes: Sequence[object], where: Callable[..., bool] = lambda *_: True) -> list[Any]:
    """Parameters: cases of the product of `axes` that cover every pair of values of two axes. With `--long`, all cases.

    A value may be a tuple (for several arguments) or a `pytest.param` with marks. `where` gets the values of a case and
    returns false for invalid combinations. A skipped case does not cover pairs of values that are not skipped.
    """
    return _selection(axes, where, 2)


def spread(*axes: Sequence[object], where: Callable[..., bool] = lambda *_: True) -> list[Any]:
    """As `pairwise`, but only every value of each axis is covered, with as many pairs as possible.

    For axes that act on different code, which has tests of its own: then a fault shows with any value of the others.
    """
    return _selection(axes, where, 1)


def _selection(axes: Sequence[Sequence[object]], where: Callable[..., bool], strength: int) -> list[Any]:
    """Cases that cover all combinations of values of `strength` axes, 1 or 2."""
    global _cases_left_out
    marked = [[_with_marks(value) for value in axis] for axis in axes]
    cases = [
        case
        for case in itertools.product(*marked)
        if where(*(value[0] if len(value) == 1 else value for value, _ in case))
    ]
    wanted = [_covered(case, strength) for case in cases]
    pairs = [_covered(case, 2) for case in cases]
    missing, new_pairs = set().union(*wanted), set().union(*pairs)
    values = [_covered(case, 1) for case in cases]
    selected: set[int] = set()
    uses: Counter[object] = Counter()

    def gain(at: int) -> tuple[int, int, int]:
        """The values that a case adds; among equal cases, the one with the least used values is best."""
        return len(wanted[at] & missing), len(pairs[at] & new_pairs), -sum(uses[value] for value in values[at])

    while missing:
        best = max(range(len(cases)), key=gain)
        selected.add(best)
        uses.update(values[best])
        missing -= wanted[best]
        new_pairs -= pairs[best]
    _cases_left_out += 0 if _is_long else len(cases) - len(selected)
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


def _covered(case: Sequence[tuple[tuple[object, ...], tuple[Any, ...]]], strength: int) -> set[object]:
    """The combinations that a case covers; if one of its values is skipped, only those with a skipped value."""
    skipped = {axis for axis, (_, marks) in enumerate(case) if any(mark.name == "skip" for mark in marks)}
    return {
        tuple((axis, repr(value)) for axis, (value, _) in chosen)
        for chosen in itertools.combinations(enumerate(case), strength)
        if not skipped or any(axis in skipped for axis, _ in chosen)
    }
