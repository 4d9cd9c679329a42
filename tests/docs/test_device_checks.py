"""Product code queries a backend or a platform for a device's features, and never checks the device type."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAY_ASK = {
    "runtime/ballast/model/hybrid/backends/selection.py backend_of",
    "runtime/ballast/model/hybrid/platforms/platform_of.py platform_of",
}
"""The functions that choose a backend and a platform."""


def askers(name: str, text: str) -> Iterator[str]:
    """File and function of each expression that checks a device type."""
    yield from _askers(ast.parse(text), name)


def _askers(node: ast.AST, place: str) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        place = f"{place} {node.name}"
    if isinstance(node, ast.Attribute):
        of_device = ast.unparse(node.value).removesuffix("()").endswith("device")
        if node.attr in {"is_cuda", "is_cpu"} or (node.attr == "type" and of_device):
            yield place
    for child in ast.iter_child_nodes(node):
        yield from _askers(child, place)


def test_only_the_choice_of_backend_and_platform_asks_for_a_devices_type() -> None:
    files = sorted((ROOT / "runtime/ballast").rglob("*.py"))
    found = {each for file in files for each in askers(file.relative_to(ROOT).as_posix(), file.read_text())}
    assert found == MAY_ASK


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(x):\n    return x.is_cuda", ["FILE f"]),
        ("is_host = tensor.is_cpu", ["FILE"]),
        ("class A:\n    def f(self):\n        return self._device.type == 'cuda'", ["FILE A f"]),
        ("def f(x):\n    return x.device.type", ["FILE f"]),
        ("def f(x):\n    return x.get_device().type", ["FILE f"]),
        ("match device.type:\n    case 'cpu':\n        pass", ["FILE"]),
        ("def f(tensor):\n    return tensor.type(int), tensor.device", []),
    ],
)
def test_the_check_finds_what_asks(text: str, found: list[str]) -> None:
    assert list(askers("FILE", text)) == found
