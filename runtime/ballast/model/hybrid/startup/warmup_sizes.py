"""Sizes of the warm-up steps: numbers of tokens that together launch every kernel of any step.

With these sizes, kernels are compiled and checked while a model is loaded, so that no request waits for a compiler.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable

from ballast.model.hybrid.experts.fused_routing import FEW_PAIRS
from ballast.model.hybrid.experts.products import grouped_int_gemm
from ballast.model.hybrid.experts.products.pair_sizes import is_faster
from ballast.model.hybrid.panels.matmul import MAX_GEMV_TOKENS, gemm_block, grouped_gemm_block
from ballast.model.hybrid.panels.product_sizes import MIN_CUBLAS_TOKENS
from ballast.model.hybrid.shared_kernels.power_of_two import padded
from ballast.model.hybrid.steps.slices import SLICE_SIZES


def sizes_for_experts(most: int, num_used: int, num_experts: int) -> list[int]:
    """Ascending sizes up to and including `most`, for the kernels of experts; a token uses `num_used` of
    `num_experts`."""
    return _with_most(smallest_for_experts(most, num_used, num_experts), most)


def smallest_for_experts(most: int, num_used: int, num_experts: int) -> list[int]:
    """The smallest sizes that launch the same kernels as `sizes_for_experts`."""
    return _first_of_each(lambda count: _kernels_of_experts(count, num_used, num_experts), most)


def sizes_for_steps(most: int, num_used: int, num_experts: int) -> list[int]:
    """As `sizes_for_experts`, for every kernel of a step."""
    firsts = _first_of_each(
        lambda count: (
            _kernels_of_linears(count),
            _kernels_of_attention(count),
            _kernels_of_experts(count, num_used, num_experts),
        ),
        most,
    )
    return _with_most(firsts, most)


def _with_most(firsts: list[int], most: int) -> list[int]:
    """The first of each run of sizes; `most` for the last run."""
    return [*firsts[:-1], most]


def _first_of_each(kernels: Callable[[int], Hashable], most: int) -> list[int]:
    """The first of each run of sizes that share all kernels, up to `most`."""
    return [next(run) for _, run in itertools.groupby(range(1, most + 1), kernels)]


def _kernels_of_linears(count: int) -> Hashable:
    if count >= MIN_CUBLAS_TOKENS:
        return None
    return padded(count), count <= MAX_GEMV_TOKENS, gemm_block(count)


def _kernels_of_attention(count: int) -> Hashable:
    """The kind of attention of a step of one request. Kernels that merge chunks are compiled when they are checked."""
    long_from = SLICE_SIZES.long_from
    return long_from is not None and count >= long_from


def _kernels_of_experts(count: int, num_used: int, num_experts: int) -> Hashable:
    if is_faster(count, num_used, num_experts):
        return None
    block = padded(count) if count <= MAX_GEMV_TOKENS else grouped_gemm_block(count)
    num_pairs = count * num_used
    # Kernels that divide and group few pairs of token and expert are compiled for the padded number of pairs.
    padded_pairs = padded(num_pairs) if count <= block and num_pairs <= FEW_PAIRS else None
    by_codes = None
    if grouped_int_gemm.is_few(count, num_used):
        by_codes = grouped_int_gemm.tile_tokens(count), num_pairs <= grouped_int_gemm.FEW_PAIRS
    return block, count <= MAX_GEMV_TOKENS, padded_pairs, by_codes
