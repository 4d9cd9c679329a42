"""Loads a file's hybrid model without a server, on any device. On torch's CPU device the weights are float32."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ballast._core import kernels
from ballast.engine.startup.build import EngineSettings
from ballast.model.hybrid.backends.selection import MAKERS
from ballast.model.hybrid.copies.pinned_ahead import PinnedAhead
from ballast.model.hybrid.load import load_hybrid_model
from ballast.model.hybrid.load_options import DeviceOptions, HybridOptions
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.streaming.streamed_experts import MakeExperts
from ballast.model.kv_pool import num_kv_blocks, num_state_slots, num_window_blocks, outstanding_tokens
from ballast.model.metadata import read_spec
from ballast.model.packed_tensors import Packing
from ballast.weights.gguf import open_gguf
from devkit.models.cpu_backend import CpuBackend

CPU = torch.device("cpu")


def load_hybrid(
    file: Path,
    device: torch.device,
    settings: EngineSettings,
    *,
    ahead: PinnedAhead | None = None,
    make_experts: MakeExperts | None = None,
    split: Sequence[int] = (),
    others: Sequence[torch.device] = (),
    keeps_windows: bool = False,
    **options: Any,
) -> HybridModel:
    """One thread computes the CPU's experts. `make_experts`: `CpuBackend`'s. `split`: the layers at which another
    simulated device begins (`SimulatedDevices`), or another part of the same GPU, or one of `others`. `keeps_windows`:
    whether layers with a window keep nothing else. `options` are `HybridOptions`'s and override the settings."""
    assert make_experts is None or device.type == "cpu", "a GPU has experts of its own"
    gguf_model = open_gguf(file)
    spec = read_spec(gguf_model, None)
    ends = [*split, spec.num_layers]
    names = [device, *others] if others else [device] * len(ends)
    if split and device == CPU:
        names = [torch.device("cpu", number) for number in range(len(ends))]
    ranges = [range(*bounds) for bounds in itertools.pairwise([0, *ends])]
    devices = [DeviceOptions(*each) for each in zip(names, ranges, strict=True)]
    steps = outstanding_tokens(settings.chunk_size, settings.prefill_chunk_size, has_lanes=True)
    num_blocks = num_kv_blocks(settings.cache_lens, settings.block_tokens)
    window = spec.window if keeps_windows else None
    window_blocks = num_window_blocks(
        window, num_blocks, settings.block_tokens, settings.max_batch_size, steps, has_tiers=True
    )
    state_slots = num_state_slots(
        spec.states,
        num_blocks * settings.block_tokens,
        settings.max_batch_size,
        settings.state_snapshots,
        on_gpu=True,
    )
    hybrid_options = HybridOptions(
        devices=devices,
        num_sampled_ids=spec.vocab_size,
        num_blocks=num_blocks,
        num_window_blocks=window_blocks,
        num_state_slots=state_slots,
        block_tokens=settings.block_tokens,
        max_step_tokens=settings.prefill_chunk_size,
        max_batch_size=settings.max_batch_size,
        **options,
    )
    packing = Packing(kernels.ThreadPool(1), settings.cpu_isa, 2)
    with pytest.MonkeyPatch.context() as patch:
        if make_experts is not None:
            patch.setitem(MAKERS, "cpu", partial(CpuBackend, make_experts=make_experts))
        hybrid, _ = load_hybrid_model(gguf_model, spec, packing, hybrid_options, ahead=ahead)
    hybrid.state_slots, hybrid.state_bytes = state_slots, spec.state_bytes
    if window is not None and window_blocks is not None:
        hybrid.window = window, window_blocks
    return hybrid
