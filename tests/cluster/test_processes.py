"""Processes started by tests end with the tests, however these end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import devkit.cluster.process
from devkit.cluster.waiting import wait_for

STARTER = """
import sys, time
from pathlib import Path
from devkit.cluster.process import Process
process = Process("sleeper", ["sleep", "600"], Path(sys.argv[1]))
process.start()
print(process.pid, flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_killing_the_starter_ends_its_processes(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(devkit.cluster.process.__file__).parents[2])}
    argv = [sys.executable, "-c", STARTER, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        wait_for("the process to run its own program", lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        starter.send_signal(signal.SIGKILL)
        wait_for("its end", lambda: not is_alive(pid))
