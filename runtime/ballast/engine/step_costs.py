"""Measures what steps cost, when a model is loaded: by that the scheduler divides prompts into steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from ballast._core import sched
from ballast.engine.runner import HasPrefillLane, Measurable, with_changes
from ballast.model.batch import Batch

log = logging.getLogger(__name__)

LIMIT_S = 3.0
"""Time for the steps of a lane, but for the last one, or for the first two where they take longer. The costs of larger
steps are extrapolated."""
_REPEATS = 2
_FEW_TOKENS = 64
"""Of the smaller step of the prefill lane; what it takes hardly depends on it."""

Cost = tuple[int, float]
"""(tokens, seconds) of a step."""


def with_measured_costs(
    config: sched.SchedulerConfig,
    runner: Measurable,
    max_tokens: int,
    alive: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
) -> sched.SchedulerConfig:
    """The configuration with the costs of the runner's steps, of `max_tokens` tokens at most. They are steps of random
    tokens, which read and write the null block only; `alive` is called meanwhile."""

    def batch(num_tokens: int, *, decodes: bool) -> Batch:
        return random_batch(num_tokens, runner.vocabulary, config.block_tokens, decodes=decodes)

    beside = runner if isinstance(runner, HasPrefillLane) and runner.can_prefill_beside else None
    if beside is not None:
        beside.open_prefill_lane()  # first: else a long step would go through the device
    most = min(config.chunk_size, max_tokens)
    costs = {
        "decode_costs": measured(
            lambda batch: runner.forward(batch, alive),
            [batch(size, decodes=size <= config.max_batch_size) for size in doubled(1, most)],
            clock,
        )
    }
    if beside is not None:
        most = min(config.prefill_chunk_size, max_tokens)
        costs["prefill_costs"] = measured(
            lambda batch: _prefill(beside, batch, alive),
            [batch(size, decodes=False) for size in sorted({min(_FEW_TOKENS, most), most})],
            clock,
        )
    for name, points in costs.items():
        log.info("steps measured", extra={"lane": name, "ms": {n: round(s * 1e3, 2) for n, s in points}})
    return with_changes(config, **costs)


def measured(run: Callable[[Batch], object], batches: Sequence[Batch], clock: Callable[[], float]) -> list[Cost]:
    """The costs of `batches`, which grow, as far as LIMIT_S suffices, and of two of them at least: the faster of two
    runs, where there is time. No larger step is said to be faster."""
    costs: list[Cost] = []
    began = clock()
    run(batches[0])  # the first use of memory takes longer
    for batch in batches:
        if clock() - began > LIMIT_S and len(costs) > 1:
            break
        seconds: list[float] = []
        while len(seconds) < 1 or (len(seconds) < _REPEATS and clock() - began < LIMIT_S):
            start = clock()
            run(batch)
            seconds.append(clock() - start)
        costs.append((batch.token_ids.size, max(min(seconds), costs[-1][1] if costs else 0.0)))
    return costs


def doubled(first: int, last: int) -> list[int]:
    """`first`, its doubles below `last`, and `last`."""
    sizes = [first]
    while 2 * sizes[-1] < last:
        sizes.append(2 * sizes[-1])
    return [*sizes, last] if last > first else sizes


def random_batch(num_tokens: int, vocabulary: int, block_tokens: int, *, decodes: bool) -> Batch:
    """A step of random tokens in the null block: of requests with one token each, or of one prompt. Random ones choose
    as many experts as real ones do."""
    rng = np.random.default_rng(num_tokens)
    num_rows = num_tokens if decodes else 1
    row_tokens = num_tokens // num_rows
    num_blocks = -(-row_tokens // block_tokens)
    positions = np.tile(np.arange(row_tokens, dtype=np.int32), num_rows)
    return Batch(
        token_ids=rng.integers(0, vocabulary, num_tokens, dtype=np.int32),
        positions=positions,
        slots=positions % np.int32(block_tokens),
        query_indptr=np.arange(num_rows + 1, dtype=np.int32) * np.int32(row_tokens),
        kv_indptr=np.arange(num_rows + 1, dtype=np.int32) * np.int32(num_blocks),
        kv_indices=np.zeros(num_rows * num_blocks, np.int32),
        sampled=np.arange(1, num_rows + 1) * row_tokens - 1,
    )


def _prefill(runner: HasPrefillLane, batch: Batch, alive: Callable[[], None]) -> None:
    runner.begin_prefill(batch)
    while not runner.advance_prefill(alive):
        time.sleep(0.0)
    runner.prefill_logits()
