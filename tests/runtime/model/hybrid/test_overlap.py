"""Devices that hold all experts compute different parts of a prompt at the same time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.model.hybrid.layers.attention_layers import AttentionLayers
from ballast.model.hybrid.steps import slices
from ballast.model.hybrid.steps.overlap import parts_of
from ballast.model.hybrid.steps.pieces import Pieces, drained, interleaved
from ballast.model.hybrid.steps.slices import SliceSizes, overlap_tokens
from ballast.model.hybrid.steps.step import Step
from ballast.model.metadata import read_spec
from ballast.weights.gguf import open_gguf
from devkit.long import if_long
from devkit.models.batches import batch_of
from devkit.models.float_experts import FloatExperts
from devkit.models.float_hybrid import load_hybrid
from devkit.models.simulated_devices import SimulatedDevices
from devkit.models.specs.deepseek import R1_SPEC, V2_LITE_SPEC
from devkit.models.specs.qwen3 import QWEN3_235B_SPEC
from devkit.models.written import MakeTiny

CPU = torch.device("cpu")
SETTINGS = EngineSettings(
    cache_lens=288,
    max_batch_size=4,
    max_new_tokens=8,
    chunk_size=80,
    prefill_chunk_size=80,
    max_queue=16,
    block_tokens=16,
)
PART_TOKENS = 16
SLICES = SliceSizes(tokens=7, long_tokens=9, long_from=30)


def texts(file: Path, split: list[int]) -> dict[int, list[int]]:
    """Greedy replies to prompts that are computed together, one of which continues an earlier one."""
    spec = read_spec(open_gguf(file), None)
    everything = tuple(tuple(range(spec.routing.num_experts)) for _ in spec.routed_layers)
    model = load_hybrid(
        file,
        CPU,
        SETTINGS,
        make_experts=FloatExperts,
        split=split,
        keeps_windows=True,
        kv_dtype=torch.float32,
        gpu_experts=everything,
        stream_from_tokens=0,
        slices=SLICES,
    )
    assert not model._experts.has_host
    core, rng = EngineCore(model, scheduler_config(SETTINGS)), np.random.default_rng(5)
    prompts = [tuple(rng.integers(0, 250, length).tolist()) for length in (70, 5, 33)]
    prompts.append((*prompts[0], 7, 8, 9))
    found: dict[int, list[int]] = {}
    for seq, prompt in enumerate(prompts, 1):
        found[seq] = []
        core.add(seq, Request(str(seq), prompt, SamplingParams(max_tokens=6, temperature=0.0)), seq)
        while core.stats().running + core.stats().waiting and seq >= 3:
            for event in core.step().events:
                found[event.seq].append(event.token_id)
    return found


# Latent attention with long slices, windows, recurrent state, experts by token ids, rows of an n-gram table.
@pytest.mark.parametrize(
    ("arch", "split"),
    [("v3", [1, 3]), ("gptoss", [1]), ("qwen3next", [2]), *if_long(("v3", [2]), ("v4", [2]), ("qwen38flashnext", [1]))],
)
def test_parts_on_several_devices_give_the_texts_of_one(
    written: MakeTiny, arch: str, split: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "_LEAST_OVERLAP", PART_TOKENS)
    monkeypatch.setattr(slices, "_MOST_OVERLAP", PART_TOKENS)
    file = written(arch=arch, quant="f32").gguf
    expected = texts(file, [])
    order: list[tuple[int, int]] = []
    pieces = AttentionLayers.pieces

    def recorded(
        own: AttentionLayers, layer: int, weights: Any, normed: torch.Tensor, cache: Any, step: Step
    ) -> Pieces[torch.Tensor]:
        order.append((layer, len(normed)))
        return pieces(own, layer, weights, normed, cache, step)

    monkeypatch.setattr(AttentionLayers, "pieces", recorded)
    with SimulatedDevices():
        assert texts(file, split) == expected
    assert max(num_tokens for _, num_tokens in order) < 2 * PART_TOKENS
    # The first device begins with a part before the second one begins with the part before.
    layers = [layer for layer, _ in order]
    begins = [index for index, layer in enumerate(layers) if layer == 0]
    assert any(split[0] not in layers[begin:end] for begin, end in itertools.pairwise(begins))


counts = st.lists(st.integers(1, 60), min_size=1, max_size=8)
limits = st.builds(SliceSizes, st.integers(1, 50), st.integers(1, 50), st.none() | st.integers(1, 50))


@given(counts, limits, st.integers(1, 120), st.data())
def test_parts_hold_the_slices_and_samples_of_their_tokens(
    added: list[int], sizes: SliceSizes, num_tokens: int, data: st.DataObject
) -> None:
    batch = batch_of([(0, count) for count in added])
    sampled = np.array(sorted(data.draw(st.sets(st.integers(0, sum(added) - 1)))), np.int64)
    step = Step.from_batch(replace(batch, sampled=sampled), CPU, sizes, has_ids=True)
    parts = parts_of(step, sampled, num_tokens)
    assert [0, *(part.end for part in parts)] == [*(part.begin for part in parts), sum(added)]
    assert len(parts) <= max(1, sum(added) // num_tokens)
    for part in parts:
        tokens = slice(part.begin, part.end)
        assert torch.equal(part.step.positions, step.positions[tokens])
        assert torch.equal(part.step.token_ids, step.token_ids[tokens])
        bounds = [0, *(own.end for own in part.step.slices)]
        assert bounds == [*(own.begin for own in part.step.slices), part.end - part.begin] or not step.slices
    found = torch.cat([part.step.sampled + part.begin for part in parts])
    np.testing.assert_array_equal(found.numpy(), sampled)


@pytest.mark.parametrize(
    ("added", "expected"), [(15, [15]), (31, [31]), (32, [16, 16]), (50, [17, 17, 16]), (64, [16, 16, 16, 16])]
)
def test_parts_are_as_equal_as_slices_allow(added: int, expected: list[int]) -> None:
    step = Step.from_batch(batch_of([(0, added)]), CPU, SliceSizes(tokens=9, long_from=None))
    parts = parts_of(step, np.zeros(0, np.int64), 16)
    assert sorted((part.end - part.begin for part in parts), reverse=True) == expected


def test_experts_get_many_tokens_in_a_part() -> None:
    found = [overlap_tokens(spec.routing) for spec in (R1_SPEC, QWEN3_235B_SPEC, V2_LITE_SPEC)]
    assert found == [8192, 4096, 2048]


def test_pieces_of_generators_are_queued_alternately() -> None:
    order = []

    def work(name: str, num_pieces: int) -> Pieces[str]:
        for index in range(num_pieces):
            order.append(f"{name}{index}")
            yield
        return name.upper()

    assert drained(interleaved({"first": work("a", 3), "second": work("b", 1)})) == {"first": "A", "second": "B"}
    assert order == ["a0", "b0", "a1", "a2"]
