"""The documentation site, built once for the tests that need it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in strict mode: a page without a menu entry, and a link or anchor without a target, are errors."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    argv = [sys.executable, "-m", "tools.docs_site", str(folder)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
