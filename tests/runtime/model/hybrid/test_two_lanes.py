"""Prompts in separate steps, concurrent with decode steps, give the same texts in any order of completion."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from ballast.engine.core import BUSY, IDLE, EngineCore
from ballast.engine.engine import Engine, EngineState
from ballast.engine.limits import Limits
from ballast.engine.request import Request, SamplingParams
from ballast.engine.runner import with_changes
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.model.batch import Batch
from ballast.model.hybrid.layers.attention_layers import AttentionLayers
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.prefill_pass import MAX_AHEAD, PrefillPass
from ballast.model.hybrid.steps.pieces import Pieces
from ballast.model.hybrid.steps.step import Step
from ballast.model.metadata import read_spec
from ballast.weights.gguf import open_gguf
from devkit.long import if_long, times
from devkit.models.float_experts import FloatExperts
from devkit.models.float_hybrid import load_hybrid
from devkit.models.written import MakeTiny

CPU = torch.device("cpu")
SETTINGS = EngineSettings(
    cache_lens=320,
    max_batch_size=4,
    max_new_tokens=40,
    chunk_size=24,
    prefill_chunk_size=48,
    max_queue=16,
    block_tokens=16,
)
PREFILL_FROM = 12
NEW_TOKENS = times(12, 24)


@pytest.fixture(scope="module", params=["v3"])
def model(request: pytest.FixtureRequest, written: MakeTiny) -> HybridModel:
    """On the CPU, in float32; prompts of PREFILL_FROM tokens and more are streamed."""
    torch.set_num_threads(1)
    file = written(arch=request.param, mla="split", quant="f32").gguf
    return load_hybrid(
        file,
        CPU,
        SETTINGS,
        make_experts=FloatExperts,
        kv_dtype=torch.float32,
        stream_from_tokens=PREFILL_FROM,
    )


def core_of(model: HybridModel, *, lanes: int) -> EngineCore:
    config = scheduler_config(replace(SETTINGS, stream_from_tokens=PREFILL_FROM))
    return EngineCore(model, with_changes(config, prefill_costs=[(1, 1.0)]) if lanes == 2 else config)


def texts(core: EngineCore, abort: Callable[[int, dict[int, list[int]]], int | None]) -> dict[int, list[int]]:
    """Short and long prompts that arrive while others decode and blocks are scarce. `abort` gets the number of the
    step, and may return a sequence to abort."""
    rng = np.random.default_rng(3)
    found: dict[int, list[int]] = {}
    for step in range(4000):
        if step % 9 == 0 and len(found) < 14:
            seq = len(found) + 1
            found[seq] = []
            prompt = tuple(rng.integers(0, 300, (5, 70, 11, 40, 130)[seq % 5]).tolist())
            core.add(seq, Request(str(seq), prompt, SamplingParams(max_tokens=NEW_TOKENS, seed=seq)), seq)
        if (aborted := abort(step, found)) is not None:
            core.abort(aborted)
        for event in core.step().events:
            found[event.seq].append(event.token_id)
        core.check()
        if step > 130 and core.stats().running + core.stats().waiting == 0:
            break
    assert core.stats().used_tokens == 0
    return found


@pytest.fixture(scope="module")
def one_lane(model: HybridModel) -> dict[int, list[int]]:
    """The texts of one lane, by sequence."""
    return texts(core_of(model, lanes=1), lambda *_: None)


@pytest.mark.parametrize("model", ["v3", *if_long("qwen3", "glm5")], indirect=True)
def test_two_lanes_give_the_texts_of_one(model: HybridModel, one_lane: dict[int, list[int]]) -> None:
    assert texts(core_of(model, lanes=2), lambda *_: None) == one_lane
    assert model.device_counts.streamed_steps >= 8
    assert {len(text) for text in one_lane.values()} == {NEW_TOKENS}


def test_aborts_in_either_lane_do_not_affect_other_requests(model: HybridModel, one_lane: dict[int, list[int]]) -> None:
    core = core_of(model, lanes=2)
    in_prefill: list[int] = []

    def abort(step: int, found: dict[int, list[int]]) -> int | None:
        """Returns a sequence whose prompt is being computed, or one that decodes."""
        outstanding = core._prefill_step
        if step % 5 == 3 and outstanding is not None and len(in_prefill) < 3:
            in_prefill.append(int(outstanding.plan.seqs[0]))
            return in_prefill[-1]
        return max(found) - 1 if step in (25, 50) else None

    found = texts(core, abort)
    assert len(in_prefill) == 3
    for seq, text in found.items():
        assert text == one_lane[seq][: len(text)]
    assert sum(len(text) == NEW_TOKENS for text in found.values()) >= 8
    assert all(found[seq] == [] for seq in in_prefill), "an aborted prompt must give no token"


def test_a_single_long_prompt_returns_regularly_for_new_requests(model: HybridModel) -> None:
    core = core_of(model, lanes=2)
    slow = SlowLane(model)
    core._runner = slow
    core.add(1, Request("1", tuple(range(40)), SamplingParams(max_tokens=2, temperature=0.0)), 1)
    assert core.step() is BUSY
    core.add(2, Request("2", (1, 2, 3), SamplingParams(max_tokens=2, temperature=0.0)), 2)
    assert [event.seq for event in core.step().events] == [2], "a short prompt must not wait for a long one"
    slow.may_end = True
    ended = [event.seq for _ in range(500) for event in core.step().events]
    assert sorted(ended) == [1, 1, 2]


def test_an_engine_starts_although_its_first_prefill_step_is_slow(
    model: HybridModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowLane(model)
    advance, looks = model.advance_prefill, itertools.count()

    def advance_slowly(alive: Callable[[], None]) -> bool:
        slow.may_end = next(looks) % 200 == 199
        return advance(alive) and slow.may_end

    monkeypatch.setattr(model, "advance_prefill", advance_slowly)
    config = scheduler_config(replace(SETTINGS, stream_from_tokens=1))
    engine = Engine(lambda report: model, config, Limits(40, 320, 4, 16))
    engine.start()
    deadline = time.monotonic() + 30
    while engine.state is EngineState.LOADING and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.state is EngineState.READY, engine.failure
    engine.stop(drain_timeout_s=0)
    assert engine.state is EngineState.STOPPED


def test_an_engine_stops_during_steps_of_both_lanes(model: HybridModel, monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_of(model, lanes=2)
    slow = SlowLane(model)
    core._runner = slow
    core.add(1, Request("1", (1, 2, 3), SamplingParams(max_tokens=9, temperature=0.0)), 1)
    core.step()
    core.add(2, Request("2", tuple(range(40)), SamplingParams(max_tokens=2, temperature=0.0)), 2)
    core.step()
    core._decode_step = core._begin_decode()
    assert core._prefill_step is not None
    core.close()
    assert model._prefill_pass is None


def test_an_aborted_prompt_is_not_computed_to_its_end(model: HybridModel) -> None:
    core = core_of(model, lanes=2)
    prompt = tuple(range(48))
    core.add(1, Request("1", prompt, SamplingParams(max_tokens=9, temperature=0.0)), 1)
    core._prefill_step = core._begin_prefill()
    assert not model.advance_prefill(lambda: None)
    assert model.streamed is not None
    core.abort(1)
    bytes_before = model.streamed.bytes_read
    assert core.step().events == ()
    assert core.step() is IDLE
    assert model.streamed.bytes_read == bytes_before, "the step must not continue"
    assert model._prefill_pass is None
    assert core.stats().used_tokens == core.stats().cached_tokens == 0, "uncomputed blocks must not be cached"
    core.check()
    core.add(2, Request("2", prompt, SamplingParams(max_tokens=2, temperature=0.0)), 2)
    found = [event.token_id for _ in range(200) for event in core.step().events]
    alone = core_of(model, lanes=1)
    alone.add(1, Request("1", prompt, SamplingParams(max_tokens=2, temperature=0.0)), 1)
    assert found == [event.token_id for _ in range(200) for event in alone.step().events]


def test_the_lane_queues_enough_pieces_before_it_waits() -> None:
    class Later:
        is_done = False

        def query(self) -> bool:
            return self.is_done

    def pieces() -> Pieces[torch.Tensor]:
        for _ in range(MAX_AHEAD + 1):
            yield
        return torch.zeros(1)

    events: list[Later] = []

    def record() -> Later:
        events.append(Later())
        return events[-1]

    step = PrefillPass(pieces(), record)
    for _ in range(MAX_AHEAD):
        assert not step.is_ahead
        step.advance(lambda: None)
    assert step.is_ahead
    step.advance(lambda: None)
    assert len(events) == MAX_AHEAD, "too many pieces are queued"
    events[0].is_done = True
    step.advance(lambda: None)
    assert len(events) == MAX_AHEAD + 1
    step.is_cancelled = True
    for event in events:
        assert not step.advance(lambda: None)
        event.is_done = True
    assert step.advance(lambda: None)
    assert len(events) == MAX_AHEAD + 1


def test_lanes_use_separate_attention_plans_if_all_experts_are_on_the_device(
    written: MakeTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(arch="v3", mla="split", quant="f32").gguf
    spec = read_spec(open_gguf(file), None)
    everything = (tuple(range(spec.routing.num_experts)),) * len(spec.routed_layers)
    model = load_hybrid(file, CPU, SETTINGS, make_experts=FloatExperts, gpu_experts=everything)
    prepared: dict[str, int] = {"decode": 0, "prefill": 0}
    for name, layer in (("decode", model.devices[0].attention), ("prefill", model.devices[0].prefill_attention)):

        def count(batch: Batch, device: torch.device, name: str = name, layer: AttentionLayers = layer) -> Step:
            prepared[name] += 1
            return AttentionLayers.prepared(layer, batch, device)

        monkeypatch.setattr(layer, "prepared", count)
    core = core_of(model, lanes=2)
    core.add(1, Request("1", (1, 2, 3), SamplingParams(max_tokens=3, temperature=0.0)), 1)
    core.step()
    assert prepared == {"decode": 1, "prefill": 0}
    core.add(2, Request("2", tuple(range(40)), SamplingParams(max_tokens=2, temperature=0.0)), 2)
    while core.stats().running + core.stats().waiting:
        core.step()
    assert prepared == {"decode": 1, "prefill": 1}


class SlowLane:
    """A model's prefill lane whose step does not end until the test allows it."""

    def __init__(self, model: HybridModel) -> None:
        self._model = model
        self.may_end = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def advance_prefill(self, alive: Callable[[], None]) -> bool:
        return self._model.advance_prefill(alive) and self.may_end
