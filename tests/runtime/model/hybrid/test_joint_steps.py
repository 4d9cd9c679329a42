"""Decode-lane steps that use the CPU and the device together, and their effect on the prefill lane."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.runner import with_changes
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.model.batch import Batch, padding
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.streaming.joint_split import JointSplit
from devkit.models.float_experts import FloatExperts
from devkit.models.float_hybrid import load_hybrid
from devkit.models.written import write_tiny_model

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
STREAM_FROM = 32
JOINT = JointSplit([(1, 0.5)], from_tokens=5, to_tokens=24)
SHORT, LONG = 20, 40


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), arch="v3", mla="split", quant="f32").gguf


def load(file: Path, *, joint: JointSplit | None = JOINT, stream_from_tokens: int = STREAM_FROM) -> HybridModel:
    return load_hybrid(
        file,
        CPU,
        SETTINGS,
        make_experts=FloatExperts,
        kv_dtype=torch.float32,
        stream_from_tokens=stream_from_tokens,
        joint_split=joint,
    )


@pytest.fixture
def model(file: Path) -> HybridModel:
    return load(file)


def prompt(num_tokens: int) -> Batch:
    """The first tokens of one request, in blocks 1…"""
    rng = np.random.default_rng(num_tokens)
    batch = padding(num_tokens, SETTINGS.block_tokens)
    first = np.int32(SETTINGS.block_tokens)
    tokens = rng.integers(0, 300, num_tokens, dtype=np.int32)
    return replace(
        batch, token_ids=tokens, slots=batch.positions + first, kv_indices=np.arange(1, batch.kv_indices.size + 1)
    )


def logits(model: HybridModel, num_tokens: int) -> NDArray[np.float32]:
    return model.forward(prompt(num_tokens), lambda: None).copy()


def streamed_bytes(model: HybridModel) -> int:
    assert model.streamed is not None
    return model.streamed.bytes_read


def core_of(model: HybridModel) -> EngineCore:
    config = scheduler_config(replace(SETTINGS, stream_from_tokens=STREAM_FROM))
    return EngineCore(model, with_changes(config, prefill_costs=[(1, 1.0)]))


def add(core: EngineCore, seq: int, num_tokens: int, max_tokens: int = 2) -> None:
    tokens = tuple(np.random.default_rng(seq).integers(0, 300, num_tokens).tolist())
    core.add(seq, Request(str(seq), tokens, SamplingParams(max_tokens=max_tokens, temperature=0.0)), seq)


def run(core: EngineCore) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    while core.stats().running + core.stats().waiting:
        for event in core.step().events:
            found.setdefault(event.seq, []).append(event.token_id)
        core.check()
    return found


@pytest.mark.parametrize("has_prefill_lane", [False, True])
def test_a_joint_step_gives_the_logits_of_the_cpu(file: Path, model: HybridModel, has_prefill_lane: bool) -> None:
    if has_prefill_lane:
        model.open_prefill_lane()
    alone = load(file, joint=None)
    for num_tokens in (SHORT, 7):
        assert model.streamed is not None
        before = streamed_bytes(model), model.expert_bytes_read_over_pcie, model.expert_bytes_read
        np.testing.assert_allclose(logits(model, num_tokens), logits(alone, num_tokens), rtol=1e-4, atol=1e-4)
        streamed = streamed_bytes(model) - before[0]
        assert 0 < streamed < model.streamed.pass_bytes
        assert model.expert_bytes_read_over_pcie - before[1] == streamed
        assert model.expert_bytes_read - before[2] > streamed, "the CPU must compute the other experts"
    assert model.device_counts.streamed_steps == 0


def test_steps_outside_the_range_use_one_processor(model: HybridModel) -> None:
    assert model.streamed is not None
    before = streamed_bytes(model)
    for num_tokens in (JOINT.from_tokens - 1, JOINT.to_tokens + 1):
        logits(model, num_tokens)
        assert streamed_bytes(model) == before
    logits(model, STREAM_FROM)
    assert streamed_bytes(model) - before == model.streamed.pass_bytes
    assert model.device_counts.streamed_steps == 1


def test_without_streaming_no_step_is_joint(file: Path) -> None:
    model = load(file, stream_from_tokens=0)
    logits(model, SHORT)
    assert model.streamed is None
    assert model.expert_bytes_read_over_pcie == 0


def test_the_cpu_computes_alone_during_a_pass(file: Path, model: HybridModel) -> None:
    expected, expected_long = logits(load(file, joint=None), SHORT), logits(load(file, joint=None), LONG)
    model.open_prefill_lane()
    model.begin_prefill(prompt(LONG))
    assert not model.advance_prefill(lambda: None)
    before = streamed_bytes(model)
    np.testing.assert_allclose(logits(model, SHORT), expected, rtol=1e-4, atol=1e-4)
    assert streamed_bytes(model) == before
    model.cancel_prefill()
    while not model.advance_prefill(lambda: None):
        pass
    np.testing.assert_allclose(logits(model, SHORT), expected, rtol=1e-4, atol=1e-4)
    assert streamed_bytes(model) > before, "steps must be joint again after the pass"
    model.begin_prefill(prompt(LONG))
    while not model.advance_prefill(lambda: None):
        pass
    np.testing.assert_allclose(model.prefill_logits(), expected_long, rtol=1e-4, atol=1e-4)


def test_a_pass_of_the_prefill_lane_begins_after_a_joint_step(model: HybridModel) -> None:
    core = core_of(model)
    add(core, 1, SHORT)
    add(core, 2, LONG)
    assert [event.seq for event in core.step().events] == [1], "the joint step has ended"
    assert core._prefill_step is None, "a pass must not begin during the joint step"
    add(core, 3, SHORT)
    before = streamed_bytes(model)
    assert sorted(run(core)) == [1, 2, 3]
    assert model.streamed is not None
    assert streamed_bytes(model) - before == model.streamed.pass_bytes, "the pass must precede a second joint step"


def test_both_lanes_give_the_results_of_the_cpu(file: Path, model: HybridModel) -> None:
    assert model.streamed is not None
    before = streamed_bytes(model)
    texts = []
    for each in (load(file, joint=None), model):
        core = core_of(each)
        for seq in range(1, 13):
            add(core, seq, (SHORT, LONG, 6, 3)[seq % 4], max_tokens=12)
        texts.append(run(core))
        add(core, 13, SHORT)  # alone, and without a pass: a joint step
        texts[-1] |= run(core)
    assert texts[0] == texts[1]
    in_passes = model.device_counts.streamed_steps * model.streamed.pass_bytes
    assert streamed_bytes(model) - before > in_passes > 0, "both kinds of steps must occur"
