"""Results for clients of an overloaded server: requests arrive at random times, regardless of how many wait.

    python benchmarks/serving/overload.py [--rates 1,2,4,8,20] [--seconds 20] [--rounds 2] [--options "--max_queue 8"]
    python benchmarks/serving/overload.py --two_clients [--rounds 3]

Uses the built-in model, with requests of mixed lengths. --step_s uses a model that only sleeps, for machines that do
other work meanwhile: `load` is the mean number of processes that wanted a core in the last minute. Goodput counts the
requests per second whose first token came within GOOD_S of their arrival. `--options` are the server's options; by
default, the predicted queue time is limited to 1 s. If it is given more than once, the sets are measured one after
another, in reverse order in every second round. A client disconnects if it gets no token within PATIENCE_S.

With --two_clients, a heavy client sends 50 requests at the same time, and a light client sends one request after
another. The program measures the light client's first-token times with --queue_policy fcfs and fair.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shlex
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devkit.bench_record import bench_record
from devkit.servers.process import FAKE, SERVE, ServerProcess

GOOD_S = 2.0
PATIENCE_S = 20.0
PROMPT_WORDS = (5, 20, 80, 300)
MAX_TOKENS = (20, 100, 250, 600)
SEED = 20261123
DEFAULT = "--max_queue_wait_s 1"

HEAVY_REQUESTS, HEAVY_TOKENS = 50, 200
LIGHT_REQUESTS, LIGHT_TOKENS = 8, 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one request."""

    status: int
    """HTTP status; 0 if the client disconnected earlier."""
    first_token_s: float | None
    """Seconds from its arrival; None if there was no token."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="1,2,4,8,20", help="arrivals per second, measured one after another")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of arrivals for each rate")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--options", action="append", help="server options; repeatable: one set after another")
    parser.add_argument(
        "--two_clients", action="store_true", help="measure a light client while a heavy one has many requests"
    )
    parser.add_argument("--step_s", type=float, help="step time in seconds of a model that only sleeps")
    chosen = parser.parse_args()
    module, pace = (SERVE, "") if chosen.step_s is None else (FAKE, f"--step_s {chosen.step_s:g}")
    for number in range(chosen.rounds):
        if chosen.two_clients:
            for policy in ("fcfs", "fair") if number % 2 == 0 else ("fair", "fcfs"):
                print(two_clients_record(policy, module, pace), flush=True)
            continue
        sets = chosen.options or [DEFAULT]
        for options in sets if number % 2 == 0 else reversed(sets):
            for rate in map(float, chosen.rates.split(",")):
                print(load_record(options, rate, chosen.seconds, SEED + number, module, pace), flush=True)


def load_record(options: str, rate: float, seconds: float, seed: int, module: Sequence[str], pace: str) -> str:
    """Measures one record: a server of its own gets `rate` requests per second."""
    with ServerProcess(*shlex.split(f"{options} {pace}"), module=module) as server:
        asyncio.run(warm_up(server.port))
        outcomes = asyncio.run(open_loop(server.port, rate, seconds, random.Random(seed)))
        metrics = server.metrics()
    first = sorted(each.first_token_s for each in outcomes if each.first_token_s is not None)
    good = sum(each <= GOOD_S for each in first)
    return bench_record(
        "serving/overload",
        f"{rate:g}/s, {options}{', ' if pace else ''}{pace.removeprefix('--')}",
        options=options,
        rate=rate,
        seconds=seconds,
        arrived=len(outcomes),
        goodput_per_s=round(good / seconds, 2),
        refused_share=round(sum(each.status == 429 for each in outcomes) / len(outcomes), 3),
        left_share=round(sum(each.status == 0 for each in outcomes) / len(outcomes), 3),
        first_token_p50_s=quantile(first, 0.5),
        first_token_p99_s=quantile(first, 0.99),
        generated_tokens=int(metrics["ballast_generation_tokens_total"]),
        load=round(os.getloadavg()[0], 1),
    )


def quantile(values: Sequence[float], share: float) -> float | None:
    """Quantile of ascending values."""
    return round(values[min(len(values) - 1, int(share * len(values)))], 3) if values else None


async def warm_up(port: int) -> None:
    """The server measures how long requests run before the measurement starts."""
    for max_tokens in MAX_TOKENS:
        await asyncio.gather(*(ask(port, time.monotonic(), 20, max_tokens, str(n)) for n in range(4)))


async def open_loop(port: int, rate: float, seconds: float, chance: random.Random) -> list[Outcome]:
    """Requests arrive as a Poisson process, independent of earlier ones."""
    requested = []
    at = begin = time.monotonic()
    while True:
        at += chance.expovariate(rate)
        if at > begin + seconds:
            break
        words, max_tokens, name = chance.choice(PROMPT_WORDS), chance.choice(MAX_TOKENS), str(chance.random())
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        requested.append(asyncio.create_task(ask(port, at, words, max_tokens, name, whole=False)))
    outcomes = await asyncio.gather(*requested)
    return list(outcomes)


async def ask(
    port: int,
    arrival: float,
    words: int,
    max_tokens: int,
    name: str,
    key: str | None = None,
    *,
    whole: bool = True,
) -> Outcome:
    """Sends one streamed request on a connection of its own. Unless `whole`, it disconnects if no token came within
    PATIENCE_S. After the first token, it reads the reply to the end."""
    chance = random.Random(name)
    prompt = " ".join(chance.choice(("river", "stone", "cloud", "maple", "train")) for _ in range(words))
    body = json.dumps(
        {"prompt": f"{name} {prompt}", "max_tokens": max_tokens, "stream": True, "temperature": 0, "ignore_eos": True}
    )
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    if key is not None:
        head += f"Authorization: Bearer {key}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        async with asyncio.timeout(None if whole else PATIENCE_S):
            status = int((await reader.readline()).split()[1])
            if status != 200:
                return Outcome(status, None)
            while not (await reader.readline()).startswith(b"data:"):
                pass
            first_token_s = time.monotonic() - arrival
        while await reader.read(1 << 16):
            pass
        return Outcome(status, first_token_s)
    except TimeoutError:
        return Outcome(0, None)
    finally:
        writer.close()


def two_clients_record(policy: str, module: Sequence[str], pace: str) -> str:
    """Measures one record: a light client while a heavy one has many requests."""
    options = ("--queue_policy", policy)
    access = ("--admin_port", "0", "--api_key_file")
    with tempfile.TemporaryDirectory() as directory:
        keys = Path(directory) / "keys"
        keys.write_text("heavy\nlight\n")
        with ServerProcess(*access, str(keys), *options, *pace.split(), module=module) as server:
            light, heavy = asyncio.run(two_clients(server.port))
    return bench_record(
        "serving/overload",
        f"one after another, {HEAVY_REQUESTS} concurrent, {policy}{', ' if pace else ''}{pace.removeprefix('--')}",
        policy=policy,
        light_requests=len(light),
        light_first_token_p50_s=quantile(light, 0.5),
        light_first_token_max_s=round(light[-1], 3),
        heavy_requests=HEAVY_REQUESTS,
        heavy_first_token_mean_s=round(statistics.mean(heavy), 3),
        load=round(os.getloadavg()[0], 1),
    )


async def two_clients(port: int) -> tuple[list[float], list[float]]:
    """Seconds to the first tokens of the light client's requests while the heavy client's requests wait, and of the
    heavy client's requests."""
    await ask(port, time.monotonic(), 20, 100, "first", "heavy")
    begin = time.monotonic()
    heavy = asyncio.gather(*(ask(port, begin, 20, HEAVY_TOKENS, f"h{n}", "heavy") for n in range(HEAVY_REQUESTS)))
    await asyncio.sleep(0.5)
    light = []
    for number in range(LIGHT_REQUESTS):
        if heavy.done():
            break
        light.append(await ask(port, time.monotonic(), 20, LIGHT_TOKENS, f"l{number}", "light"))
        await asyncio.sleep(0.2)
    return (
        sorted(each.first_token_s for each in light if each.first_token_s is not None),
        [each.first_token_s for each in await heavy if each.first_token_s is not None],
    )


if __name__ == "__main__":
    main()
