"""Attention outside the latent space by flashinfer's kernels, which are compiled while weights are loaded."""

from __future__ import annotations

import torch

from ballast.model.hybrid.agreement import MAX_DIFFERENCE, difference
from ballast.model.hybrid.attention import expanded_kernels
from ballast.model.hybrid.attention.expanded import ExpandedKernels, ExpandedSizes, PlainExpandedKernels
from ballast.model.hybrid.power_of_two import padded

HEAD_DIM, V_DIM = 192, 128
"""The head sizes for which they are compiled: those of all DeepSeek models."""
_TRIED = 200
_HEADS = 16
_ROWS = 16
_BOUND_BLOCK = 4096


class FlashinferExpandedKernels:
    """`ExpandedKernels` on a GPU, for a cache in half precision. Queries, keys, values and results are rounded to half
    precision."""

    def __init__(self, sizes: ExpandedSizes, num_saturated: torch.Tensor) -> None:
        """`num_saturated` int64 []: the counter of infinite numbers, on the device. Raises ImportError."""
        import flashinfer  # imported here, because it takes a second and needs a CUDA device

        self._sizes = sizes
        self._num_saturated = num_saturated
        self._attend = flashinfer.single_prefill_with_kv_cache
        # Sums of half-precision products stay in float32 to the end.
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    def keys(self, nope: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        """See `ExpandedKernels`."""
        sizes = self._sizes
        keys = nope.new_empty((len(nope), sizes.num_heads, sizes.nope_dim + sizes.rope_dim))
        expanded_kernels.place_keys[len(nope), -(-sizes.num_heads // _HEADS)](
            nope,
            rope,
            keys,
            self._num_saturated,
            rope.stride(0),
            sizes.num_heads,
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
        return values.view(len(values), self._sizes.num_heads, self._sizes.v_dim)

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, is_causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `ExpandedKernels`."""
        attended, weight = self._attend(query, keys, values, causal=is_causal, sm_scale=1.0, return_lse=True)
        return attended, weight

    def merge(self, total: torch.Tensor, weight: torch.Tensor, part: torch.Tensor, part_weight: torch.Tensor) -> None:
        """See `ExpandedKernels`."""
        num_rows, width = weight.numel(), total.shape[-1]
        expanded_kernels.merge[(-(-num_rows // _ROWS),)](
            total, weight, part, part_weight, num_rows, WIDTH=width, PADDED_WIDTH=padded(width), ROWS=_ROWS
        )


def why_wrong(kernels: ExpandedKernels, sizes: ExpandedSizes, device: torch.device) -> str | None:
    """The reason why the kernels are unreliable, or None. Compares them with the plain implementation for a few keys
    that all queries see, and for the same number of keys with a causal mask."""
    rng = torch.Generator(device).manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, device=device).to(torch.float16)

    plain = PlainExpandedKernels(sizes, torch.zeros((), dtype=torch.int64, device=device))
    query = some(_TRIED, sizes.num_heads, HEAD_DIM) * 0.1
    given = some(_TRIED, sizes.num_heads * sizes.nope_dim), some(_TRIED, sizes.rope_dim)
    values = some(_TRIED, sizes.num_heads * V_DIM)
    merged = []
    for way in (kernels, plain):
        keys, attended = way.keys(*given), way.values(values.clone())
        part, weight = way.attend(query, keys, attended, is_causal=True)
        total = part.float()
        way.merge(total, weight, *way.attend(query, keys, attended, is_causal=False))
        merged.append((total, weight))
    for what, found, expected in zip(("averages", "weights"), *merged, strict=True):
        by = difference(found.cpu().numpy(), expected.cpu().numpy())
        if not by <= MAX_DIFFERENCE:
            return f"{what} differ from the plain implementation's by {by:.2g} of the largest"
    return None


def compile_single_prefill(device: torch.device) -> None:
    """Compile the kernels, unless flashinfer's cache has them. Raises ImportError, OSError or RuntimeError."""
    from flashinfer.jit.attention import gen_single_prefill_module
    from flashinfer.utils import PosEncodingMode, determine_attention_backend

    half, plain = torch.float16, PosEncodingMode.NONE.value
    backend = determine_attention_backend(device, plain, False, False, half, half)
    spec = gen_single_prefill_module(backend, half, half, half, HEAD_DIM, V_DIM, plain, False, False, False)
    spec.build_and_load()
