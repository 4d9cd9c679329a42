"""The commands in pages use options that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^( *)```[a-z]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[|;&] |\$ )(?:\.venv/bin/)?ballast ([a-z-]+)( .*)?$")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each `ballast` command in a page's code blocks: its name and its options."""
    for _, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            found = COMMAND.search(line.partition(" #")[0].rstrip())
            if found:
                yield found[1], re.findall(r" (--[a-z][\w-]*)", found[2] or "")


@cache
def options_of(command: str) -> frozenset[str]:
    done = subprocess.run(
        [sys.executable, "-m", "ballast", command, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    return frozenset(re.findall(r"--[a-zA-Z0-9][\w-]*", done.stdout))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_of_commands_exist(page: Path) -> None:
    for command, given in commands(page):
        unknown = set(given) - options_of(command)
        assert not unknown, f"`ballast {command}` has no {', '.join(sorted(unknown))}"


def test_options_in_the_migration_tables_exist() -> None:
    """The second column of each table of docs/migrate."""
    lines = [line for page in (ROOT / "docs/migrate").glob("*.md") for line in page.read_text().splitlines()]
    named = {option for line in lines if " | " in line for option in re.findall(r"--[a-z][\w-]*", line.split(" | ")[1])}
    assert len(named) > 20
    assert named <= options_of("serve")
