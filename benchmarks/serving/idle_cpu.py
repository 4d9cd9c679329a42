"""Cost of an idle server: CPU time as a share of a minute without requests, after some work. Prints one JSON line.

python benchmarks/serving/idle_cpu.py [--seconds N]
"""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.request
from pathlib import Path

from devkit.bench_record import bench_record
from devkit.servers.process import JSON, ServerProcess

GOAL_SHARE = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    with ServerProcess() as server:
        data = json.dumps({"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True}).encode()
        request = urllib.request.Request(server.url + "/v1/completions", data, JSON)
        with urllib.request.urlopen(request, timeout=60) as reply:
            reply.read()
        server.wait_until_empty()
        before = cpu_seconds(server.process.pid)
        time.sleep(seconds)
        share = (cpu_seconds(server.process.pid) - before) / seconds
    figures = {"cpu_share": round(share, 5), "goal_cpu_share": GOAL_SHARE}
    print(bench_record("serving/idle_cpu", f"{seconds:g} s after work", **figures))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, read without waking it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
