"""How long the server keeps everyone waiting while one request is large: /livez, asked over and over beside it.

    python benchmarks/serving/loop_stalls.py

On the built-in model. The longest answer of a run is the longest time in which the event loop did nothing for others,
and whatever the machine added to it; the case `nothing` shows what that is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from ballast.testing.bench_record import bench_record
from ballast.testing.server_process import ServerProcess

TEXT = "hello wörld " * 70_000
PAUSE_S = 0.005
TIMEOUT_S = 120
CASES: Mapping[str, tuple[str, dict[str, Any]] | None] = {
    "nothing": None,
    "/tokenize of 0.9 MB": ("/tokenize", {"content": TEXT}),
    "/tokenize of 0.9 MB with pieces": ("/tokenize", {"content": TEXT, "with_pieces": True}),
    "echo of 1,000 tokens with 20 log probabilities each": (
        "/v1/completions",
        {"prompt": "The model is small. " * 180, "echo": True, "logprobs": 20, "max_tokens": 1},
    ),
    "64 choices of 200 tokens with 20 log probabilities each": (
        "/v1/completions",
        {"prompt": "The", "n": 64, "logprobs": 20, "max_tokens": 200, "ignore_eos": True},
    ),
}


def main() -> None:
    with ServerProcess() as server:
        for name, asked in CASES.items():

            def work(asked: tuple[str, dict[str, Any]] | None = asked) -> int:
                if asked is None:
                    time.sleep(2)
                    return 0
                path, body = asked
                reply = httpx.post(server.url + path, json=body, timeout=TIMEOUT_S)
                assert reply.status_code == 200, reply.text[:300]
                return len(reply.content)

            waits, num_bytes = probed(f"{server.url}/livez", work)
            print(
                bench_record(
                    "serving/loop_stalls",
                    name,
                    reply_bytes=num_bytes,
                    probes=len(waits),
                    median_ms=round(1000 * waits[len(waits) // 2], 1),
                    longest_ms=round(1000 * waits[-1], 1),
                )
            )


def probed(url: str, work: Callable[[], int]) -> tuple[list[float], int]:
    """Seconds of each answer while `work` runs, shortest first, and what it returned."""
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    waits = []
    with httpx.Client(timeout=TIMEOUT_S) as client:
        client.get(url)
        thread.start()
        while thread.is_alive():
            begin = time.perf_counter()
            client.get(url)
            waits.append(time.perf_counter() - begin)
            time.sleep(PAUSE_S)
    return sorted(waits), results[0]


if __name__ == "__main__":
    main()
