"""The backend of CUDA devices: the only importer of modules that need Triton."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

from ballast._core import kernels
from ballast.host.gpu import driver_library
from ballast.host.nvcc import use_packaged_tools
from ballast.host.startup.kernel_cache import keep_compiled_kernels_in, keep_machine_code_only
from ballast.host.startup.measurements import Measurements
from ballast.host.stream_signals import StreamSignals
from ballast.model.hybrid.attention.attention import largest_query
from ballast.model.hybrid.attention.expanded import ExpandedKernels, ExpandedSizes
from ballast.model.hybrid.attention.gpu import GpuAttention, paged_attention
from ballast.model.hybrid.attention.late_flashinfer import LateFlashinfer
from ballast.model.hybrid.attention.sizes import Sizes
from ballast.model.hybrid.attention.triton_expanded import checked_expansion
from ballast.model.hybrid.compressed.compression import Rotation
from ballast.model.hybrid.compressed.gpu import compression_kernels
from ballast.model.hybrid.compressed.triton_compression import TritonCompression
from ballast.model.hybrid.copies import small_copy_kernels
from ballast.model.hybrid.copies.pinned_ahead import PinnedAhead
from ballast.model.hybrid.copies.small_copies import SmallCopy, carried
from ballast.model.hybrid.experts.division import Divide
from ballast.model.hybrid.experts.fused_routing import FusedRouter, fused_divide
from ballast.model.hybrid.experts.products.expert_panels import ExpertPanels
from ballast.model.hybrid.experts.products.expert_sums import ExpertSums
from ballast.model.hybrid.experts.routing import Choose
from ballast.model.hybrid.graphs.capture import captured
from ballast.model.hybrid.handoff import transport, transport_kernels
from ballast.model.hybrid.handoff.hand_off import HandOff
from ballast.model.hybrid.linear import Linear
from ballast.model.hybrid.panels.autotune import autotune, replay_seconds
from ballast.model.hybrid.panels.panel_linear import PanelLinear
from ballast.model.hybrid.platforms.registrar import CudaRegistrar
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.pointwise.triton_pointwise import TritonPointwise
from ballast.model.hybrid.recurrent.recurrence import Convolve
from ballast.model.hybrid.recurrent.triton_convolution import convolve
from ballast.model.hybrid.recurrent.triton_recurrence import TritonRecurrence
from ballast.model.hybrid.residual.triton_gates import TritonRowGates
from ballast.model.hybrid.residual.triton_stream import TritonStreamMixer
from ballast.model.hybrid.sparse.choice import PositionChoice
from ballast.model.hybrid.sparse.chosen import ChosenAttention
from ballast.model.hybrid.sparse.gpu import sparse_kernels
from ballast.model.hybrid.sparse.sizes import IndexSizes
from ballast.model.hybrid.startup import warmup_sizes
from ballast.model.hybrid.startup.kernels_ahead import KernelsAhead
from ballast.model.hybrid.startup.parallel_compile import CompileAhead, parallel_compile
from ballast.model.hybrid.startup.recurrent_check import recurrent_kernels
from ballast.model.hybrid.streaming.host_memory import PinnedMemory, Pinning
from ballast.model.hybrid.streaming.streamed_experts import MakeExperts, MakeSums
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.feed_forward import RoutingSpec
from ballast.model.layers.layer import RecurrentMixer
from ballast.model.layers.stream import StreamSpec
from ballast.model.rope import RopeTable
from ballast.model.spec import ModelSpec
from ballast.model.switched_off import SwitchedOff


class CudaBackend:
    """Implements `Backend`."""

    compiles = True
    captures_graphs = True

    def __init__(self, device: torch.device) -> None:
        """Binds the calling thread to the device."""
        self.device = device
        self.divide: Divide = fused_divide
        self.make_experts: MakeExperts = ExpertPanels
        self.make_sums: MakeSums = ExpertSums
        self.convolve: Convolve = convolve
        self.small_copy: SmallCopy = carried(small_copy_kernels)
        self._use_device()

    def prepare(self) -> None:
        """See `Backend`."""
        for compiler in ("FLASHINFER_WORKSPACE_BASE", "TRITON_CACHE_DIR"):
            keep_compiled_kernels_in(compiler)
        keep_machine_code_only()
        use_packaged_tools(Path(os.environ["FLASHINFER_WORKSPACE_BASE"], "link"), driver_library())

    def attention(self, sizes: Sizes) -> GpuAttention:
        """See `Backend`."""
        return GpuAttention(paged_attention(sizes, self.device))

    def sparse_attention(
        self, index: IndexSizes, sizes: Sizes, kv_dtype: torch.dtype
    ) -> tuple[PositionChoice, ChosenAttention]:
        """See `Backend`."""
        return sparse_kernels(index, sizes, kv_dtype, self.device, self.parallel_compile)

    def recurrence(self, mixer: RecurrentMixer, rms_eps: float) -> TritonRecurrence:
        """See `Backend`."""
        return recurrent_kernels(mixer, rms_eps, self.device, self.parallel_compile)

    def compression(
        self, mixer: CompressedSpec, block_tokens: int, rms_eps: float, rotation: Rotation, kv_dtype: torch.dtype
    ) -> TritonCompression:
        """See `Backend`."""
        return compression_kernels(mixer, block_tokens, rms_eps, rotation, kv_dtype, self.parallel_compile)

    def stream_mixer(self, spec: StreamSpec, rms_eps: float) -> TritonStreamMixer:
        """See `Backend`."""
        return TritonStreamMixer(spec, rms_eps)

    def row_gates(self, rms_eps: float) -> TritonRowGates:
        """See `Backend`."""
        return TritonRowGates(rms_eps)

    def late_attention(self, sizes: Sizes, expanded: ExpandedSizes | None, off: SwitchedOff) -> LateFlashinfer:
        """See `Backend`."""
        return LateFlashinfer(sizes, expanded, self.device, off)

    def expanded_kernels(
        self, sizes: ExpandedSizes, num_saturated: torch.Tensor, off: SwitchedOff
    ) -> ExpandedKernels | None:
        """See `Backend`."""
        return checked_expansion(sizes, num_saturated, off, self.parallel_compile)

    def pointwise(self, rms_eps: float, rope: RopeTable, scale: float, kv_dtype: torch.dtype) -> Pointwise:
        """See `Backend`."""
        return TritonPointwise(rms_eps, rope, self.device, largest_query(scale, kv_dtype))

    def router(self, rule: RoutingSpec, bias: torch.Tensor | None, table: torch.Tensor | None) -> Choose:
        """See `Backend`."""
        return FusedRouter(rule, bias, table)

    def make_linear(self, matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool = False) -> Linear:
        """See `Backend`."""
        return PanelLinear(matrix, rows, cols, is_transposed=is_transposed, device=self.device)

    def hand_off(self) -> HandOff:
        """See `Backend`."""
        send, fetch = transport.carried(transport_kernels)
        return HandOff(StreamSignals(), send, fetch, pins=True)

    def reads_host(self, pinned: PinnedMemory) -> bool:
        """See `Backend`."""
        return bool(pinned.num_bytes)

    def warmup_sizes(self, spec: ModelSpec, most_tokens: int, longest: int) -> tuple[list[int], list[int]]:
        """See `Backend`."""
        return (
            warmup_sizes.sizes_for_experts(most_tokens, spec.routing.num_experts_used, spec.routing.num_experts),
            warmup_sizes.sizes_for_steps(longest, spec.routing.num_experts_used, spec.routing.num_experts),
        )

    def pinning(self, ahead: PinnedAhead | None) -> AbstractContextManager[Pinning | None]:
        """See `Backend`."""
        make_room = None if ahead is None else ahead.give_back
        return Pinning(CudaRegistrar(), self._use_device, make_room)

    @contextmanager
    def early_kernels(
        self,
        spec: ModelSpec,
        pool: kernels.ThreadPool,
        most_tokens: int,
        most_expert_tokens: int,
    ) -> Iterator[KernelsAhead]:
        """See `Backend`."""
        routing = spec.routing
        sizes = warmup_sizes.smallest_for_experts(most_expert_tokens, routing.num_experts_used, routing.num_experts)
        with CompileAhead(self._use_device) as compiling:
            yield KernelsAhead(
                compiling,
                spec,
                pool,
                self.make_experts,
                most_tokens,
                sizes,
                self.device,
                self.give_back_memory,
            )

    def parallel_compile(self, report: Callable[[float], None] = lambda _: None) -> AbstractContextManager[None]:
        """See `Backend`."""
        return parallel_compile(self._use_device, report)

    def autotune(
        self, linears: Sequence[Linear], most_tokens: int, off: SwitchedOff, measurements: Measurements, name: str
    ) -> None:
        """See `Backend`."""
        tuned = [linear for linear in linears if isinstance(linear, PanelLinear)]
        autotune(tuned, most_tokens, self.device, replay_seconds, self.parallel_compile, off, measurements, name)

    def replay_of(self, queue: Callable[[], None]) -> Callable[[], None]:
        """See `Backend`."""
        with captured() as graph:
            queue()
        return graph.replay

    def give_back_memory(self) -> None:
        """See `Backend`."""
        torch.cuda.empty_cache()

    def _use_device(self) -> None:
        torch.cuda.set_device(self.device)
