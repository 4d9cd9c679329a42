"""The pre-commit hooks run the same checks as `make lint`."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_the_hooks_are_the_parts_of_make_lint() -> None:
    listed = re.search(r"^LINT += (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed is not None
    [source] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert source["repo"] == "local"
    assert [hook["entry"] for hook in source["hooks"]] == [f"make {part}" for part in listed[1].split()]
    assert {hook["language"] for hook in source["hooks"]} == {"system"}
