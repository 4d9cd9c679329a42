"""Cost of refusals: 80 concurrent clients compared with 10, with a batch of 4 and a queue of 8.

    python benchmarks/serving/refused_clients.py [--rounds N] [--step_s S]

Uses the built-in model and the retries of the `openai` package. Ten requests fit into batch and queue, and keep the
batch full. Each round measures both on a new server, in alternating order, because a new server has no measurements
yet. `idle_share` is the share of samples in which nothing ran, `running` the mean number of running requests. `seconds`
depend on the other load of the machine; --step_s uses a model that only sleeps.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx
import openai

from devkit.bench_record import bench_record
from devkit.servers.process import FAKE, SERVE, ServerProcess

NUM_REQUESTS, IN_FLIGHT = 80, 10
MAX_TOKENS = 200
SERVER = ("--max_batch_size", "4", "--max_queue", "8", "--max_new_tokens", str(MAX_TOKENS))
SAMPLE_S = 0.05
MAX_RETRIES = 1000
TIMEOUT_S = 300
GOAL_RATIO = 1.15


@dataclass(frozen=True, slots=True)
class Asked:
    """What it took to answer every request."""

    seconds: float
    running: tuple[int, ...]
    """How many requests ran, in samples over the whole time."""
    num_refusals: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step_s", type=float, help="step time in seconds of a model that only sleeps")
    options = parser.parse_args()
    sleeps = options.step_s is not None
    module, pace = (FAKE, ("--step_s", str(options.step_s))) if sleeps else (SERVE, ())
    model = f", steps of {options.step_s:g} s" if sleeps else ""
    for number in range(options.rounds):
        order = (IN_FLIGHT, NUM_REQUESTS) if number % 2 else (NUM_REQUESTS, IN_FLIGHT)
        with ServerProcess(*SERVER, *pace, module=module) as server:
            requested = {at_once: asyncio.run(ask_all(server, at_once)) for at_once in order}
        few, all_at_once = requested[IN_FLIGHT], requested[NUM_REQUESTS]
        print(
            bench_record(
                "serving/refused_clients",
                f"{NUM_REQUESTS} requests of {MAX_TOKENS} tokens{model}, {order[0]} concurrent before {order[1]}",
                seconds_all_at_once=round(all_at_once.seconds, 2),
                seconds_few_in_flight=round(few.seconds, 2),
                ratio=round(all_at_once.seconds / few.seconds, 3),
                goal_ratio=GOAL_RATIO,
                idle_share=round(all_at_once.running.count(0) / len(all_at_once.running), 3),
                idle_share_few=round(few.running.count(0) / len(few.running), 3),
                running=round(statistics.mean(all_at_once.running), 2),
                running_few=round(statistics.mean(few.running), 2),
                refusals=all_at_once.num_refusals,
                refusals_few=few.num_refusals,
            ),
            flush=True,
        )


async def ask_all(server: ServerProcess, at_once: int) -> Asked:
    """Sends all requests, at most `at_once` of them concurrently."""
    places = asyncio.Semaphore(at_once)
    async with (
        asyncio.timeout(TIMEOUT_S),
        openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=MAX_RETRIES, timeout=TIMEOUT_S
        ) as client,
    ):

        async def ask(number: int, max_tokens: int = MAX_TOKENS) -> None:
            async with places:
                reply = await client.completions.create(
                    model="m", prompt=f"Client {number}:", max_tokens=max_tokens, extra_body={"ignore_eos": True}
                )
            assert reply.usage is not None
            assert reply.usage.completion_tokens == max_tokens

        await ask(0, max_tokens=1)  # warms up client and server
        refused_before = num_refused(server)
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            work = group.create_task(_together(ask))
            running = await _running(server.url, work)
        return Asked(time.perf_counter() - begin, running, num_refused(server) - refused_before)


def num_refused(server: ServerProcess) -> int:
    """Number of requests that the server has refused so far."""
    return int(server.metrics().get('ballast_requests_total{endpoint="completions",outcome="rejected"}', 0))


async def _together(ask: Callable[[int], Awaitable[None]]) -> None:
    await asyncio.gather(*(ask(number) for number in range(NUM_REQUESTS)))


async def _running(url: str, work: asyncio.Task[None]) -> tuple[int, ...]:
    """Samples of the number of running requests, until the work is done."""
    samples: list[int] = []
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        while not work.done():
            samples.append((await client.get("/occupancy")).json()["running"])
            await asyncio.wait((work,), timeout=SAMPLE_S)
    return tuple(samples)


if __name__ == "__main__":
    main()
