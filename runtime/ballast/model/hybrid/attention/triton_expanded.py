"""Attention outside the latent space by kernels in Triton."""

from __future__ import annotations

import torch

from ballast.model.hybrid.attention import expanded_kernels
from ballast.model.hybrid.attention.expanded import ExpandedKernels, ExpandedSizes, PlainExpandedKernels
from ballast.model.hybrid.faults.kernel_check import ParallelCompile, why_different, why_unusable
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.shared_kernels.power_of_two import padded
from ballast.model.switched_off import SwitchedOff

_TRIED = 200
_HEADS = 16
_ROWS = 16
_BOUND_BLOCK = 4096
_MIN_DOT = 16
"""Smallest side of a product in Triton."""
_WIDE = 320
"""Largest sum of a head's padded widths for which a tile has 64 keys: that of DeepSeek's models."""


class TritonExpandedKernels:
    """`ExpandedKernels` on a GPU, for a cache in half precision. Queries, keys, values and results are rounded to half
    precision."""

    def __init__(self, sizes: ExpandedSizes, num_saturated: torch.Tensor) -> None:
        """`num_saturated` int64 []: the counter of infinite numbers, on the device."""
        self._sizes = sizes
        self._num_saturated = num_saturated
        # Sums of half-precision products stay in float32 to the end.
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    def keys(self, nope: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        """See `ExpandedKernels`."""
        sizes = self._sizes
        num_heads = nope.shape[1] // sizes.nope_dim
        keys = nope.new_empty((len(nope), num_heads, sizes.nope_dim + sizes.rope_dim))
        expanded_kernels.place_keys[len(nope), -(-num_heads // _HEADS)](
            nope,
            rope,
            keys,
            self._num_saturated,
            rope.stride(0),
            num_heads,
            NOPE=sizes.nope_dim,
            ROPE=sizes.rope_dim,
            PADDED_NOPE=padded(sizes.nope_dim),
            PADDED_ROPE=padded(sizes.rope_dim),
            HEADS=_HEADS,
            LARGEST=torch.finfo(nope.dtype).max,
        )
        return keys

    def values(self, values: torch.Tensor) -> torch.Tensor:
        """See `ExpandedKernels`."""
        grid = (-(-values.numel() // _BOUND_BLOCK),)
        largest = torch.finfo(values.dtype).max
        expanded_kernels.bound[grid](values, self._num_saturated, values.numel(), BLOCK=_BOUND_BLOCK, LARGEST=largest)
        return values.view(len(values), -1, self._sizes.v_dim)

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, is_causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `ExpandedKernels`."""
        sizes, (num_queries, num_heads) = self._sizes, query.shape[:2]
        out = query.new_empty((num_queries, num_heads, sizes.v_dim))
        weight = query.new_empty((num_queries, num_heads), dtype=torch.float32)
        is_large = platform_of(query.device).has_large_memory
        num_rows, num_keys = (128, 64) if is_large else (64, 32)
        widths = [max(_MIN_DOT, padded(width)) for width in (sizes.nope_dim, sizes.rope_dim, sizes.v_dim)]
        if sum(widths) > _WIDE:
            num_keys //= 2
        expanded_kernels.attend_expanded[-(-num_queries // num_rows), num_heads](
            query,
            keys,
            values,
            out,
            weight,
            num_queries,
            len(keys),
            num_heads,
            NOPE=sizes.nope_dim,
            ROPE=sizes.rope_dim,
            V=sizes.v_dim,
            PADDED_NOPE=widths[0],
            PADDED_ROPE=widths[1],
            PADDED_V=widths[2],
            QUERIES=num_rows,
            KEYS=num_keys,
            IS_CAUSAL=is_causal,
            num_warps=8 if is_large else 4,
            num_stages=3 if is_large else 2,
        )
        return out, weight

    def merge(self, total: torch.Tensor, weight: torch.Tensor, part: torch.Tensor, part_weight: torch.Tensor) -> None:
        """See `ExpandedKernels`."""
        num_rows, width = weight.numel(), total.shape[-1]
        expanded_kernels.merge[(-(-num_rows // _ROWS),)](
            total, weight, part, part_weight, num_rows, WIDTH=width, PADDED_WIDTH=padded(width), ROWS=_ROWS
        )


def checked_expansion(
    sizes: ExpandedSizes,
    num_saturated: torch.Tensor,
    off: SwitchedOff,
    parallel_compile: ParallelCompile,
) -> TritonExpandedKernels | None:
    """The kernels, on the device of the counter `num_saturated`. None if they cannot be compiled or are wrong; `off`
    then gets the reason. Launches inside the context that `parallel_compile` returns only compile. Raises the errors
    that CUDA itself reports."""
    kernels, device = TritonExpandedKernels(sizes, num_saturated), num_saturated.device

    def check() -> str | None:
        with parallel_compile():
            why_wrong(kernels, sizes, device)
        return why_wrong(kernels, sizes, device)

    if (reason := why_unusable(check)) is not None:
        off.add("expanded_attention", reason)
        return None
    return kernels


def why_wrong(kernels: ExpandedKernels, sizes: ExpandedSizes, device: torch.device) -> str | None:
    """The reason why the kernels are unreliable, or None. Compares them with the plain implementation for a few keys
    that all queries see, and for the same number of keys with a causal mask."""
    rng = torch.Generator(device).manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, device=device).to(torch.float16)

    plain = PlainExpandedKernels(sizes, torch.zeros((), dtype=torch.int64, device=device))
    query = some(_TRIED, sizes.num_heads, sizes.nope_dim + sizes.rope_dim) * 0.1
    given = some(_TRIED, sizes.num_heads * sizes.nope_dim), some(_TRIED, sizes.rope_dim)
    values = some(_TRIED, sizes.num_heads * sizes.v_dim)
    merged = []
    for way in (kernels, plain):
        keys, attended = way.keys(*given), way.values(values.clone())
        part, weight = way.attend(query, keys, attended, is_causal=True)
        total = part.float()
        way.merge(total, weight, *way.attend(query, keys, attended, is_causal=False))
        merged.append({"averages": total, "weights": weight})
    found, expected = merged
    return why_different(found, expected)
