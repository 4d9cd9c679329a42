"""The reference pages match the code."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_pages_match_the_code():
    check = [sys.executable, "-m", "tools.reference", "--check"]
    checked = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
