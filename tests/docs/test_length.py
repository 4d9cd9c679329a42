"""Pages for users stay short."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_WORDS = 70_000
"""If there are more words, shorten the longest pages, or the texts from which reference pages are generated."""
CODE_BLOCK = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
FOR_CONTRIBUTORS = ("decisions/", "architecture.md")


def test_pages_for_users_are_not_too_long() -> None:
    """Counts words outside code blocks, including tables. The changelog is excluded, because it grows with each
    version."""
    docs = ROOT / "docs"
    pages = [page for page in docs.rglob("*.md") if not str(page.relative_to(docs)).startswith(FOR_CONTRIBUTORS)]
    words = {page: len(CODE_BLOCK.sub("", page.read_text(encoding="utf-8")).split()) for page in pages}
    for name in ("README.md", "SECURITY.md"):
        words[ROOT / name] = len(CODE_BLOCK.sub("", (ROOT / name).read_text(encoding="utf-8")).split())
    assert len(words) > 60
    longest = sorted(words, key=lambda page: -words[page])[:8]
    assert sum(words.values()) <= MAX_WORDS, [(str(page.relative_to(ROOT)), words[page]) for page in longest]
