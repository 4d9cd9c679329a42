"""The settings with which a hybrid model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.host.startup.start import Start
from ballast.host.vram import VramLimit
from ballast.model.hybrid.steps.slices import SliceSizes
from ballast.model.hybrid.streaming.joint_split import JointSplit
from ballast.moe.gpu_experts import GpuExperts


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """A device of a model."""

    device: torch.device
    """A CUDA device, or the CPU in tests."""
    layers: range
    """The layers that it computes, except the routed experts that stay on the CPU."""
    vram: VramLimit | None = None
    """The limit of the device's allocator, for the message when memory is full; None: all memory of the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridOptions:
    """Constant for the lifetime of a model."""

    devices: Sequence[DeviceOptions]
    """In the order of their layers. Each layer is computed by one device."""
    num_sampled_ids: int
    """Only ids below this are sampled: the number of rows of the output matrix that are loaded."""
    num_blocks: int
    """Blocks of the KV cache, not counting the null block."""
    block_tokens: int
    """Tokens in a block of the KV cache."""
    num_window_blocks: int | None = None
    """Blocks of layers with a window, not counting the null block; None: they have the blocks of all layers."""
    num_state_slots: int = 0
    """Slots of recurrent state, not counting the null slot."""
    max_step_tokens: int
    """Most tokens in a step."""
    max_batch_size: int
    """Most requests in a decode step."""
    kv_dtype: torch.dtype = torch.float16
    """Type of the KV cache; attention on a GPU takes float16, and float8_e4m3fn: rows as `ShortRows` defines them."""
    gpu_experts: GpuExperts = ()
    """Routed experts that are placed in device memory, by routed layer. The host keeps no copy of a layer if all its
    experts are in device memory. Empty: none."""
    updates_gpu_experts: bool = False
    """Whether experts that are used more replace those in device memory while the model runs."""
    expert_uses: NDArray[np.int64] | None = None
    """[routed layers, E]: how often each expert was used before, where experts in device memory follow use; None:
    unknown."""
    pcie_share: float | None = 0.0
    """Fraction, 0…1, of a decode step's other experts that devices read from host memory; None: measured at start."""
    stream_from_tokens: int | None = None
    """Minimum tokens of a step for streaming its experts through the devices; 0: no streaming; None: measured at
    start."""
    joint_split: JointSplit | None = None
    """How joint steps divide a layer's experts between streaming and the CPU; None: measured on a GPU, no joint steps
    on a CPU. Without streaming there are no joint steps."""
    pin_thread: bool = False
    """Whether the thread that computes experts becomes the pool's first thread, bound to its core."""
    finishes_later: bool = False
    """Whether compilation of prompt kernels and capture of graphs for rare batch sizes may finish after the load."""
    start: Start = field(default_factory=Start)
    """Receives the times of loading and the measurements."""
    decodes_by_graphs: bool = True
    """Whether decode steps are captured as CUDA graphs; a CPU captures none."""
    slices: SliceSizes | None = None
    """Slice limits for attention, without long slices if no kernels support them; None: the result of
    `slice_sizes_of`."""
