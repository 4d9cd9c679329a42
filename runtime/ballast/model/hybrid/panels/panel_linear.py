"""Linear layers over packed weights on a GPU. The panels are those of the CPU kernels; the GPU kernels decode them."""

from __future__ import annotations

import torch
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from ballast.model.hybrid.panels.host_bytes import host_bytes
from ballast.model.hybrid.panels.int_gemm import int_gemm, int_gemm_input, num_counters
from ballast.model.hybrid.panels.layout import FLOAT_TYPES
from ballast.model.hybrid.panels.matmul import MAX_GEMV_TOKENS, cublas_gemm, dequant_gemm, gemm_input, gemv
from ballast.model.hybrid.panels.product_sizes import MIN_CUBLAS_TOKENS
from ballast.model.hybrid.panels.stack import PanelStack, scales_on
from ballast.model.hybrid.platforms.platform_of import platform_of

TUNED_TOKENS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of tokens that are tuned; a number between two of them uses the kernel of the larger one."""

_LANES = 2
"""Number of streams that may use a matrix concurrently: the default stream, and another one."""

Shape = tuple[GgmlType, int, int, int]
"""(type, heads, rows, cols)"""


class PanelLinear:
    """One packed matrix per head, [heads, rows, cols]."""

    def __init__(
        self, matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool, device: torch.device
    ) -> None:
        """`rows` and `cols` are those of one head when the layer is applied; a matrix that was packed transposed holds
        floats."""
        panels = matrix.panels
        packed = torch.empty(panels.shape, dtype=torch.uint8, device=device)
        packed.copy_(host_bytes(panels))  # no copy to pinned memory first: it would take longer than the transfer
        kind = GgmlType.F32 if is_transposed else GgmlType(matrix.ggml_type)
        scales = matrix.scales
        if is_transposed and scales.size:  # floats are multiplied by the scale
            packed.view(torch.float32).mul_(float(scales[0]))
            scales = scales[:0]
        on_device = scales_on(device, scales, kind, len(packed))
        self._stack = PanelStack(packed, kind, len(packed), rows, cols, on_device)
        self._arrived = [
            torch.zeros(num_counters(self._stack), dtype=torch.int32, device=device) for _ in range(_LANES)
        ]
        self.int_gemm_tokens: frozenset[int] = frozenset()
        """The numbers in TUNED_TOKENS that `int_gemm` multiplies; see `autotune`."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights on the device."""
        return self._stack.packed.numel()

    @property
    def shape(self) -> Shape:
        """Layers of one shape use the same kernels."""
        return self._stack.ggml_type, self._stack.num_experts, self._stack.rows, self._stack.cols

    @property
    def has_int_gemm(self) -> bool:
        """Whether `int_gemm` can multiply these weights: floats have no integer codes."""
        return self._stack.ggml_type not in FLOAT_TYPES

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x float32 [T, heads, cols] → float32 [T, heads, rows]; with a single head, the head axis is omitted."""
        return self.multiply(x, by_int_gemm=_tried(len(x)) in self.int_gemm_tokens)

    def multiply(self, x: torch.Tensor, *, by_int_gemm: bool) -> torch.Tensor:
        """The product, as a call returns it. With `by_int_gemm` it uses `int_gemm`, which requires quantised weights
        and fewer than MIN_CUBLAS_TOKENS tokens."""
        stack, num_tokens = self._stack, len(x)
        flat = x.reshape(-1, stack.cols).contiguous()
        out = flat.new_empty((len(flat), stack.rows))
        if by_int_gemm and self.has_int_gemm and 0 < num_tokens < MIN_CUBLAS_TOKENS:
            terms = int_gemm_input(flat, stack.ggml_type, stack.num_experts)
            int_gemm(stack, terms, out, arrived=self._arrived[_lane(flat)])
        elif 0 < num_tokens <= MAX_GEMV_TOKENS:
            gemv(stack, flat, out, arrived=self._arrived[_lane(flat)])
        elif num_tokens >= MIN_CUBLAS_TOKENS and stack.num_experts == 1 and self.has_int_gemm:
            cublas_gemm(stack, gemm_input(flat, stack.ggml_type), out)
        elif num_tokens:
            dequant_gemm(stack, gemm_input(flat, stack.ggml_type), out)
        return out if stack.num_experts == 1 else out.view(num_tokens, stack.num_experts, stack.rows)


def _tried(num_tokens: int) -> int:
    return next((tried for tried in TUNED_TOKENS if num_tokens <= tried), TUNED_TOKENS[-1])


def _lane(x: torch.Tensor) -> int:
    """Index of the counters that the current stream uses."""
    return int(not platform_of(x.device).is_on_default_stream())
