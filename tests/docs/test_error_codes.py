"""The page of error codes lists the codes that the server sends, with their statuses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ballast.errors import CapacityError, EngineDeadError
from ballast.wire.errors import RequestTimeoutError, error_reply

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(\w+)` \| (\d{3}) \| [A-Z].+\. \| [A-Z].+\. \|$", re.MULTILINE)
DEFAULT_STATUS = {"RequestError": 400, "__init__": 400, "CapacityError": 429, "busy": 429, "cls": 429}
"""Statuses of errors raised without an explicit one, by callee; `__init__` means subclasses of RequestError."""


def documented() -> dict[str, int]:
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    rows = [(code, int(status)) for code, status in ROW.findall(page)]
    assert len(rows) == len(dict(rows)) == page.count("\n| `"), "a code is listed twice, or a row cannot be parsed"
    return dict(rows)


def raised() -> Iterator[tuple[str, int]]:
    """Codes that the sources contain as literals, and their statuses."""
    for source in (ROOT / "runtime/ballast").rglob("*.py"):
        tree = ast.parse(source.read_text(encoding="utf-8"))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = called(call)
            code, status = keyword(call, "code"), keyword(call, "status")
            if isinstance(code, str) and name != "error_body":
                assert name in DEFAULT_STATUS, f"{source}:{call.lineno}: unknown default status of {name}"
                yield code, status if isinstance(status, int) else DEFAULT_STATUS[name]
            if name == "ErrorReply" and isinstance(call.args[0], ast.Constant) and isinstance(call.args[1], ast.Call):
                yield str(keyword(call.args[1], "code")), int(str(call.args[0].value))


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def keyword(call: ast.Call, name: str) -> object:
    """The argument's value if it is a constant."""
    given = {word.arg: word.value for word in call.keywords}
    return value.value if isinstance(value := given.get(name), ast.Constant) else None


def replied() -> Iterator[tuple[str, int]]:
    """Codes of errors whose class defines one."""
    errors = (CapacityError(""), CapacityError("", status=503), EngineDeadError(), RequestTimeoutError(1))
    for reply in map(error_reply, errors):
        yield reply.body["error"]["code"], int(reply.status)


def test_the_page_of_error_codes_has_every_code_with_its_status() -> None:
    assert sorted(documented().items()) == sorted({*raised(), *replied()})
