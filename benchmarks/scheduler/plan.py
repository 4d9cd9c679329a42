"""Cost of the scheduler per step: plan() and commit() with 256 running requests.

    .venv/bin/python benchmarks/scheduler/plan.py

The goal is at most 100 µs per plan. Calls are timed from Python, so the figure includes the bindings.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np

from ballast._core import sched
from devkit.bench_record import bench_record

NUM_RUNNING = 256
NUM_STEPS = 1000
STOP = -1


def new_scheduler(context_tokens: int, block_tokens: int, *, spare_tokens: int) -> sched.Scheduler:
    """256 requests that decode, each with `context_tokens` tokens of context."""
    capacity = NUM_RUNNING * (context_tokens + spare_tokens)
    scheduler = sched.Scheduler(
        sched.SchedulerConfig(
            num_blocks=capacity // block_tokens,
            block_tokens=block_tokens,
            max_batch_size=NUM_RUNNING,
            chunk_size=2 * NUM_RUNNING,
            prefill_chunk_size=NUM_RUNNING * context_tokens,
        )
    )
    for seq in range(NUM_RUNNING):
        add(scheduler, seq, np.full(context_tokens, seq), max_tokens=capacity - context_tokens)
    scheduler.plan()
    scheduler.commit(np.ones(NUM_RUNNING, dtype=np.int32))
    return scheduler


def add(scheduler: sched.Scheduler, seq: int, prompt: np.ndarray, max_tokens: int) -> None:
    scheduler.add(seq, prompt.astype(np.int32), max_tokens, np.array([STOP], dtype=np.int32))


def decoding(context_tokens: int, block_tokens: int) -> Iterator[tuple[float, float]]:
    scheduler = new_scheduler(context_tokens, block_tokens, spare_tokens=NUM_STEPS + 2 * block_tokens)
    yield from timed_steps(scheduler)
    assert scheduler.stats().running == NUM_RUNNING


def decoding_with_a_prompt(context_tokens: int, block_tokens: int) -> Iterator[tuple[float, float]]:
    """255 requests decode. The last row is a prompt that uses the other half of the budget in each step."""
    scheduler = new_scheduler(context_tokens, block_tokens, spare_tokens=4 * NUM_STEPS)
    scheduler.abort(0)
    add(scheduler, NUM_RUNNING, np.arange(NUM_STEPS * NUM_RUNNING * 2), max_tokens=1)
    yield from timed_steps(scheduler)
    assert scheduler.stats().running == NUM_RUNNING


def crowded_out(context_tokens: int, block_tokens: int) -> Iterator[tuple[float, float]]:
    """Every block is in use, so requests are preempted all the time and return through the prefix cache."""
    scheduler = new_scheduler(context_tokens, block_tokens, spare_tokens=block_tokens)
    yield from timed_steps(scheduler)
    assert scheduler.stats().preemptions > 0


def timed_steps(scheduler: sched.Scheduler) -> Iterator[tuple[float, float]]:
    """(plan, commit) of each step in microseconds."""
    for _ in range(NUM_STEPS):
        begin = time.perf_counter_ns()
        plan = scheduler.plan()
        planned = time.perf_counter_ns()
        tokens = np.ones(int(plan.samples.sum()), dtype=np.int32)
        sampled = time.perf_counter_ns()
        scheduler.commit(tokens)
        yield (planned - begin) / 1e3, (time.perf_counter_ns() - sampled) / 1e3


CASES: dict[str, Callable[[], Iterator[tuple[float, float]]]] = {
    "256 decode, 512 tokens each, blocks of 32": lambda: decoding(512, 32),
    "256 decode, 4096 tokens each, blocks of 32": lambda: decoding(4096, 32),
    "256 decode, 4096 tokens each, blocks of 16": lambda: decoding(4096, 16),
    "255 decode with a prompt, blocks of 32": lambda: decoding_with_a_prompt(512, 32),
    "256 crowded out, 512 tokens each, blocks of 32": lambda: crowded_out(512, 32),
}

if __name__ == "__main__":
    for case, steps in CASES.items():
        plan_us, commit_us = np.array(list(steps())).T
        figures = {
            f"{call}_p{percent}_us": round(float(np.percentile(times_us, percent)), 1)
            for call, times_us in (("plan", plan_us), ("commit", commit_us))
            for percent in (50, 99)
        }
        print(bench_record("scheduler/plan", case, **figures), flush=True)
