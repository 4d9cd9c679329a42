"""The documentation builds, and every link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ballast._core import kernels

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """In strict mode, where a page that no menu has, or a link or anchor that leads nowhere, is an error."""
    argv = [sys.executable, "-m", "tools.docs_site", tmp_path / "site"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.parent.name for path in (tmp_path / "site").rglob("index.html")}
    assert {"tutorial", "resource", "upgrade", "troubleshoot", "contributing", "changelog", "security"} <= pages
    decisions = (tmp_path / "site/decisions/index.html").read_text()
    assert "What Ready and NUMAPinned mean" in decisions
    assert "fonts.googleapis" not in decisions, "pages load nothing from elsewhere"
    search = (tmp_path / "site/search.json").read_text()
    assert "quantization" in search, "the other spelling of quantisation finds something"
    assert "watches-ring-and-lists-heal" not in search, "decisions are left out of the search"


def test_links_of_pages_outside_the_site_lead_to_files() -> None:
    top = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
    pages = [*(ROOT / name for name in top), ROOT / "charts/ballast/README.md"]
    for page in pages:
        for link in LINK.findall(page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_models_page_lists_every_type_that_is_read() -> None:
    page = (ROOT / "docs/reference/models.md").read_text()
    listed = set(
        re.findall(r"\b(?:[BF]F?\d\d|I?Q\d_\w+|TQ\d_0|MXFP4|NVFP4)\b", page.partition("## Quantisation types")[2])
    )
    assert {each.name for each in kernels.formats()} == listed - {"Q1_0"}
