"""Documentation, chart and code are in plain English: phrases that usually need a rewrite are rare."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MOST_PER_THOUSAND_LINES = 3
"""Comparable projects have 1 to 2."""
MOST_IN_RUNTIME = 4

PHRASES = re.compile(
    r"\bbeside\b|\b(?:who|what|which)ever\b|\b(?:some|any|no)body\b|\banew\b|\bat once\b|\bfor ever\b"
    r"|\bfore(?:told|seen|see|sees|tells?|saw)\b|\b(?:is|are|was) told\b|\btells? (?:it|them|that|whether)\b"
    r"|\b(?:goes|go|went) on\b|\b(?:stands?|lies?) (?:in|on|at|there|between)\b|\bmend(?:s|ed)?\b|\bspoil(?:t|s)?\b"
    r"|\balike\b|\bhence\b|\bthere(?:by|of)\b|\bwherein\b|\bso (?:many|much)\b|\bof (?:those|them|ones?) that\b"
    r"|\bcan(?:not)? be had\b|\bto be had\b|\ba (?:token|step|layer|request|line|second|case|file) (?:a|each)\b"
    r"|\bone a (?:line|file|kind|service|reason|pod|replica)\b"
)

PLACES = {
    "pages": (
        MOST_PER_THOUSAND_LINES,
        ("docs", "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples"),
    ),
    "operator": (MOST_PER_THOUSAND_LINES, ("operator", "tests/operator")),
    "chart and manifests": (MOST_PER_THOUSAND_LINES, ("charts", "manifests")),
    "runtime and csrc": (MOST_IN_RUNTIME, ("runtime", "csrc")),
    "tests": (MOST_PER_THOUSAND_LINES, ("tests",)),
    # The corpus of the built-in model is training data.
    "tools": (MOST_PER_THOUSAND_LINES, ("tools", ":(exclude)tools/tiny_model/corpus/*.yaml")),
    "benchmarks": (MOST_PER_THOUSAND_LINES, ("benchmarks",)),
}
CPP_SUFFIXES = {".h", ".cpp"}
SUFFIXES = {".md", ".py", ".pyi", ".yaml", ".tpl", *CPP_SUFFIXES}


@pytest.mark.parametrize(("most", "paths"), PLACES.values(), ids=PLACES)
def test_old_fashioned_phrases_are_rare(most: int, paths: tuple[str, ...]) -> None:
    listed = subprocess.run(("git", "ls-files", *paths), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [
        ROOT / name
        for name in listed.splitlines()
        if Path(name).suffix in SUFFIXES and not re.search("/(golden|crd)/", name)
    ]
    found, lines = [], 0
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if is_prose(file, line):
                lines += 1
                found += [f"{file.relative_to(ROOT)}:{number}: {match[0]}" for match in PHRASES.finditer(line)]
    assert lines > 1000
    assert 1000 * len(found) <= most * lines, "\n".join(found)


def is_prose(file: Path, line: str) -> bool:
    """Whether the line counts: code counts only if it contains a comment, a string or docstring text."""
    if file.suffix in CPP_SUFFIXES:
        return "//" in line or '"' in line
    if file.suffix in {".py", ".pyi"}:
        return bool(re.search(r"[#\"']", line) or re.match(r"\s*[A-Z*a-z`][^=(){}\[\]]*$", line))
    return True


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("a.md", "Any line of a page counts.", True),
        ("a.py", "count = 3", False),
        ("a.py", "count = 3  # a comment", True),
        ("a.h", "int count = 3;", False),
        ("a.h", "int count = 3;  // a comment", True),
        ("a.cpp", 'throw Error("a message");', True),
    ],
)
def test_only_text_of_code_counts(name: str, line: str, expected: bool) -> None:
    assert is_prose(Path(name), line) is expected
