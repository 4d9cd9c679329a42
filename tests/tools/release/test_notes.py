"""Release notes come from the changelog."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.release.notes import problems, release_notes, sections
from tools.release.version import version_of

ROOT = Path(__file__).resolve().parents[3]
CHANGELOG = """# Changelog

About it.

## [Unreleased]

## [0.2.0] - 2030-01-02

### Added

- An option ([page](docs/page.md)), as [vLLM](https://vllm.ai) has it.
- Changes of [the chart](docs/chart.md).

## [0.1.0] - 2029-01-01

The first version.
"""


def test_the_notes_are_the_section_of_the_version() -> None:
    assert release_notes(CHANGELOG, "0.2.0") == (
        "# Ballast 0.2.0\n\nReleased on 2030-01-02.\n\n### Added\n\n"
        "- An option (page: `docs/page.md`), as [vLLM](https://vllm.ai) has it.\n"
        "- Changes of the chart (`docs/chart.md`).\n"
    )
    assert release_notes(CHANGELOG, "0.1.0").endswith("2029-01-01.\n\nThe first version.\n")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", None),
        ("## [Unreleased]\n\n", "", None),
        ("0.2.0", "0.3.0", "CHANGELOG.md has no section [0.2.0]; move the entries of Unreleased"),
        (" - 2030-01-02", "", "section [0.2.0] has no date; add ` - YYYY-MM-DD`"),
        ("Unreleased]\n", "Unreleased]\n\n- New.\n", "has entries under Unreleased; move them to section [0.2.0]"),
    ],
)
def test_a_changelog_that_does_not_describe_the_version_is_rejected(old: str, new: str, expected: str | None) -> None:
    found = problems(CHANGELOG.replace(old, new, 1), "0.2.0")
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]


def test_the_projects_changelog_has_a_dated_section_of_the_version_first() -> None:
    found = sections((ROOT / "CHANGELOG.md").read_text())
    assert [*found][:2] == ["Unreleased", version_of(ROOT)]
    assert all(section.date for name, section in found.items() if name != "Unreleased")
