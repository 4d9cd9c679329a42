"""The backend of torch's CPU device: what a GPU's kernels compute, in torch's operations and float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from ballast._core import kernels
from ballast.host.startup.measurements import Measurements
from ballast.model.hybrid.attention.attention import Attention, PlainAttention
from ballast.model.hybrid.attention.expanded import ExpandedKernels, ExpandedSizes, PlainExpandedKernels
from ballast.model.hybrid.attention.sizes import Sizes
from ballast.model.hybrid.backends import selection
from ballast.model.hybrid.backends.backend import EarlyKernels, LateAttention
from ballast.model.hybrid.compressed.compression import Compression, Rotation
from ballast.model.hybrid.compressed.plain import PlainCompression
from ballast.model.hybrid.copies.pinned_ahead import PinnedAhead
from ballast.model.hybrid.copies.small_copies import SmallCopy
from ballast.model.hybrid.experts.division import Divide
from ballast.model.hybrid.experts.routing import Choose
from ballast.model.hybrid.linear import FloatLinear, Linear
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.recurrent.plain import PlainRecurrence, convolve
from ballast.model.hybrid.recurrent.recurrence import Convolve, Recurrence
from ballast.model.hybrid.residual.gated import RowGates
from ballast.model.hybrid.residual.residual import StreamMixer
from ballast.model.hybrid.sparse.choice import PlainPositionChoice, PositionChoice
from ballast.model.hybrid.sparse.chosen import ChosenAttention, PlainChosenAttention
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
from devkit.kernels.plain_routing import Router, divide
from devkit.kernels.torch_pointwise import TorchPointwise
from devkit.kernels.torch_stream import TorchRowGates, TorchStreamMixer
from devkit.models.cpu_hand_off import cpu_hand_off
from devkit.models.cpu_platform import CpuPlatform as CpuPlatform
from devkit.models.float_experts import FloatExperts
from devkit.models.sums_of_calls import sums_of_calls


def copied(host: torch.Tensor, out: torch.Tensor) -> None:
    """A `SmallCopy`."""
    out.copy_(host)


class CpuBackend:
    """Implements `Backend`."""

    compiles = False
    captures_graphs = False
    hand_off = staticmethod(cpu_hand_off)

    def __init__(self, device: torch.device, make_experts: MakeExperts | None = None) -> None:
        """`make_experts` makes experts that decode steps read from host memory as well, as a GPU reads them over PCIe;
        None: they read none."""
        self.device = device
        self._reads_host = make_experts is not None
        self.divide: Divide = divide
        self.make_experts: MakeExperts = make_experts or FloatExperts
        self.make_sums: MakeSums = sums_of_calls(self.make_experts)
        self.convolve: Convolve = convolve
        self.small_copy: SmallCopy = copied

    def prepare(self) -> None:
        """See `Backend`."""

    def attention(self, sizes: Sizes) -> Attention:
        """See `Backend`."""
        return PlainAttention(sizes)

    def sparse_attention(
        self, index: IndexSizes, sizes: Sizes, kv_dtype: torch.dtype
    ) -> tuple[PositionChoice, ChosenAttention]:
        """See `Backend`."""
        return PlainPositionChoice(index), PlainChosenAttention(sizes, index)

    def recurrence(self, mixer: RecurrentMixer, rms_eps: float) -> Recurrence:
        """See `Backend`."""
        return PlainRecurrence(mixer, rms_eps)

    def compression(
        self, mixer: CompressedSpec, block_tokens: int, rms_eps: float, rotation: Rotation, kv_dtype: torch.dtype
    ) -> Compression:
        """See `Backend`."""
        return PlainCompression(mixer, block_tokens, rms_eps, rotation, kv_dtype)

    def stream_mixer(self, spec: StreamSpec, rms_eps: float) -> StreamMixer:
        return TorchStreamMixer(spec, rms_eps)

    def row_gates(self, rms_eps: float) -> RowGates:
        """See `Backend`."""
        return TorchRowGates(rms_eps)

    def late_attention(self, sizes: Sizes, expanded: ExpandedSizes | None, off: SwitchedOff) -> LateAttention | None:
        """See `Backend`."""
        return None

    def expanded_kernels(
        self, sizes: ExpandedSizes, num_saturated: torch.Tensor, off: SwitchedOff
    ) -> ExpandedKernels | None:
        """See `Backend`."""
        return PlainExpandedKernels(sizes, num_saturated)

    def pointwise(self, rms_eps: float, rope: RopeTable, scale: float, kv_dtype: torch.dtype) -> Pointwise:
        """See `Backend`."""
        return TorchPointwise(rms_eps, rope, self.device)

    def router(self, rule: RoutingSpec, bias: torch.Tensor | None, table: torch.Tensor | None) -> Choose:
        """See `Backend`."""
        return Router(rule, bias, table)

    def make_linear(self, matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool = False) -> Linear:
        """See `Backend`. The matrix becomes float32."""
        weight = torch.from_numpy(kernels.unpack(matrix))
        assert weight.shape[1:] == (rows, cols)
        return FloatLinear((weight * float(matrix.scales[0]) if matrix.scales.size else weight).to(self.device))

    def reads_host(self, pinned: PinnedMemory) -> bool:
        """See `Backend`."""
        return self._reads_host

    def warmup_sizes(self, spec: ModelSpec, most_tokens: int, longest: int) -> tuple[list[int], list[int]]:
        """See `Backend`."""
        return sorted({1, most_tokens}), sorted({1, longest})

    def pinning(self, ahead: PinnedAhead | None) -> AbstractContextManager[Pinning | None]:
        """See `Backend`."""
        return nullcontext()

    def early_kernels(
        self,
        spec: ModelSpec,
        pool: kernels.ThreadPool,
        most_tokens: int,
        most_expert_tokens: int,
    ) -> AbstractContextManager[EarlyKernels | None]:
        """See `Backend`."""
        return nullcontext()

    def parallel_compile(self, report: Callable[[float], None] = lambda _: None) -> AbstractContextManager[None]:
        """See `Backend`."""
        return nullcontext()

    def autotune(
        self, linears: Sequence[Linear], most_tokens: int, off: SwitchedOff, measurements: Measurements, name: str
    ) -> None:
        """See `Backend`."""

    def replay_of(self, queue: Callable[[], None]) -> Callable[[], None]:
        """See `Backend`."""
        return queue

    def give_back_memory(self) -> None:
        """See `Backend`."""


selection.MAKERS["cpu"] = CpuBackend
