"""The backend of a GPU on torch's CPU device: its classes, with kernels that Triton's interpreter runs."""

from __future__ import annotations

import pytest
import torch

from ballast._core import kernels
from ballast.model.hybrid.attention import paged, paged_fp8_kernels, paged_kernels
from ballast.model.hybrid.attention.attention import largest_query
from ballast.model.hybrid.attention.gpu import GpuAttention
from ballast.model.hybrid.attention.paged import PagedAttention, choose_tilings
from ballast.model.hybrid.attention.sizes import Sizes
from ballast.model.hybrid.backends.selection import MAKERS
from ballast.model.hybrid.compressed import (
    entry_attention_kernels,
    entry_kernels,
    triton_compression,
    window_kernels,
)
from ballast.model.hybrid.compressed.compression import Rotation
from ballast.model.hybrid.compressed.triton_compression import DeviceLimits, TritonCompression
from ballast.model.hybrid.copies import small_copy_kernels
from ballast.model.hybrid.copies.small_copies import carried
from ballast.model.hybrid.experts import fused_routing, routing_kernels
from ballast.model.hybrid.experts.products import (
    combine_kernels,
    expert_panels,
    grouped_int_gemm,
    grouped_int_gemm_kernels,
    many_pairs_kernels,
    pair_sums,
)
from ballast.model.hybrid.experts.products.expert_panels import ExpertPanels
from ballast.model.hybrid.experts.products.expert_sums import ExpertSums
from ballast.model.hybrid.handoff import host_experts, transport, transport_kernels
from ballast.model.hybrid.handoff.hand_off import HandOff
from ballast.model.hybrid.linear import Linear
from ballast.model.hybrid.panels import (
    bf16_split_kernels,
    dequant_gemm_kernels,
    gemv_kernels,
    half_kernels,
    int_gemm,
    int_gemm_kernels,
    matmul,
)
from ballast.model.hybrid.panels.panel_linear import PanelLinear
from ballast.model.hybrid.pointwise import (
    block_kernels,
    pointwise_kernels,
    pool_kernels,
    triton_pointwise,
    triton_pools,
)
from ballast.model.hybrid.pointwise.triton_pointwise import TritonPointwise
from ballast.model.hybrid.recurrent import triton_convolution
from ballast.model.hybrid.recurrent.triton_recurrence import TritonRecurrence
from ballast.model.hybrid.residual import gate_kernels, stream_kernels, triton_gates, triton_stream
from ballast.model.hybrid.residual.triton_gates import TritonRowGates
from ballast.model.hybrid.residual.triton_stream import TritonStreamMixer
from ballast.model.hybrid.sparse import choice_kernels, chosen_kernels, triton_choice, triton_chosen
from ballast.model.hybrid.sparse.sizes import IndexSizes
from ballast.model.hybrid.sparse.triton_choice import TritonPositionChoice
from ballast.model.hybrid.sparse.triton_chosen import TritonChosenAttention
from ballast.model.hybrid.streaming.host_memory import PinnedMemory
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.feed_forward import RoutingSpec
from ballast.model.layers.layer import RecurrentMixer
from ballast.model.layers.stream import StreamSpec
from ballast.model.rope import RopeTable
from devkit.kernels.interpreted import interpreted
from devkit.kernels.interpreted_recurrence import RECURRENT
from devkit.models.cpu_backend import CpuBackend
from devkit.models.cpu_hand_off import HostSignals
from devkit.models.cpu_platform import CpuPlatform

SHARED_BYTES = 227 << 10
"""Shared memory of a program on Hopper."""
KERNELS = (
    (paged, "paged_kernels", paged_kernels),
    (paged, "paged_fp8_kernels", paged_fp8_kernels),
    (triton_pointwise, "pointwise_kernels", pointwise_kernels),
    (triton_choice, "choice_kernels", choice_kernels),
    (triton_chosen, "chosen_kernels", chosen_kernels),
    (triton_pools, "pool_kernels", pool_kernels),
    (triton_pointwise, "block_kernels", block_kernels),
    (matmul, "gemv_kernels", gemv_kernels),
    (matmul, "bf16_split_kernels", bf16_split_kernels),
    (matmul, "dequant_gemm_kernels", dequant_gemm_kernels),
    (matmul, "half_kernels", half_kernels),
    (int_gemm, "int_gemm_kernels", int_gemm_kernels),
    (grouped_int_gemm, "grouped_int_gemm_kernels", grouped_int_gemm_kernels),
    (expert_panels, "combine_kernels", combine_kernels),
    (pair_sums, "many_pairs_kernels", many_pairs_kernels),
    (fused_routing, "routing_kernels", routing_kernels),
    (triton_compression, "entry_kernels", entry_kernels),
    (triton_compression, "entry_attention_kernels", entry_attention_kernels),
    (triton_compression, "window_kernels", window_kernels),
    (triton_stream, "stream_kernels", stream_kernels),
    (triton_gates, "gate_kernels", gate_kernels),
    *RECURRENT,
)
"""The user of each module of kernels, the name by which it uses it, and the module."""


def interpret_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpret all kernels of a model on torch's CPU device, in place of the operations of `CpuBackend`."""
    for user, name, module in KERNELS:
        monkeypatch.setattr(user, name, interpreted(module, monkeypatch))
    # Steps of few tokens then group their experts by a kernel, as on a GPU.
    monkeypatch.setattr(CpuPlatform, "has_fast_launches", True)
    copies, transports = (interpreted(module, monkeypatch) for module in (small_copy_kernels, transport_kernels))

    class InterpretedBackend(CpuBackend):
        """As `CudaBackend`, without its compilers, graphs and pinned memory."""

        def __init__(self, device: torch.device) -> None:
            super().__init__(device, ExpertPanels)
            self.divide = fused_routing.fused_divide
            self.make_sums = ExpertSums
            self.convolve = triton_convolution.convolve
            self.small_copy = carried(copies)

        def attention(self, sizes: Sizes) -> GpuAttention:
            tilings = choose_tilings(sizes, SHARED_BYTES)
            return GpuAttention(PagedAttention(sizes, tilings, CpuPlatform.num_processors))

        def sparse_attention(
            self, index: IndexSizes, sizes: Sizes, kv_dtype: torch.dtype
        ) -> tuple[TritonPositionChoice, TritonChosenAttention]:
            tilings, num_processors = choose_tilings(sizes, SHARED_BYTES), CpuPlatform.num_processors
            return TritonPositionChoice(index, num_processors), TritonChosenAttention(
                sizes, index, tilings, num_processors
            )

        def recurrence(self, mixer: RecurrentMixer, rms_eps: float) -> TritonRecurrence:
            return TritonRecurrence(mixer, rms_eps)

        def compression(
            self, mixer: CompressedSpec, block_tokens: int, rms_eps: float, rotation: Rotation, kv_dtype: torch.dtype
        ) -> TritonCompression:
            limits = DeviceLimits(SHARED_BYTES, CpuPlatform.num_processors)
            return TritonCompression(mixer, block_tokens, rms_eps, rotation, kv_dtype, limits)

        def stream_mixer(self, spec: StreamSpec, rms_eps: float) -> TritonStreamMixer:
            return TritonStreamMixer(spec, rms_eps)

        def row_gates(self, rms_eps: float) -> TritonRowGates:
            return TritonRowGates(rms_eps)

        def expanded_kernels(self, sizes: object, num_saturated: torch.Tensor, off: object) -> None:
            return None

        def pointwise(self, rms_eps: float, rope: RopeTable, scale: float, kv_dtype: torch.dtype) -> TritonPointwise:
            return TritonPointwise(rms_eps, rope, self.device, largest_query(scale, kv_dtype))

        def router(
            self, rule: RoutingSpec, bias: torch.Tensor | None, table: torch.Tensor | None
        ) -> fused_routing.FusedRouter:
            return fused_routing.FusedRouter(rule, bias, table)

        def make_linear(self, matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool = False) -> Linear:
            return PanelLinear(matrix, rows, cols, is_transposed=is_transposed, device=self.device)

        def hand_off(self) -> HandOff:
            return HandOff(HostSignals(host_experts.LIMIT_S), *transport.carried(transports), pins=False)

        def reads_host(self, pinned: PinnedMemory) -> bool:
            return True

    monkeypatch.setitem(MAKERS, "cpu", InterpretedBackend)
