"""Sizes of files, classes and functions in product code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = [*(ROOT / "runtime/ballast").rglob("*.py"), *(ROOT / "operator/ballast_operator").rglob("*.py")]
CPP = [*(ROOT / "csrc").rglob("*.h"), *(ROOT / "csrc").rglob("*.cpp")]
MAX_FILE = 500
MAX_CLASS = 300
MAX_FUNCTION = 60


def too_long(path: Path) -> Iterator[str]:
    """The file, and its classes and functions, if they exceed the limits."""
    name, text = path.relative_to(ROOT).as_posix(), path.read_text()
    if len(text.splitlines()) > MAX_FILE:
        yield name
    if path.suffix == ".py":
        for found in _definitions(ast.parse(text), ""):
            yield f"{name} {found}"


def _definitions(node: ast.AST, outer: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inner = outer
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{outer}{child.name}"
            limit = MAX_CLASS if isinstance(child, ast.ClassDef) else MAX_FUNCTION
            # Triton compiles a kernel as one function. Helper functions would need all of its variables.
            is_kernel = any("jit" in ast.unparse(each) for each in child.decorator_list)
            if (child.end_lineno or 0) - child.lineno + 1 > limit and not is_kernel:
                yield inner
            inner += "."
        yield from _definitions(child, inner)


def test_no_file_class_or_function_is_too_long() -> None:
    assert {name for path in (*PYTHON, *CPP) for name in too_long(path)} == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x = 1\n" * 501, ["FILE"]),
        ("def f():\n" + "    x = 1\n" * 60, ["FILE f"]),
        ("def f():\n" + "    x = 1\n" * 59, []),
        ("class A:\n" + "    x = 1\n" * 300, ["FILE A"]),
        ("class A:\n    async def f(self):\n" + "        x = 1\n" * 60, ["FILE A.f"]),
        ("@triton.jit\ndef f():\n" + "    x = 1\n" * 60, []),
    ],
    ids=["file", "function", "shorter function", "class", "method", "kernel"],
)
def test_the_check_finds_long_files_classes_and_functions(
    text: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "FILE.py"
    file.write_text(text)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert [name.replace("FILE.py", "FILE") for name in too_long(file)] == found
