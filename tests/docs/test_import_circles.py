"""No package has circular imports, not even for type checking or inside a function."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "runtime/ballast", ROOT / "operator/ballast_operator"]


def import_graph(package: Path) -> dict[str, set[str]]:
    """For each module of the package, the modules of the package that it imports anywhere in its source."""
    modules = {_module_name(package, path): path for path in package.rglob("*.py")}
    compiled = {_module_name(package, path) for path in package.rglob("*.pyi")} - modules.keys()
    return {
        name: {
            ran
            for target in _imports(name, path, modules.keys() | compiled)
            for ran in _ran_for(target, name)
            if ran in modules
        }
        for name, path in modules.items()
    }


def _module_name(package: Path, path: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(name: str, path: Path, known: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(), path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(node, name, is_package=path.name == "__init__.py")
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield submodule if submodule in known else source


def _ran_for(target: str, name: str) -> Iterator[str]:
    """The module and its parent packages, whose `__init__` runs with it, except those that also contain `name`."""
    parts = target.split(".")
    packages = (".".join(parts[:depth]) for depth in range(1, len(parts)))
    yield target
    yield from (package for package in packages if not f"{name}.".startswith(f"{package}."))


def _absolute(node: ast.ImportFrom, name: str, *, is_package: bool) -> str:
    """The module that a `from` statement names, with leading dots resolved relative to its own module."""
    if not node.level:
        return node.module or ""
    parts = name.split(".")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def find_circle(graph: dict[str, set[str]]) -> list[str] | None:
    """Modules that import each other in a circle, with the first one repeated at the end; None if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]
    return None


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_there_are_no_import_cycles(package):
    graph = import_graph(package)
    assert len(graph) > 50
    circle = find_circle(graph)
    assert circle is None, "import circle: " + " imports ".join(circle)


@pytest.mark.parametrize(
    "back",
    [
        "import p.a",
        "from p.a import thing",
        "from p import a",
        "from . import a",
        "from .a import thing",
        "if TYPE_CHECKING:\n    from p.a import thing",
        "def late():\n    from p.a import thing",
        "try:\n    import p.a\nexcept ImportError:\n    pass",
    ],
)
def test_a_circle_is_found_however_it_is_imported(tmp_path, back):
    package = tmp_path / "p"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner/__init__.py").write_text("from ..b import other")
    (package / "a.py").write_text("from p.inner import other")
    (package / "b.py").write_text(back)
    circle = find_circle(import_graph(package))
    assert circle is not None
    assert set(circle) == {"p.a", "p.inner", "p.b"}


def test_a_circle_through_a_packages_init_is_found(tmp_path):
    package = tmp_path / "p"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner/__init__.py").write_text("import p.a")
    (package / "inner/leaf.py").touch()
    (package / "a.py").write_text("import p.inner.leaf")
    circle = find_circle(import_graph(package))
    assert circle is not None
    assert set(circle) == {"p.a", "p.inner"}


def test_compiled_modules_and_a_packages_own_submodules_are_no_circle(tmp_path):
    package = tmp_path / "p"
    (package / "_core").mkdir(parents=True)
    (package / "_core/__init__.pyi").touch()
    (package / "__init__.py").write_text("from p.a import thing")
    (package / "a.py").write_text("from p import _core\nfrom p.b import other")
    (package / "b.py").touch()
    assert find_circle(import_graph(package)) is None
