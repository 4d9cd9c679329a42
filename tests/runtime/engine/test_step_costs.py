"""What steps cost is measured at start, and bounds what prompts add to steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ballast._core import sched
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.step_costs import doubled, measured, random_batch, with_measured_costs
from ballast.model.batch import Batch

CONFIG = {
    "num_blocks": 64,
    "block_tokens": 16,
    "max_batch_size": 4,
    "chunk_size": 64,
    "prefill_chunk_size": 128,
    "max_queue": 8,
}


class Measured:
    """A model whose time is a clock's: a millisecond a step and one more for each token."""

    vocabulary = 50

    def __init__(self) -> None:
        self.now = 0.0
        self.sizes: list[int] = []

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        self.sizes.append(batch.token_ids.size)
        self.now += 1e-3 * (1 + batch.token_ids.size)
        return np.zeros((batch.sampled.size, self.vocabulary), np.float32)

    def clock(self) -> float:
        return self.now


def test_sizes_double_up_to_the_last() -> None:
    assert doubled(1, 1) == [1]
    assert doubled(1, 2) == [1, 2]
    assert doubled(1, 9) == [1, 2, 4, 8, 9]
    assert doubled(1, 64) == [1, 2, 4, 8, 16, 32, 64]


def costs_of(*seconds: float, sizes: tuple[int, ...]) -> list[tuple[int, float]]:
    """What is measured where steps take so long, one after the other; all of them are run."""
    times = iter(seconds)
    now = 0.0

    def run(batch: Batch) -> None:
        nonlocal now
        now += next(times)

    found = measured(run, [random_batch(size, 50, 16, decodes=True) for size in sizes], lambda: now)
    assert list(times) == []
    return found


def test_a_step_is_as_long_as_the_faster_of_two_and_a_larger_one_never_shorter() -> None:
    times = 0.5, 0.5, 0.25, 0.125, 0.125, 0.75, 0.625  # the first warms up
    assert costs_of(*times, sizes=(1, 2, 4)) == [(1, 0.25), (2, 0.25), (4, 0.625)]


def test_long_steps_are_measured_once_and_two_of_them_at_least() -> None:
    assert costs_of(2.0, 1.5, 7.0, sizes=(1, 2, 4, 8)) == [(1, 1.5), (2, 7.0)]
    assert costs_of(1.0, 0.5, 0.5, 2.0, sizes=(1, 2, 4, 8)) == [(1, 0.5), (2, 2.0)]
    assert costs_of(9.0, 9.0, sizes=(1,)) == [(1, 9.0)]


def test_random_steps_write_to_the_null_block_alone() -> None:
    for decodes in (True, False):
        batch = random_batch(6, 50, 4, decodes=decodes)
        assert set(batch.kv_indices.tolist()) == {0}
        assert batch.slots.max() < 4
        assert batch.token_ids.min() >= 0
        assert batch.token_ids.max() < 50
    assert random_batch(6, 50, 4, decodes=True).is_decode
    assert random_batch(6, 50, 4, decodes=False).kv_indptr.tolist() == [0, 2]
    assert random_batch(6, 50, 4, decodes=False).sampled.tolist() == [5]


def test_a_prompt_beside_one_who_decodes_is_cut_by_what_was_measured() -> None:
    model = Measured()
    config = with_measured_costs(sched.SchedulerConfig(**CONFIG), model, 1024, lambda: None, model.clock)
    assert sorted(set(model.sizes)) == [1, 2, 4, 8, 16, 32, 64]
    assert not config.has_prefill_lane
    core = EngineCore(model, config)
    core.add(1, Request("1", (1,), SamplingParams(max_tokens=30, temperature=0.0)), 0)
    core.step()
    core.add(2, Request("2", tuple(range(40)), SamplingParams(max_tokens=2, temperature=0.0)), 0)
    model.sizes.clear()
    core.step()
    # 2 ms alone, 3 times that beside: 7 tokens in 8 ms.
    assert model.sizes == [7]


def test_costs_are_those_of_the_longest_step_that_the_model_has_room_for() -> None:
    model = Measured()
    with_measured_costs(sched.SchedulerConfig(**CONFIG), model, 20, lambda: None, model.clock)
    assert max(model.sizes) == 20
