"""One benchmark figure as one JSON line that can be compared later: what, on which commit, on which machine."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime

from ballast.machine import read_machine


def bench_record(benchmark: str, case: str, **figures: float) -> str:
    """One line. Figures carry their unit in their name."""
    machine = read_machine()
    return json.dumps(
        {
            "benchmark": benchmark,
            "case": case,
            **figures,
            "commit": _commit(),
            "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}",
            "cpu": machine.cpu_model,
            "cores": len(machine.cpus),
        }
    )


def _commit() -> str:
    """The checkout's commit, with + when tracked files differ from it."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()
