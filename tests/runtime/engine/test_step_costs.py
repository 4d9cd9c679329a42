"""The cost of steps is measured at start, and limits the prompt tokens per step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast._core import sched
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.step_costs import CONTEXT_TOKENS, RandomSteps, doubled, measured, with_measured_costs
from ballast.host.startup.measurements import Measurements
from ballast.host.startup.start import Start
from ballast.model.batch import Batch
from ballast.model.runner import Runner

CONFIG = {
    "num_blocks": 64,
    "block_tokens": 16,
    "max_batch_size": 4,
    "chunk_size": 64,
    "prefill_chunk_size": 128,
}


class Measured(Runner):
    """A model timed by a simulated clock: 1/1024 s per step and per token, which floats add exactly."""

    vocabulary = 50

    def __init__(self) -> None:
        self.now = 0.0
        self.sizes: list[int] = []
        self.start = Start()

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        self.sizes.append(batch.token_ids.size)
        self.now += (1 + batch.token_ids.size) / 1024
        return np.zeros((batch.sampled.size, self.vocabulary), np.float32)

    def clock(self) -> float:
        return self.now


def test_sizes_double_up_to_the_last() -> None:
    assert doubled(1, 1) == [1]
    assert doubled(1, 2) == [1, 2]
    assert doubled(1, 9) == [1, 2, 4, 8, 9]
    assert doubled(1, 64) == [1, 2, 4, 8, 16, 32, 64]


def costs_of(*seconds: float, sizes: tuple[int, ...]) -> list[tuple[int, float]]:
    """The measured costs if consecutive steps take `seconds`; asserts that all of these steps run."""
    times = iter(seconds)
    now = 0.0

    def run(_: int) -> None:
        nonlocal now
        now += next(times)

    found = measured(run, sizes, lambda: now)
    assert list(times) == []
    return found


def test_step_costs_are_the_faster_of_two_measurements_and_never_decrease() -> None:
    times = 0.25, 0.25, 0.125, 0.0625, 0.0625, 0.375, 0.3125  # the first warms up
    assert costs_of(*times, sizes=(1, 2, 4)) == [(1, 0.0625), (2, 0.0625), (4, 0.3125)]


def test_a_step_that_waits_for_a_compiler_makes_no_longer_step_expensive() -> None:
    assert costs_of(0.125, 0.125, 0.125, 0.75, 0.75, 7.0, sizes=(1, 8, 2)) == [(1, 0.125), (2, 0.75), (8, 0.75)]


def test_long_steps_are_measured_once_and_two_of_them_at_least() -> None:
    assert costs_of(2.0, 1.5, 7.0, sizes=(1, 2, 4, 8)) == [(1, 1.5), (2, 7.0)]
    assert costs_of(1.0, 0.5, 0.5, 2.0, sizes=(1, 2, 4, 8)) == [(1, 0.5), (2, 2.0)]
    assert costs_of(9.0, 9.0, sizes=(1,)) == [(1, 9.0)]


def test_costs_ascend_for_any_order_of_measurements() -> None:
    assert costs_of(0.125, 0.125, 0.125, 0.75, 0.75, 0.5, sizes=(1, 8, 2)) == [(1, 0.125), (2, 0.5), (8, 0.75)]
    assert costs_of(0.75, 0.625, 0.625, 2.0, sizes=(1, 8, 2)) == [(1, 0.625), (8, 2.0)]


def test_decoding_requests_have_separate_contexts() -> None:
    steps = RandomSteps(sched.SchedulerConfig(**CONFIG), 50, 1024)
    written: set[int] = set()
    for step in range(2 * CONTEXT_TOKENS):
        batch = steps.decode_lane(4)
        assert batch.is_decode
        assert batch.positions.tolist() == [min(step, CONTEXT_TOKENS - 1)] * 4
        assert len(set(batch.slots.tolist())) == 4
        written |= set(batch.slots.tolist())
        blocks = np.split(batch.kv_indices, batch.kv_indptr[1:-1])
        assert 0 not in batch.kv_indices
        assert len(set(batch.kv_indices.tolist())) == batch.kv_indices.size
        for own, position in zip(blocks, batch.positions, strict=True):
            read = {16 * block + at for block in own.tolist() for at in range(16)}
            assert len(read & written) == position + 1, "a request attends to tokens that were not written"
    assert {token for _ in range(200) for token in steps.decode_lane(4).token_ids.tolist()} == set(range(50))


@pytest.mark.parametrize(("num_tokens", "lens"), [(5, [5]), (64, [64]), (130, [65, 65]), (320, [80] * 4)])
def test_longer_steps_of_the_decode_lane_are_prompts(num_tokens: int, lens: list[int]) -> None:
    batch = RandomSteps(sched.SchedulerConfig(**CONFIG), 50, 1024).decode_lane(num_tokens)
    assert not batch.is_decode
    assert np.diff(batch.query_indptr).tolist() == lens
    assert batch.positions.tolist() == [at for count in lens for at in range(count)]
    assert batch.sampled.tolist() == (np.cumsum(lens) - 1).tolist()
    assert len(set(batch.slots.tolist())) == num_tokens
    assert set((batch.slots // 16).tolist()) == set(batch.kv_indices.tolist())
    assert 0 not in batch.kv_indices


def test_a_small_cache_has_room_for_every_step() -> None:
    steps = RandomSteps(sched.SchedulerConfig(**CONFIG | {"num_blocks": 3}), 50, 48)
    for batch in (steps.decode_lane(4), steps.decode_lane(4), steps.decode_lane(48), steps.prompts(48, 4)):
        assert batch.kv_indices.min() >= 1
        assert batch.kv_indices.max() <= 3
        assert batch.slots.max() < 4 * 16


def test_a_prompt_is_chunked_by_measured_costs_while_another_request_decodes() -> None:
    model = Measured()
    config = with_measured_costs(sched.SchedulerConfig(**CONFIG), model, 1024, lambda: None, model.clock)
    assert sorted(set(model.sizes)) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert not config.has_prefill_lane
    core = EngineCore(model, config, clock=lambda: 0.0)  # time stands still, so the costs stay as measured
    core.add(1, Request("1", (1,), SamplingParams(max_tokens=30, temperature=0.0)), 0)
    core.step()
    core.add(2, Request("2", tuple(range(40)), SamplingParams(max_tokens=2, temperature=0.0)), 0)
    model.sizes.clear()
    core.step()
    # The decoding request alone takes 2 units, and prompts may add 6: 7 tokens take 8.
    assert model.sizes == [7]


def test_the_longest_step_with_decoding_requests_is_measured_for_any_model_speed() -> None:
    model = Measured()
    times = iter(range(0, 100_000, 10))  # each clock read is 10 s later
    config = with_measured_costs(sched.SchedulerConfig(**CONFIG), model, 1024, lambda: None, lambda: float(next(times)))
    measured_sizes = [tokens for tokens, _ in sched.Scheduler(config).costs()["decode"]]
    assert measured_sizes == sorted({1, CONFIG["max_batch_size"], CONFIG["chunk_size"]})


def test_costs_are_measured_up_to_the_longest_step_with_memory() -> None:
    model = Measured()
    with_measured_costs(sched.SchedulerConfig(**CONFIG), model, 20, lambda: None, model.clock)
    assert max(model.sizes) == 20


def costs_at_start(
    folder: Path, model: Measured, max_tokens: int = 1024, missing: tuple[str, ...] = ()
) -> list[tuple[int, float]]:
    """The costs measured by a start that stores its measurements and lacks the kernels named `missing`."""
    model.start = Start(Measurements(folder, {}), missing=list(missing))
    config = with_measured_costs(sched.SchedulerConfig(**CONFIG), model, max_tokens, lambda: None, model.clock)
    return sched.Scheduler(config).costs()["decode"]


def test_a_later_start_uses_the_costs_of_an_earlier_one(tmp_path: Path) -> None:
    first = costs_at_start(tmp_path, Measured())
    assert costs_at_start(tmp_path, again := Measured()) == first
    assert again.sizes == []
    costs_at_start(tmp_path, other := Measured(), max_tokens=20)
    assert max(other.sizes) == 20, "other step sizes are measured"


def test_costs_measured_without_some_kernels_are_not_used_once_these_are_ready(tmp_path: Path) -> None:
    costs_at_start(tmp_path, Measured(), missing=("latent attention",))
    costs_at_start(tmp_path, still_without := Measured(), missing=("latent attention",))
    assert still_without.sizes == []
    costs_at_start(tmp_path, ready := Measured())
    assert len(ready.sizes) > 0
    costs_at_start(tmp_path, again := Measured())
    assert again.sizes == []


@pytest.mark.parametrize(
    "costs",
    [
        [],
        [[1, 0.5], [3, 0.5]],
        [[1, 0.5], [1, 0.5]],
        [[1, 0.5], [2, 0.25]],
        [[1, -0.5]],
        [[1]],
        [[10**9, 0.5]],
        [["1", 0.5]],
        {},
        None,
        7,
    ],
)
def test_kept_costs_that_no_start_measures_are_measured_again(tmp_path: Path, costs: object) -> None:
    first = costs_at_start(tmp_path, Measured())
    (file,) = tmp_path.iterdir()
    content = json.loads(file.read_text())
    content["measured"]["step_costs"]["value"]["decode_costs"] = costs
    file.write_text(json.dumps(content))
    assert costs_at_start(tmp_path, again := Measured()) == first
    assert len(again.sizes) > 0
