"""The documentation builds, and all links are valid."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import sync_playwright

from ballast import __version__
from ballast._core import kernels
from tools.page.pictures import chromium

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def test_the_site_builds_without_a_warning(site: Path) -> None:
    pages = {path.parent.name for path in site.rglob("index.html")}
    assert {"install", "quickstart", "resource", "upgrade", "contributing", "changelog", "security"} <= pages
    decisions = (site / "decisions/index.html").read_text()
    assert "Report conditions from running processes" in decisions
    assert "fonts.googleapis" not in decisions, "pages must not load anything from other hosts"
    search = (site / "search.json").read_text()
    assert "quantization" in search, "the American spelling of quantisation must have results"
    assert "report-conditions-from-running-processes" not in search, "decisions are excluded from the search"


WIDE = (
    "benchmarks",
    "one-machine/choose-a-model",
    "one-machine/memory-and-context",
    "migrate/ktransformers",
    "reference/metrics",
    "reference/options",
    "reference/resource",
)
"""Pages with the widest tables."""


def test_pages_fit_desktop_and_phone_and_options_do_not_wrap(site: Path) -> None:
    with sync_playwright() as playwright, chromium(playwright) as browser:
        page = browser.new_page()
        for width in (1280, 360):
            page.set_viewport_size({"width": width, "height": 800})
            for name in WIDE:
                page.goto(f"file://{site}/{name}/index.html", wait_until="domcontentloaded")
                assert page.evaluate("document.documentElement.scrollWidth") <= width, name
                broken = page.locator("td:first-child code").evaluate_all(
                    "all => all.filter((one) => one.getClientRects().length > 1).map((one) => one.textContent)"
                )
                assert broken == [], name
        page.set_viewport_size({"width": 1280, "height": 800})
        for name in ("clients/chat-page", "kubernetes/monitoring"):
            page.goto(f"file://{site}/{name}/index.html")
            assert (
                page.locator("article img").evaluate_all("all => all.map((one) => one.naturalWidth > 0)") == [True] * 2
            )


def test_links_of_pages_outside_the_site_lead_to_files() -> None:
    top = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
    pages = [*(ROOT / name for name in top), ROOT / "charts/ballast/README.md"]
    for page in pages:
        for link in LINK.findall(page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_readme_pushes_the_images_that_are_built() -> None:
    """`make image` tags them with the project's version; the chart also uses the runtime image for CPUs."""
    [pushed] = re.findall(r"for image in (.*); do", (ROOT / "README.md").read_text())
    assert pushed.split() == [
        f"ballast-operator:{__version__}",
        f"ballast-runtime:{__version__}",
        f"ballast-runtime:{__version__}-cpu",
    ]


def test_images_in_the_documentation_have_the_version_of_the_project() -> None:
    pages = [page.read_text() for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts]
    named = [tag for page in pages for tag in re.findall(r"ballast-(?:runtime|operator):(\d+\.\d+\.\d+)", page)]
    assert len(named) > 10
    assert set(named) == {__version__}


def test_the_models_page_lists_every_type_that_is_read() -> None:
    page = (ROOT / "docs/reference/models.md").read_text()
    listed = set(
        re.findall(r"\b(?:[BF]F?\d\d|I?Q\d_\w+|TQ\d_0|MXFP4|NVFP4)\b", page.partition("## Quantisation types")[2])
    )
    assert {each.name for each in kernels.formats()} == listed - {"Q1_0", "Q2_0"}
