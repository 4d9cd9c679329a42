"""A backend: the kernels of one kind of device, and the loading of a model that uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from ballast._core import kernels
from ballast.host.startup.measurements import Measurements
from ballast.model.hybrid.attention.attention import Attention
from ballast.model.hybrid.attention.expanded import ExpandedAttention, ExpandedKernels, ExpandedSizes
from ballast.model.hybrid.attention.sizes import Sizes
from ballast.model.hybrid.compiling.late_kernels import LateKernels
from ballast.model.hybrid.compressed.compression import Compression, Rotation
from ballast.model.hybrid.copies.pinned_ahead import PinnedAhead
from ballast.model.hybrid.copies.small_copies import SmallCopy
from ballast.model.hybrid.experts.division import Divide
from ballast.model.hybrid.experts.routing import Choose
from ballast.model.hybrid.handoff.hand_off import HandOff
from ballast.model.hybrid.linear import Linear
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.recurrent.recurrence import Convolve, Recurrence
from ballast.model.hybrid.residual.gated import RowGates
from ballast.model.hybrid.residual.residual import StreamMixer
from ballast.model.hybrid.sparse.choice import PositionChoice
from ballast.model.hybrid.sparse.chosen import ChosenAttention
from ballast.model.hybrid.sparse.sizes import IndexSizes
from ballast.model.hybrid.streaming.host_memory import PinnedMemory, Pinning
from ballast.model.hybrid.streaming.streamed_experts import MakeExperts, MakeSums
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.feed_forward import RoutingSpec
from ballast.model.layers.layer import RecurrentMixer
from ballast.model.layers.stream import StreamSpec
from ballast.model.rope import RopeTable
from ballast.model.spec import ModelSpec
from ballast.model.switched_off import SwitchedOff


class LateAttention(Protocol):
    """Kernels of attention that compile while a model is loaded."""

    def use_in(
        self,
        lanes: Sequence[Any],
        use_expanded: Callable[[ExpandedAttention], None],
        num_saturated: torch.Tensor,
        piece_keys: int,
        late: LateKernels,
    ) -> None:
        """Let `lanes` use the kernels, and `use_expanded` attention outside the latent space. `late` gets the kernels
        that no decode step needs."""


class EarlyKernels(Protocol):
    """Compiles kernels while weights are loaded."""

    def add_linear(self, linear: Linear) -> None:
        """Called after a dense layer was loaded."""

    def add_experts(self, experts: kernels.Experts) -> None:
        """Called after experts were loaded into host memory, if the device will read some of them."""


class Backend(Protocol):
    """The operations of one device."""

    device: torch.device
    compiles: bool
    """Whether kernels are compiled at their first use, so that products are tuned and the model is warmed up."""
    captures_graphs: bool
    """Whether decode steps can be captured as graphs."""
    divide: Divide
    make_experts: MakeExperts
    make_sums: MakeSums

    convolve: Convolve
    small_copy: SmallCopy

    def prepare(self) -> None:
        """Find the compilers and their caches."""

    def attention(self, sizes: Sizes) -> Attention:
        """Attention of one lane. Raises ValueError if heads are too large."""

    def sparse_attention(
        self, index: IndexSizes, sizes: Sizes, kv_dtype: torch.dtype
    ) -> tuple[PositionChoice, ChosenAttention]:
        """The selection of positions, and attention to them. Raises ValueError if the device cannot compute them."""

    def recurrence(self, mixer: RecurrentMixer, rms_eps: float) -> Recurrence:
        """The operations of recurrent layers with this mixer, of both lanes. Raises ValueError if the device cannot
        compute them."""

    def compression(
        self, mixer: CompressedSpec, block_tokens: int, rms_eps: float, rotation: Rotation, kv_dtype: torch.dtype
    ) -> Compression:
        """The operations of attention to compressed entries with this mixer, of both lanes. Raises ValueError if the
        device cannot compute them."""

    def stream_mixer(self, spec: StreamSpec, rms_eps: float) -> StreamMixer:
        """The operations of hyper-connections."""

    def row_gates(self, rms_eps: float) -> RowGates:
        """The operations of a stream whose rows are read through gates."""

    def late_attention(self, sizes: Sizes, expanded: ExpandedSizes | None, off: SwitchedOff) -> LateAttention | None:
        """Start compiling the faster kernels of attention. Returns None if there are none."""

    def expanded_kernels(
        self, sizes: ExpandedSizes, num_saturated: torch.Tensor, off: SwitchedOff
    ) -> ExpandedKernels | None:
        """Kernels outside the latent space that compile in seconds. `num_saturated` int64 []: the counter of infinite
        numbers. Returns None if there are none, or if they cannot be used; `off` then gets the reason."""

    def pointwise(self, rms_eps: float, rope: RopeTable, scale: float, kv_dtype: torch.dtype) -> Pointwise:
        """The pointwise operations. `scale`: the factor of attention scores."""

    def router(self, rule: RoutingSpec, bias: torch.Tensor | None, table: torch.Tensor | None) -> Choose:
        """The selection of a layer's experts; see `MakeRouter`."""

    def make_linear(self, matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool = False) -> Linear:
        """See `MakeLinear`."""

    def hand_off(self) -> HandOff:
        """The transfer of activations to the CPU experts and of results back. Raises EngineDeadError if the driver
        cannot signal."""

    def reads_host(self, pinned: PinnedMemory) -> bool:
        """Whether the device can compute experts from host memory."""

    def warmup_sizes(self, spec: ModelSpec, most_tokens: int, longest: int) -> tuple[list[int], list[int]]:
        """Numbers of tokens for the warm-up: first for the kernels of experts, up to `most_tokens`, then for steps, up
        to `longest`."""

    def pinning(self, ahead: PinnedAhead | None) -> AbstractContextManager[Pinning | None]:
        """Pins experts in host memory while other weights are loaded. None: the device needs no pinned memory."""

    def early_kernels(
        self,
        spec: ModelSpec,
        pool: kernels.ThreadPool,
        most_tokens: int,
        most_expert_tokens: int,
    ) -> AbstractContextManager[EarlyKernels | None]:
        """Compiles kernels while weights are loaded: those of steps of up to `most_tokens`, and for experts in host
        memory of up to `most_expert_tokens`. None: nothing is compiled."""

    def parallel_compile(self, report: Callable[[float], None] = lambda _: None) -> AbstractContextManager[None]:
        """A context in which launches only compile; leaving it waits. `report` gets the fraction done, 0…1."""

    def autotune(
        self, linears: Sequence[Linear], most_tokens: int, off: SwitchedOff, measurements: Measurements, name: str
    ) -> None:
        """Choose the kernel of each dense layer for each number of tokens. `name`: that of the measurement."""

    def replay_of(self, queue: Callable[[], None]) -> Callable[[], None]:
        """Returns a function that repeats the work that `queue` queues on the current stream. Devices with graphs
        capture it once and replay the graph."""

    def give_back_memory(self) -> None:
        """Release unused device memory."""
