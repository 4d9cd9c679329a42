"""Run a mixed load with cancelled requests on a real server for a given time, and check that it loses no memory, KV or
request.

python benchmarks/hybrid/soak.py [--seconds 600] [--clients 10] [--device cpu|cuda:0] [any option of `ballast serve`]

Clients send prompts of very different lengths, with and without streaming, and cancel some requests: immediately,
before the first token, or after some tokens. With device=cpu, the hybrid also runs, with torch's CPU as its device.
Prints one JSON line. The exit code is 1 if a request that was not cancelled got no answer, KV is held at the end, or
memory grows.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from devkit.bench_record import bench_record
from devkit.servers.process import SERVE, ServerProcess

HYBRID = ("devkit.servers.hybrid_server",)
Leaving = Literal["never", "immediately", "before the first token", "after some tokens"]
LIMIT_S = 120.0
"""Seconds for any reply."""
WARM_SHARE = 0.3
"""Share of the time in which memory may grow: graphs, pools and the prefix cache fill."""
MAX_RSS_GROWTH = 0.03
MAX_VRAM_GROWTH = 0.005
MIB = 1 << 20


@dataclass(slots=True)
class Seen:
    """Observations of all clients, and the server's reports of each second."""

    outcomes: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    tokens: int = 0
    rss: list[float] = field(default_factory=list)
    vram: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, outcome: str, tokens: int = 0, error: str = "") -> None:
        with self.lock:
            self.outcomes[outcome] += 1
            self.tokens += tokens
            if error:
                self.errors.append(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--longest", type=int, default=1500, help="tokens of the longest prompt")
    options, rest = parser.parse_known_args()
    given = ["--device", options.device, "--max_queue", "64", *rest]
    seen, stopping = Seen(), threading.Event()
    with ServerProcess(*given, module=HYBRID if options.device == "cpu" else SERVE, until_ready=False) as server:
        server.event("ready", timeout_s=600)
        begin = time.monotonic()
        clients = [
            threading.Thread(target=client, args=(number, server.port, options.longest, seen, stopping))
            for number in range(options.clients)
        ]
        for thread in clients:
            thread.start()
        while time.monotonic() - begin < options.seconds and server.process.poll() is None:
            time.sleep(1)
            sample(server, seen)
        stopping.set()
        for thread in clients:
            thread.join(LIMIT_S + 10)
        stuck = sum(thread.is_alive() for thread in clients)
        died = server.process.poll()
        problems = judge(seen, stuck, died) + (left_over(server) if died is None else [server.stderr[-2000:]])
    print(
        bench_record(
            "hybrid/soak",
            f"{options.device}: {options.clients} clients, {options.seconds:.0f} s, {' '.join(rest)}",
            requests=sum(seen.outcomes.values()),
            **{name.replace(" ", "_"): count for name, count in sorted(seen.outcomes.items())},
            tokens=seen.tokens,
            rss_mib=[round(value / MIB) for value in thinned(seen.rss)],
            rss_growth=round(growth(seen.rss), 4),
            vram_mib=[round(value / MIB) for value in thinned(seen.vram)],
            vram_growth=round(growth(seen.vram), 4),
            problems=problems,
        ),
        flush=True,
    )
    sys.exit(1 if problems else 0)


def client(number: int, port: int, longest: int, seen: Seen, stopping: threading.Event) -> None:
    """Sends requests of different kinds one after another."""
    rng = random.Random(number)
    while not stopping.is_set():
        length = int(4 * (longest / 4) ** rng.random())  # log-uniform: as many short ones as long ones
        body = {
            "prompt": [rng.randrange(10, 1000) for _ in range(length)],
            "max_tokens": rng.choice((1, 8, 32, 128)),
            "stream": rng.random() < 0.7,
            "temperature": rng.choice((0.0, 1.0)),
            "seed": rng.randrange(1 << 30),
        }
        leaving: Leaving = rng.choices(get_args(Leaving), (6, 1, 2, 2))[0]
        try:
            outcome, tokens = ask(port, body, leaving, rng)
            seen.note(outcome, tokens)
        except (OSError, http.client.HTTPException, ValueError) as error:
            seen.note("failed", error=f"{leaving}: {type(error).__name__}: {error}")
            time.sleep(0.5)


def ask(port: int, body: Mapping[str, object], leaving: Leaving, rng: random.Random) -> tuple[str, int]:
    """Returns the outcome and the received tokens. Raises OSError, HTTPException or ValueError for a wrong reply."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        if leaving == "immediately":
            return "left", 0
        if leaving == "before the first token" or (leaving != "never" and not body["stream"]):
            assert connection.sock is not None
            connection.sock.settimeout(rng.uniform(0.01, 0.5))
            try:
                connection.sock.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                return "left", 0
            connection.sock.settimeout(LIMIT_S)
        reply = connection.getresponse()
        if reply.status != http.client.OK:
            raise ValueError(f"status {reply.status}: {reply.read()[:200]!r}")
        if not body["stream"]:
            return "answered", int(json.loads(reply.read())["usage"]["completion_tokens"])
        tokens, most = 0, rng.randrange(1, 20) if leaving == "after some tokens" else 1 << 30
        for line in reply:
            if line.startswith(b"data: [DONE]"):
                return "answered", tokens
            if line.startswith(b"data: "):
                if b'"error"' in line:
                    raise ValueError(f"error in a stream: {line[:200]!r}")
                tokens += 1
                if tokens >= most:
                    return "left", tokens
        raise ValueError("a stream ended without its last line")
    finally:
        connection.close()


def sample(server: ServerProcess, seen: Seen) -> None:
    try:
        now = server.metrics()
    except OSError:
        return  # the server has exited or is too busy; the next second shows which
    seen.rss.append(now["process_resident_memory_bytes"])
    seen.vram.append(sum(size for name, size in now.items() if name.startswith("ballast_vram_reserved_bytes")))


def judge(seen: Seen, stuck: int, died: int | None) -> list[str]:
    """Returns everything that is wrong."""
    found = [f"{len(seen.errors)} requests failed, the first: {seen.errors[0]}"] if seen.errors else []
    if stuck:
        found.append(f"{stuck} clients still wait for a reply")
    if died is not None:
        found.append(f"the server ended with {died}")
    if growth(seen.rss) > MAX_RSS_GROWTH:
        found.append(f"resident memory grew by {growth(seen.rss):.1%}")
    if growth(seen.vram) > MAX_VRAM_GROWTH:
        found.append(f"the GPU's memory grew by {growth(seen.vram):.1%}")
    return found


def left_over(server: ServerProcess) -> list[str]:
    """KV that an idle server still holds, and requests whose reported outcome differs."""
    try:
        server.wait_until_empty(60)
    except AssertionError as error:
        return [f"something is held: {error}"]
    ends = {name: count for name, count in server.metrics().items() if name.startswith("ballast_requests_total")}
    return [f"{name} is {count}" for name, count in ends.items() if not re.search(r'outcome="(ok|client_gone)"', name)]


def growth(values: Sequence[float]) -> float:
    """Growth of memory from the first quarter after the warm-up to the last one, as a share."""
    settled = values[int(len(values) * WARM_SHARE) :]
    quarter = len(settled) // 4
    first = statistics.median(settled[:quarter]) if quarter else 0.0
    return statistics.median(settled[-quarter:]) / first - 1 if first else 0.0


def thinned(values: Sequence[float]) -> list[float]:
    """Ten evenly spaced values."""
    return [values[int(index * (len(values) - 1) / 9)] for index in range(10)] if values and any(values) else []


if __name__ == "__main__":
    main()
