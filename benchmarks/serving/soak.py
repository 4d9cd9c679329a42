"""Run many clients, of which many disconnect, on the built-in model, and compare the server's counters with what the
clients saw.

    python benchmarks/serving/soak.py [--seconds 600] [--clients 200] [--keys 20] [any option of `ballast serve`]

Each client sends one streamed request after another with one of the keys, and cancels LEAVE_SHARE of them: immediately,
before the first token, or after some tokens. A refused client retries after Retry-After-Ms. Prints one JSON line. The
exit code is 1 if requests failed, the counters differ from the clients' own, or the server holds something at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from devkit.bench_record import bench_record
from devkit.servers.process import ServerProcess

LEAVE_SHARE = 0.35
LIMIT_S = 120.0
"""Seconds for any reply."""
TOTAL = 'ballast_requests_total{{endpoint="completions",outcome="{}"}}'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--keys", type=int, default=20)
    options, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as directory:
        keys = Path(directory) / "keys"
        keys.write_text("".join(f"key{number}\n" for number in range(options.keys)))
        with ServerProcess("--api_key_file", str(keys), "--admin_port", "0", *rest) as server:
            seen = asyncio.run(all_clients(server.port, options.clients, options.keys, options.seconds))
            problems = judge(server, seen)
            counted = server.metrics()
    print(
        bench_record(
            "serving/soak",
            f"{options.clients} clients, {options.keys} keys, {options.seconds:.0f} s",
            **dict(sorted(seen.items())),
            counted_ok=count(counted, "ok"),
            counted_rejected=count(counted, "rejected"),
            counted_client_gone=count(counted, "client_gone"),
            problems=problems,
        )
    )
    sys.exit(1 if problems else 0)


def judge(server: ServerProcess, seen: Counter[str]) -> list[str]:
    """Returns everything that is wrong. A client may cancel a request that was just answered or refused."""
    try:
        server.wait_until_empty(60)
    except AssertionError as error:
        return [f"something is held: {error}"]
    now = server.metrics()
    outcomes = {name: value for name, value in now.items() if name.startswith('ballast_requests_total{endpoint="comp')}
    counts = {"ok": seen["answered"], "rejected": seen["refused"], "client_gone": 0}
    problems = [f"{seen['failed']} requests failed"] if seen["failed"] else []
    for outcome, number in counts.items():
        if not number <= count(now, outcome) <= number + seen["left"]:
            problems.append(f"{count(now, outcome)} are {outcome}; clients saw {number}, and left {seen['left']}")
    if sum(outcomes.values()) != seen.total():
        problems.append(f"{sum(outcomes.values())} requests are counted; clients sent {seen.total()}")
    return problems


def count(metrics: dict[str, float], outcome: str) -> int:
    return int(metrics.get(TOTAL.format(outcome), 0))


async def all_clients(port: int, number: int, num_keys: int, seconds: float) -> Counter[str]:
    """How many requests were answered, refused, cancelled and failed, as their clients saw it."""
    seen: Counter[str] = Counter()
    end = time.monotonic() + seconds
    await asyncio.gather(*(client(n, f"key{n % num_keys}", port, end, seen) for n in range(number)))
    return seen


async def client(number: int, key: str, port: int, end: float, seen: Counter[str]) -> None:
    """Sends one request after another."""
    chance = random.Random(number)
    while time.monotonic() < end:
        wait_s = 0.0
        try:
            async with asyncio.timeout(LIMIT_S):
                outcome, wait_s = await ask(port, key, chance)
        except (OSError, ValueError, TimeoutError):
            outcome = "failed"
        seen[outcome] += 1
        await asyncio.sleep(wait_s)


async def ask(port: int, key: str, chance: random.Random) -> tuple[str, float]:
    """How one request ended, and the seconds until its client retries. Raises ValueError for a wrong reply."""
    words = " ".join(chance.choice(("river", "stone", "cloud", "maple")) for _ in range(chance.choice((3, 30, 200))))
    body = json.dumps({"prompt": words, "max_tokens": chance.choice((1, 8, 60, 200)), "stream": True})
    leaves = chance.choice(("immediately", "soon", "part-way")) if chance.random() < LEAVE_SHARE else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        await writer.drain()
        if leaves == "immediately":
            return "left", 0.1
        read = asyncio.ensure_future(whole(reader) if leaves is None else reader.readuntil(b"data:"))
        try:
            data = await asyncio.wait_for(read, chance.uniform(0.01, 1.0) if leaves == "soon" else None)
        except (TimeoutError, asyncio.IncompleteReadError):
            return "left", 0.1
        if leaves is not None:
            return "left", 0.1
        head, _, text = data.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 429"):
            wait_ms = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"retry-after-ms:"))
            return "refused", int(wait_ms.split(b":")[1]) / 1000
        if not head.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in text:
            raise ValueError(data[-200:])
        return "answered", 0.0
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def whole(reader: asyncio.StreamReader) -> bytes:
    return await reader.read(-1)


if __name__ == "__main__":
    main()
