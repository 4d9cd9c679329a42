"""Release notes: the section of a version in CHANGELOG.md."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEADING = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)
_RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://)([^)\s]+)\)")
_LINK_IN_PARENTHESES = re.compile(rf"\({_RELATIVE_LINK.pattern}\)")


@dataclass(frozen=True)
class Section:
    """One version of the changelog."""

    name: str
    date: str | None
    text: str


def sections(changelog: str) -> dict[str, Section]:
    """The sections of a changelog, by the name in their headings."""
    headings = list(_HEADING.finditer(changelog))
    ends = [*(each.start() for each in headings[1:]), len(changelog)]
    return {
        each["name"]: Section(each["name"], each["date"], changelog[each.end() : end].strip())
        for each, end in zip(headings, ends, strict=True)
    }


def problems(changelog: str, version: str) -> list[str]:
    """Reasons why this version cannot be released, as sentences; empty if there are none."""
    found = sections(changelog)
    section = found.get(version)
    if section is None or not section.text:
        return [f"CHANGELOG.md has no section [{version}]; move the entries of Unreleased to `## [{version}] - DATE`"]
    missing_date = [] if section.date else [f"CHANGELOG.md: section [{version}] has no date; add ` - YYYY-MM-DD`"]
    if "Unreleased" in found and found["Unreleased"].text:
        left = f"CHANGELOG.md has entries under Unreleased; move them to section [{version}], or raise the version"
        return [*missing_date, left]
    return missing_date


def release_notes(changelog: str, version: str) -> str:
    """The notes of a version. Links to files become names, because readers do not have the repository."""
    section = sections(changelog)[version]
    text = _LINK_IN_PARENTHESES.sub(r"(\1: `\2`)", section.text)
    text = _RELATIVE_LINK.sub(r"\1 (`\2`)", text)
    return f"# Ballast {version}\n\nReleased on {section.date}.\n\n{text}\n"
