"""What mkdocs adds to pages: the list of decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LISTED = "decisions/index.md"


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page of decisions, with a line for each of them."""
    if page.file.src_uri != LISTED:
        return markdown
    files = sorted((Path(config["docs_dir"]) / LISTED).parent.glob("0*.md"))
    lines = [f"- [{file.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}]({file.name})" for file in files]
    return "\n".join([markdown, "", *lines, ""])
