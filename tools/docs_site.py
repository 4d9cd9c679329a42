"""Build the documentation site from docs/ and the pages at the top of the repository.

    python -m tools.docs_site [DIRECTORY]      default: build/site

Copies the sources into a separate folder, adds the top pages and excludes decision records from the search.
Zensical then builds in strict mode, so a broken link is an error.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ROOT / "mkdocs.yml"  # Zensical reads this name and form
TOP_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
"""Pages outside `docs`, where readers and repository hosts look for them."""
OUT_OF_SEARCH = "---\nsearch:\n  exclude: true\n---\n"
BUILD_TIMEOUT_S = 300


def main(arguments: list[str]) -> int:
    target = Path(arguments[0] if arguments else ROOT / "build" / "site").resolve()
    with tempfile.TemporaryDirectory(prefix="ballast-site-") as name:
        folder = Path(name)
        gather(folder / "docs")
        shutil.copyfile(SETTINGS, folder / SETTINGS.name)
        zensical = Path(sys.executable).with_name("zensical")
        command = [str(zensical), "build", "--strict", "--config-file", str(folder / SETTINGS.name)]
        done = subprocess.run(command, timeout=BUILD_TIMEOUT_S, check=False)
        if done.returncode == 0:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(folder / "site", target)
    return done.returncode


def gather(folder: Path) -> None:
    """Copy the site's sources into `folder`, which must not exist yet."""
    shutil.copytree(ROOT / "docs", folder)
    for page in folder.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        for name in TOP_PAGES:
            text = text.replace(
                f"]({'../' * len(page.relative_to(folder).parts)}{name}", f"]({_way_up(page, folder)}{name.lower()}"
            )
        page.write_text(text, encoding="utf-8")
    for name in TOP_PAGES:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other in TOP_PAGES:
            text = text.replace(f"]({other}", f"]({other.lower()}")
        (folder / name.lower()).write_text(text, encoding="utf-8")
    for record in (folder / "decisions").glob("[0-9]*.md"):
        record.write_text(OUT_OF_SEARCH + record.read_text(encoding="utf-8"), encoding="utf-8")
    architecture = folder / "architecture.md"  # for contributors: readers who search look for other pages
    architecture.write_text(OUT_OF_SEARCH + architecture.read_text(encoding="utf-8"), encoding="utf-8")


def _way_up(page: Path, folder: Path) -> str:
    return "../" * (len(page.relative_to(folder).parts) - 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
