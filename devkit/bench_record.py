"""Benchmark figures as JSON lines that can be compared later: what was measured, on which commit and machine."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime

from ballast.host.isa import chosen_isa
from ballast.host.machine import read_machine

_MACHINE = read_machine()
"""Read before a server or an engine in this process binds the thread to a CPU, which hides the others."""


def bench_record(benchmark: str, case: str, **figures: object) -> str:
    """Return one JSON line. Names of figures end in their unit. `isa` is the instruction set that this process selects,
    unless the benchmark passes another one; `gpu` is the GPU that this process uses, if any."""
    return json.dumps(
        {
            "benchmark": benchmark,
            "case": case,
            "isa": chosen_isa(),
            **_gpu(),
            **figures,
            "commit": _commit(),
            "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}",
            "cpu": _MACHINE.cpu_model,
            "cores": len(_MACHINE.cpus),
        }
    )


def _gpu() -> dict[str, str]:
    """The GPU's name under `gpu` if this process uses one, else empty."""
    torch = sys.modules.get("torch")
    return {"gpu": torch.cuda.get_device_name()} if torch is not None and torch.cuda.is_initialized() else {}


def _commit() -> str:
    """The commit of the checkout, with a trailing + if tracked files differ from it. "unknown" if git knows none."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "unknown"
