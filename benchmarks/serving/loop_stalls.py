"""Time for which one large request blocks the event loop, measured as the latency of /livez during the request.

    python benchmarks/serving/loop_stalls.py

Uses the built-in model. The slowest answer of a run is the longest time for which the event loop was blocked, plus
delays of the machine, which the case `nothing` shows.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import httpx

from devkit.bench_record import bench_record
from devkit.servers.process import ServerProcess

TEXT = "hello wörld " * 70_000
PAUSE_S = 0.005
TIMEOUT_S = 120
SCHEMA = {"type": "object", "properties": {f"property {n}": {"type": "string"} for n in range(220_000)}}
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
    "100,000 messages, refused": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}] * 100_000},
    ),
    "a schema of 8 MB, refused": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "a"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        },
    ),
    "8 MB of numbers, refused": (
        "/v1/completions",
        {"prompt": "a", "structured_outputs": {"json": {"enum": [1] * 3_900_000}}},
    ),
}
MAX_BODY_BYTES = 16 << 20


def main() -> None:
    # The client of the large request is a process of its own, because it would also block the probing client.
    with (
        ServerProcess("--max_body_bytes", str(MAX_BODY_BYTES)) as server,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
    ):
        pool.submit(int).result(TIMEOUT_S)
        for name, requested in CASES.items():
            waits, num_bytes = probed(f"{server.url}/livez", pool.submit(work, server.url, requested))
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


def work(url: str, requested: tuple[str, dict[str, Any]] | None) -> int:
    """Send the request and return the size of the reply in bytes."""
    if requested is None:
        time.sleep(2)
        return 0
    path, body = requested
    reply = httpx.post(url + path, json=body, timeout=TIMEOUT_S)
    assert reply.status_code in (200, 400), reply.text[:300]
    return len(reply.content)


def probed(url: str, working: Future[int]) -> tuple[list[float], int]:
    """Latencies of /livez in seconds during the work, shortest first, and the result of the work."""
    waits = []
    with httpx.Client(timeout=TIMEOUT_S) as client:
        while not working.done():
            begin = time.perf_counter()
            client.get(url)
            waits.append(time.perf_counter() - begin)
            time.sleep(PAUSE_S)
    return sorted(waits), working.result()


if __name__ == "__main__":
    main()
