"""The forge's workflows run the commands that people run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tools.release.__main__ import CHECKSUMS
from tools.release.parts import PARTS

ROOT = Path(__file__).resolve().parents[3]


def workflow(name: str) -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows" / name).read_text())
    return loaded


def commands(loaded: dict[Any, Any]) -> list[str]:
    return [step["run"] for job in loaded["jobs"].values() for step in job["steps"] if "run" in step]


def test_changes_are_checked_by_the_projects_own_command() -> None:
    loaded = workflow("ci.yml")
    assert commands(loaded)[-1] == ".ci/run"
    assert "pull_request" in loaded[True], "YAML reads the key `on` as true"


def test_cases_that_changes_leave_out_run_every_night() -> None:
    loaded = workflow("nightly.yml")
    assert commands(loaded)[-1] == "make test-long"
    assert "schedule" in loaded[True]


def test_a_tag_builds_every_part_of_a_release() -> None:
    loaded = workflow("release.yml")
    assert loaded[True] == {"push": {"tags": ["v*"]}}
    parts = [
        part
        for command in commands(loaded)
        for quoted, bare in re.findall(r'^make release PARTS=(?:"([^"]*)"|(\S+))', command)
        for part in (quoted or bare).split()
    ]
    assert sorted(parts) == sorted(PARTS)
    assert any(command == f"python3 -m tools.release build {CHECKSUMS}" for command in commands(loaded))


def test_workflows_have_write_permission_only_in_jobs_that_request_it() -> None:
    for name in ("ci.yml", "nightly.yml", "release.yml"):
        assert workflow(name)["permissions"] == {"contents": "read"}
    writing = [name for name, job in workflow("release.yml")["jobs"].items() if "permissions" in job]
    assert writing == ["draft"]
