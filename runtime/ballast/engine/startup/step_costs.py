"""Measures the duration of steps after a model is loaded. The scheduler divides prompts into steps by these costs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels, sched
from ballast.engine.request import SamplingParams
from ballast.engine.runner import with_cache, with_changes
from ballast.engine.sampling.sampler import SampledRow, StepSampler, sequence_sampler
from ballast.host.isa import chosen_isa
from ballast.host.startup.measurements import kept_counts, kept_seconds
from ballast.host.startup.start import Start
from ballast.model.batch import Batch, States
from ballast.model.runner import Runner

log = logging.getLogger(__name__)

LIMIT_S = 2.0
"""Time limit for measuring the steps of a lane; the last one, or the first two if they take longer, may exceed it. The
costs of other steps are interpolated and extrapolated."""
CONTEXT_TOKENS = 32
"""Most tokens that a request of a decode step has cached."""
PROMPT_TOKENS = 64
"""Tokens of each prompt in the decode lane's longer steps."""
_REPEATS = 2
_PREFILL_TOKENS = (64, 512, 2048)
"""Sizes of steps of the prefill lane, besides the largest."""
_SAMPLING = SamplingParams(max_tokens=1, temperature=0.6, top_p=0.95)

Cost = tuple[int, float]
"""(tokens, seconds) of a step."""


def with_measured_costs(
    config: sched.SchedulerConfig,
    runner: Runner,
    max_tokens: int,
    alive: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
) -> sched.SchedulerConfig:
    """The configuration with the measured costs of the runner's steps of up to `max_tokens` tokens. `alive` is called
    regularly. The steps overwrite the cache, so this must run before it serves anything. Costs kept by an earlier start
    are used, unless that start lacked kernels that this one has."""
    assert runner.vocabulary is not None, "only a runner with a vocabulary can be measured"
    config = with_cache(config, runner)
    steps = RandomSteps(config, runner.vocabulary, max_tokens)
    sampled = _sampler_of(runner.pool or kernels.ThreadPool(1), config)
    prefill_runner = runner if runner.can_prefill_beside else None
    if prefill_runner is not None:
        prefill_runner.open_prefill_lane()  # first: otherwise a long step would go through the device
    most = (
        config.prefill_chunk_size if prefill_runner is None else min(sched.MAX_IDLE_TOKENS, config.prefill_chunk_size)
    )
    sizes = doubled(1, min(max(most, config.chunk_size), max_tokens))
    # These three sizes determine most of the curve, so they are measured first.
    first = [min(size, sizes[-1]) for size in (1, config.max_batch_size, config.chunk_size)]
    tried = {"decode_costs": list(dict.fromkeys((*first, *sizes)))}
    if prefill_runner is not None:
        most = min(config.prefill_chunk_size, max_tokens)
        few, *others = sorted({min(size, most) for size in _PREFILL_TOKENS})
        tried["prefill_costs"] = list(dict.fromkeys((few, most, *others)))

    def measured_costs() -> dict[str, list[Cost]]:
        costs = {
            "decode_costs": measured(
                lambda size: sampled(runner.forward(steps.decode_lane(size), alive)),
                tried["decode_costs"],
                clock,
                at_least=len(set(first)),
            )
        }
        if prefill_runner is not None:
            own_sampled = _sampler_of(kernels.ThreadPool(1), config)
            costs["prefill_costs"] = measured(
                lambda size: own_sampled(_prefill(prefill_runner, steps.prompts(size, 1), alive)),
                tried["prefill_costs"],
                clock,
            )
        return costs

    start = runner.start or Start()
    inputs = {"sizes": tried, "missing": sorted(start.missing)}
    with start.times.phase("measured"), runner.measuring():
        costs = start.measurements.take("step_costs", inputs, measured_costs, dict, lambda kept: _kept(kept, tried))
    for name, points in costs.items():
        log.info("steps measured", extra={"lane": name, "ms": {n: round(s * 1e3, 2) for n, s in points}})
    return with_changes(config, joint_tokens=None if prefill_runner is None else prefill_runner.joint_tokens, **costs)


def _kept(value: Any, tried: Mapping[str, Sequence[int]]) -> dict[str, list[Cost]]:
    """The costs kept by an earlier start. Raises ValueError, TypeError or KeyError if they are malformed."""
    costs: dict[str, list[Cost]] = {}
    for name, sizes in tried.items():
        tokens = kept_counts([size for size, _ in value[name]], max(sizes))
        seconds = [kept_seconds(cost) for _, cost in value[name]]
        if not set(tokens) <= set(sizes) or seconds != sorted(seconds):
            raise ValueError(f"{name} are not those of ascending steps")
        costs[name] = list(zip(tokens, seconds, strict=True))
    return costs


def measured(
    run: Callable[[int], object], sizes: Sequence[int], clock: Callable[[], float], at_least: int = 2
) -> list[Cost]:
    """The costs of `sizes` in ascending order. `sizes` begins with the most important; `at_least` of them are measured,
    and more while LIMIT_S allows. Each cost is the faster of two runs if there is time, and at most that of any longer
    step: a measurement above it includes something else, such as a compiler."""
    found: dict[int, float] = {}
    began = clock()
    run(sizes[0])  # the first use of memory takes longer
    for size in sizes:
        if clock() - began > LIMIT_S and len(found) >= at_least:
            break
        seconds: list[float] = []
        while len(seconds) < 1 or (len(seconds) < _REPEATS and clock() - began < LIMIT_S):
            start = clock()
            run(size)
            seconds.append(clock() - start)
        found[size] = min(seconds)
    ascending = sorted(found)
    least_s = np.minimum.accumulate([found[size] for size in reversed(ascending)])[::-1]
    return list(zip(ascending, least_s.tolist(), strict=True))


def doubled(first: int, last: int) -> list[int]:
    """`first`, its doubles below `last`, and `last`."""
    sizes = [first]
    while 2 * sizes[-1] < last:
        sizes.append(2 * sizes[-1])
    return [*sizes, last] if last > first else sizes


class RandomSteps:
    """Steps of random tokens for requests with their own blocks of the cache. Their hidden states differ, so they
    select as many experts as real requests do."""

    def __init__(self, config: sched.SchedulerConfig, vocabulary: int, max_tokens: int) -> None:
        """Requests have `max_tokens` tokens at most. If there are too few blocks, requests share them."""
        self._block_tokens = config.block_tokens
        self._num_blocks = config.num_blocks
        self._num_window_blocks = None if config.window is None else config.window[1]
        self._has_states = config.state_slots > 0
        self._vocabulary = vocabulary
        self._max_rows = config.max_batch_size
        self._row_blocks = max(1, min(-(-CONTEXT_TOKENS // config.block_tokens), config.num_blocks // self._max_rows))
        self._most_cached = min(CONTEXT_TOKENS, self._row_blocks * config.block_tokens, max_tokens)
        self._cached = np.zeros(self._max_rows, np.int32)
        """Cached tokens per request of a decode step."""
        self._rng = np.random.default_rng(0)

    def decode_lane(self, num_tokens: int) -> Batch:
        """A step of the decode lane: one token per request, or prompts if there are more tokens than rows."""
        if num_tokens <= self._max_rows:
            return self.decode(num_tokens)
        return self.prompts(num_tokens, min(self._max_rows, max(1, num_tokens // PROMPT_TOKENS)))

    def decode(self, num_rows: int) -> Batch:
        """The next token of the first `num_rows` requests. Their contexts grow with each step, up to CONTEXT_TOKENS."""
        positions = self._cached[:num_rows].copy()
        self._cached[:num_rows] = np.minimum(positions + 1, self._most_cached - 1)
        return self._batch(positions, np.ones(num_rows, np.int32), self._row_blocks)

    def prompts(self, num_tokens: int, num_rows: int) -> Batch:
        """`num_rows` whole prompts of nearly equal length."""
        lens = np.diff(np.arange(num_rows + 1) * num_tokens // num_rows).astype(np.int32)
        return self._batch(np.zeros(num_rows, np.int32), lens, -(-int(lens.max()) // self._block_tokens))

    def _batch(self, cached: NDArray[np.int32], added: NDArray[np.int32], row_blocks: int) -> Batch:
        """Rows with `added` new tokens after `cached` ones; each has `row_blocks` blocks."""
        num_rows, num_tokens = len(added), int(added.sum())
        row = np.repeat(np.arange(num_rows), added)
        indptr = np.concatenate([[0], np.cumsum(added)]).astype(np.int32)
        positions = cached[row] + np.arange(num_tokens, dtype=np.int32) - indptr[row]
        blocks = np.arange(num_rows * row_blocks, dtype=np.int32).reshape(num_rows, row_blocks) % self._num_blocks + 1
        used = -(-(cached + added) // self._block_tokens)
        kept = np.arange(row_blocks) < used[:, None]

        def slots_in(blocks: NDArray[np.int32]) -> NDArray[np.int32]:
            of_tokens = blocks[row, positions // self._block_tokens]
            slots: NDArray[np.int32] = of_tokens * self._block_tokens + positions % self._block_tokens
            return slots.astype(np.int32)

        windows = None if self._num_window_blocks is None else ((blocks - 1) % self._num_window_blocks + 1)
        return Batch(
            token_ids=self._rng.integers(0, self._vocabulary, num_tokens, dtype=np.int32),
            positions=positions.astype(np.int32),
            slots=slots_in(blocks),
            query_indptr=indptr,
            kv_indptr=np.concatenate([[0], np.cumsum(used)]).astype(np.int32),
            kv_indices=blocks[kept].astype(np.int32),
            window_slots=None if windows is None else slots_in(windows),
            window_indices=None if windows is None else windows[kept].astype(np.int32),
            states=self._states(num_rows),
            sampled=indptr[1:].astype(np.int64) - 1,
        )

    def _states(self, num_rows: int) -> States | None:
        """Each row replaces a state of its own."""
        if not self._has_states:
            return None
        slots = np.arange(1, num_rows + 1, dtype=np.int32)
        none = np.zeros(0, np.int32)
        return slots, slots, np.zeros(num_rows + 1, np.int32), none, none


def _sampler_of(pool: kernels.ThreadPool, config: sched.SchedulerConfig) -> Callable[[NDArray[np.float32]], object]:
    """Returns a function that samples a token for each row of a step's logits, as the engine does."""
    sampler = StepSampler(pool, chosen_isa())
    states = [sequence_sampler(_SAMPLING, (), seed) for seed in range(config.max_batch_size)]
    rows = [SampledRow(row, state, None) for row, state in enumerate(states)]
    return lambda logits: sampler.sample(logits, rows[: len(logits)])


def _prefill(runner: Runner, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
    runner.begin_prefill(batch)
    while not runner.advance_prefill(alive):
        time.sleep(0.0)
    return runner.prefill_logits()
