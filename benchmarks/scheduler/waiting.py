"""Cost of a long queue: plan() with a long prompt at its front that does not fit, and describe() as the engine calls it
after each step.

    .venv/bin/python benchmarks/scheduler/waiting.py

Calls are timed from Python, so the figure includes the bindings.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np

from ballast._core import sched
from ballast.engine.publishing import MAX_DESCRIBED
from devkit.bench_record import bench_record

HEAD_TOKENS = 174_000
BLOCK_TOKENS = 32
NUM_RUNNING = 8
NUM_WAITING = 10_000
NUM_CALLS = 500
NO_STOP = np.array([], dtype=np.int32)


def new_scheduler(num_blocks: int) -> sched.Scheduler:
    return sched.Scheduler(
        sched.SchedulerConfig(
            num_blocks=num_blocks,
            block_tokens=BLOCK_TOKENS,
            max_batch_size=NUM_RUNNING + 1,
            chunk_size=HEAD_TOKENS,
            prefill_chunk_size=HEAD_TOKENS,
        )
    )


def prompt(begin: int, count: int) -> np.ndarray:
    return np.arange(begin, begin + count, dtype=np.int32)


def step(scheduler: sched.Scheduler) -> float:
    """Runs a step and returns the seconds of its plan."""
    begin = time.perf_counter()
    plan = scheduler.plan()
    seconds = time.perf_counter() - begin
    scheduler.commit(np.ones(int(plan.samples.sum()), dtype=np.int32))
    return seconds


def head_that_does_not_fit() -> Iterator[float]:
    """The prompt at the front of the queue is cached except for its end, which does not fit. Meanwhile other requests
    decode, and their new blocks evict it step by step."""
    num_blocks = HEAD_TOKENS // BLOCK_TOKENS + NUM_RUNNING * 6
    scheduler = new_scheduler(num_blocks)
    scheduler.add(0, prompt(0, HEAD_TOKENS), 1, NO_STOP)
    step(scheduler)
    for seq in range(1, NUM_RUNNING + 1):
        scheduler.add(seq, prompt(seq * HEAD_TOKENS, 40), 4 * NUM_CALLS, NO_STOP)
    step(scheduler)
    rest = num_blocks * BLOCK_TOKENS - HEAD_TOKENS
    scheduler.add(NUM_RUNNING + 1, np.concatenate([prompt(0, HEAD_TOKENS), prompt(-rest, rest)]), 1, NO_STOP)
    for _ in range(NUM_CALLS):
        yield step(scheduler)
    assert scheduler.stats().waiting == 1


def long_queue() -> Iterator[float]:
    scheduler = new_scheduler(HEAD_TOKENS // BLOCK_TOKENS)
    for seq in range(NUM_WAITING):
        scheduler.add(seq, prompt(seq, 40), 1, NO_STOP)
    for _ in range(NUM_CALLS):
        begin = time.perf_counter()
        scheduler.describe(MAX_DESCRIBED)
        yield time.perf_counter() - begin


CASES: dict[str, Callable[[], Iterator[float]]] = {
    f"plan, a head of {HEAD_TOKENS} tokens that does not fit, blocks of {BLOCK_TOKENS}": head_that_does_not_fit,
    f"describe {MAX_DESCRIBED} of {NUM_WAITING} waiting": long_queue,
}

if __name__ == "__main__":
    for case, calls in CASES.items():
        microseconds = np.array(list(calls())) * 1e6
        figures = {f"p{percent}_us": round(float(np.percentile(microseconds, percent)), 1) for percent in (50, 99)}
        print(bench_record("scheduler/waiting", case, **figures), flush=True)
