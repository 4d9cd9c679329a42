"""Time from an empty environment to a served model: three commands, with a hub on loopback. Prints one JSON line.

python benchmarks/serving/first_model.py WHEEL [--rounds 3]

    pip install WHEEL
    ballast pull org/tiny:Q8_0
    ballast serve org/tiny:Q8_0      until it is ready, and until the first reply

The environment, the home folder and the hub's cache are new in each round. The checkout is not on the path. The model
is the built-in one under another name. pip downloads from the index that it is configured for, its cache included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from devkit.bench_record import bench_record
from devkit.servers.process import JSON, ServerProcess
from devkit.stores.hub_server import BUILT_IN_NAME, built_in_files, hub_server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    files = built_in_files()
    with hub_server(files) as (_, endpoint):
        rounds = [one_round(options.wheel.resolve(), endpoint) for _ in range(options.rounds)]
    figures: dict[str, object] = {name: [found[name] for found in rounds] for name in rounds[0]}
    figures["median_total_s"] = round(median(sum(found.values()) for found in rounds), 1)
    figures["load_average"] = round(os.getloadavg()[0], 1)
    num_bytes = sum(map(len, files.values()))
    print(bench_record("serving/first_model", "built-in model from a hub", pulled_bytes=num_bytes, **figures))


def one_round(wheel: Path, endpoint: str) -> dict[str, float]:
    """Seconds of each command."""
    with TemporaryDirectory() as directory:
        home = Path(directory)
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        environment = {**kept, "PATH": "/usr/bin:/bin", "HOME": directory, "HF_ENDPOINT": endpoint}
        seconds: dict[str, float] = {}

        def run(name: str, *command: object) -> None:
            begin = time.perf_counter()
            words = [str(word) for word in command]
            subprocess.run(words, check=True, env=environment, cwd=home, timeout=600, stdout=subprocess.DEVNULL)
            seconds[name] = round(time.perf_counter() - begin, 1)

        run("venv_s", sys.executable, "-m", "venv", home / "env")
        run("install_s", home / "env/bin/pip", "install", "--quiet", wheel)
        run("pull_s", home / "env/bin/ballast", "pull", BUILT_IN_NAME)
        begin = time.perf_counter()
        # The process inherits the environment, which has no variable of Ballast.
        with ServerProcess(BUILT_IN_NAME, python=str(home / "env/bin/python"), environment=environment) as server:
            seconds["ready_s"] = round(time.perf_counter() - begin, 1)
            begin = time.perf_counter()
            body = {"messages": [{"role": "user", "content": "What is 12 + 7?"}], "temperature": 0, "max_tokens": 40}
            request = urllib.request.Request(f"{server.url}/v1/chat/completions", json.dumps(body).encode(), JSON)
            with urllib.request.urlopen(request, timeout=60) as reply:
                content = json.load(reply)["choices"][0]["message"]["content"]
            assert "19" in content, content
            seconds["first_reply_s"] = round(time.perf_counter() - begin, 1)
    return seconds


if __name__ == "__main__":
    main()
