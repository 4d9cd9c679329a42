"""mkdocs hooks: add the pages at the top of the repository, and the list of decisions to its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

LISTED = "decisions/index.md"
TOP_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
"""Pages outside `docs`, where people and repository hosts look for them."""


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """The site's files, with TOP_PAGES in lower case among them."""
    for name in TOP_PAGES:
        text = (Path(config["docs_dir"]).parent / name).read_text(encoding="utf-8")
        for other in TOP_PAGES:
            text = text.replace(f"]({other}", f"]({other.lower()}")
        files.append(File.generated(config, name.lower(), content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page, its links to TOP_PAGES leading to the site's; the page of decisions with a line for each decision."""
    for name in TOP_PAGES:
        markdown = markdown.replace(f"](../{name}", f"]({name.lower()}")
    if page.file.src_uri != LISTED:
        return markdown
    files = sorted((Path(config["docs_dir"]) / LISTED).parent.glob("0*.md"))
    lines = [f"- [{file.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}]({file.name})" for file in files]
    return "\n".join([markdown, "", *lines, ""])
