"""docs/reference/clients.md: the clients that make test-clients runs, and what each of their checks tests."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tools.pages import paragraph, table

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements" / "clients"
CHECKS = ROOT / "tests" / "clients"

COLUMNS = {
    "stream": "the client assembles a streamed reply to the same text as a whole reply",
    "tools": "tool calls have valid arguments, whole and streamed; a client that runs tools itself runs them and gets "
    "the final answer",
    "structured output": "a reply matches its schema, even from a model that ignores schemas",
    "errors": "a rejected request (a wrong key, and if the client can send them, a number out of range and a prompt "
    "that is too long) raises the client's own exception",
}


def clients_page() -> Iterator[str]:
    yield "# Tested clients: OpenAI, Anthropic, LangChain, Vercel AI SDK and others"
    yield ""
    yield from paragraph(
        "`make test-clients` runs these clients, at these versions, against `ballast serve` with the built-in model, "
        "each in its own environment without network access. If a test needs particular replies, a scripted model "
        "replaces the built-in one. Other versions are likely to work too."
    )
    yield ""
    yield from table(("client", "version", "API", *COLUMNS, "also"), _rows())
    for name, meaning in COLUMNS.items():
        yield ""
        yield from paragraph(f"**{name[0].upper()}{name[1:]}**: {meaning}.")
    yield ""
    yield "## Node.js"
    yield ""
    yield from paragraph(
        "Each runs in a network namespace with only the loopback interface. "
        "[Coding agents](../clients/coding-agents.md) has the settings of the agents."
    )
    yield ""
    yield from table(("client", "version", "API", "tested"), _node_rows())


def _rows() -> Iterator[tuple[str, ...]]:
    for pinned in sorted(REQUIREMENTS.glob("*.txt")):
        package, version = _package(pinned)
        apis, tried = _checks(CHECKS / f"check_{pinned.stem.split('-')[0]}.py")
        cells = ["yes" if name in tried else "–" for name in COLUMNS]
        also = ", ".join(name for name in tried if name not in COLUMNS)
        for api in apis:
            yield f"`{package}`", version, f"`{api}`", *cells, also or "–"


def _node_rows() -> Iterator[tuple[str, ...]]:
    for pinned in sorted(REQUIREMENTS.glob("*/package.json")):
        file = CHECKS / "node" / f"{pinned.parent.name.replace('-', '_')}.py"
        apis, tried = _constants(file)
        for package, version in json.loads(pinned.read_text())["dependencies"].items():
            yield f"`{package}`", version, ", ".join(f"`{api}`" for api in apis), tried


def _constants(file: Path) -> tuple[tuple[str, ...], str]:
    """APIS and TRIED of a check."""
    found = {
        target.id: ast.literal_eval(node.value)
        for node in ast.parse(file.read_text(), str(file)).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in ("APIS", "TRIED")
    }
    return found["APIS"], found["TRIED"]


def _package(pinned: Path) -> tuple[str, str]:
    """Name and version of the package that the requirements are for. It is the first one in their source file."""
    name = re.match(r"[\w.-]+", pinned.with_suffix(".in").read_text())
    found = name and re.search(rf"^{re.escape(name[0])}==(\S+)", pinned.read_text(), re.MULTILINE)
    assert name is not None, pinned
    assert found is not None, f"{pinned} does not pin the first package of {pinned.stem}.in"
    return name[0], found[1]


def _checks(file: Path) -> tuple[tuple[str, ...], list[str]]:
    """The APIs that a client's checks use, and what they test. Its library is not installed here, so the text is
    parsed."""
    apis: tuple[str, ...] = ()
    tried = []
    for node in ast.parse(file.read_text(), str(file)).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="APIS")], value=value):
                apis = ast.literal_eval(value)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("check_"):
                tried.append(name.removeprefix("check_").replace("_", " "))
    assert apis, f"{file} does not list its APIs in APIS"
    return apis, tried
