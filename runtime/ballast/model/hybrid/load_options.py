"""The settings by which a hybrid model is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ballast.host.startup.start import Start
from ballast.host.vram import VramLimit
from ballast.model.hybrid.slices import SliceSizes
from ballast.model.hybrid.streaming.joint_split import JointSplit
from ballast.moe.gpu_experts import GpuExperts


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridOptions:
    """Fixed for the life of a model."""

    device: torch.device
    """Computes everything but the routed experts that the CPU keeps: a CUDA device, or the CPU in tests."""
    num_sampled_ids: int
    """Only ids below this are sampled: rows of the output matrix that are loaded."""
    num_blocks: int
    """Blocks of the KV cache, the null block aside."""
    block_tokens: int
    """Tokens in a block of the KV cache."""
    max_step_tokens: int
    """Most tokens in a step."""
    max_batch_size: int
    """Most requests in a decode step."""
    kv_dtype: torch.dtype = torch.float16
    """Type of the KV cache; attention on a GPU takes float16."""
    gpu_experts: GpuExperts = ()
    """Routed experts in the device's memory as well, by routed layer. The host keeps no copy of a layer all of whose
    experts are there. Empty: none."""
    pcie_share: float | None = 0.0
    """Share, 0…1, of a decode step's other experts that the device reads from host memory; None: as measured."""
    stream_from_tokens: int | None = None
    """Fewest tokens of a step whose experts are streamed through the device; 0: none are; None: as measured."""
    joint_split: JointSplit | None = None
    """How joint steps divide a layer's experts between streaming and the CPU; None: as measured on a GPU, and no joint
    steps on a CPU. Without streaming there are none."""
    vram: VramLimit | None = None
    """The limit that the device's allocator keeps to, for the message when it is full; None: all there is."""
    pin_thread: bool = False
    """Whether the thread that computes experts becomes the pool's first thread, bound to its core."""
    finishes_later: bool = False
    """Whether kernels of prompts that are still compiled and graphs of rare batch sizes are left for later."""
    start: Start = field(default_factory=Start)
    """Gets the times of loading and the measurements."""
    decodes_by_graphs: bool = True
    """Whether decode steps are captured as CUDA graphs; a CPU captures none."""
    slices: SliceSizes | None = None
    """How long steps are cut for attention, without long slices where no kernels are for them; None: as
    `slice_sizes_of` says."""
