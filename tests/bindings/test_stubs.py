"""The functions in the stubs have the same arguments as those of the compiled module.

Names, order, keyword-only arguments and the presence of defaults are compared. stubtest, which `make lint` runs, checks
the rest: it cannot see the arguments of pybind11's functions, which are only in their docstrings.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ballast import _core

STUBS = Path(__file__).parents[2] / "runtime/ballast/_core"
SIGNATURE = re.compile(r"^(?:\d+\. )?(\w+\(.*\)) -> ", re.MULTILINE)
PARTS = ("handoff", "kernels", "model", "numa", "sampling", "sched")


def arguments_of(function: ast.FunctionDef) -> list[tuple[str, str, bool]]:
    """Name, kind and presence of a default, for every argument except `self`."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    first_default = len(positional) - len(given.defaults)
    found = [(each.arg, "positional", at >= first_default) for at, each in enumerate(positional) if each.arg != "self"]
    if given.vararg:
        found.append(("*", "rest", False))
    return found + [
        (each.arg, "keyword", default is not None)
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]


def in_stub(part: str) -> Iterator[tuple[str, list[list[tuple[str, str, bool]]]]]:
    """Every function in a stub file by its dotted name, with the arguments of each overload."""
    tree = ast.parse((STUBS / f"{part}.pyi").read_text(encoding="utf-8"))
    found: dict[str, list[list[tuple[str, str, bool]]]] = {}
    scopes = [("", tree.body), *((f"{node.name}.", node.body) for node in tree.body if isinstance(node, ast.ClassDef))]
    for prefix, body in scopes:
        for node in body:
            if isinstance(node, ast.FunctionDef) and "property" not in map(ast.unparse, node.decorator_list):
                found.setdefault(prefix + node.name, []).append(arguments_of(node))
    yield from found.items()


def in_module(function: Callable[..., object]) -> list[list[tuple[str, str, bool]]]:
    """The same for a function of the module, from the docstring that pybind11 generates."""
    signatures = SIGNATURE.findall(inspect.getdoc(function) or "")
    parsed = [ast.parse(f"def {signature}: ...").body[0] for signature in signatures]
    return [arguments_of(node) for node in parsed if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("part", PARTS)
def test_arguments_are_the_modules(part: str) -> None:
    functions = dict(in_stub(part))
    assert functions
    for name, stub in functions.items():
        found: object = getattr(_core, part)
        for step in name.split("."):
            found = getattr(found, step)
        assert callable(found)
        assert in_module(found) == stub, f"{part}.{name}"


def test_every_stub_file_is_compared() -> None:
    assert {path.stem for path in STUBS.glob("*.pyi")} == {"__init__", *PARTS}
