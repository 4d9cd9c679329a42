"""Routed experts on a GPU, packed as on the CPU. The GPU reads them from its own memory, or over PCIe from host
memory."""

from __future__ import annotations

from dataclasses import replace

import torch

from ballast.model.hybrid.experts.fused_routing import FEW_PAIRS, fused_groups, ordered_groups
from ballast.model.hybrid.experts.products import combine_kernels, grouped_int_gemm
from ballast.model.hybrid.experts.products.pair_sizes import is_faster
from ballast.model.hybrid.experts.products.pair_sums import PairSums, can_decode
from ballast.model.hybrid.panels.layout import FLOAT_TYPES
from ballast.model.hybrid.panels.matmul import (
    MAX_GEMV_TOKENS,
    Groups,
    dequant_gemm,
    gemm_input,
    gemv,
    grouped_gemm_block,
)
from ballast.model.hybrid.panels.stack import PanelStack as PanelStack
from ballast.model.hybrid.panels.unit import PLAIN, ExpertUnit
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.shared_kernels.early_launch import early
from ballast.model.hybrid.steps.slices import PRODUCT_TOKENS, even_bounds

_COMBINE_BLOCK = 1024


class ExpertPanels:
    """Some or all experts of a layer: slot s has the s-th matrix of each stack."""

    def __init__(self, gate: PanelStack, up: PanelStack, down: PanelStack, *, unit: ExpertUnit = PLAIN) -> None:
        """gate, up [rows I, cols D] and down [rows D, cols I]. Raises ValueError for other shapes."""
        shapes = {(stack.num_experts, stack.rows, stack.cols) for stack in (gate, up)}
        if shapes != {(down.num_experts, down.cols, down.rows)}:
            raise ValueError(f"gate and up {sorted(shapes)} do not match down {down.num_experts, down.rows, down.cols}")
        self._gate, self._up, self._down = gate, up, down
        self._unit = unit

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x float32 [T, D], ids int32 [T, k], weights float32 [T, k] → float32 [T, D]: the sum over a token's ids in
        0…num_experts - 1 of weight * down(silu(gate x) * up x), with biases and another unit if there are any. Other
        ids add nothing; a token has each expert at most once. Never waits for the device, so it can be captured."""
        num_tokens, num_used = ids.shape
        x, ids, weights = x.contiguous(), ids.contiguous(), weights.contiguous()
        stacks = self._gate, self._up, self._down
        if is_faster(num_tokens, num_used, self._gate.num_experts) and can_decode(*stacks):
            sums = PairSums(x, ids, weights, self._gate.num_experts)
            sums.add(0, *stacks, unit=self._unit)
            return sums.total
        out = x.new_empty((num_tokens, self._down.rows))
        if num_tokens == 0:
            return out
        if num_tokens > PRODUCT_TOKENS:
            for begin, end in even_bounds(0, num_tokens, PRODUCT_TOKENS):
                out[begin:end] = self(x[begin:end], ids[begin:end], weights[begin:end])
            return out
        pairs = self._multiply(x, ids)
        grid = (num_tokens, -(-self._down.rows // _COMBINE_BLOCK))
        sizes = (self._gate.num_experts, self._down.rows)
        bias = self._unit.down_bias
        combine_kernels.combine_experts[grid](
            pairs,
            ids,
            weights,
            pairs if bias is None else bias,  # any pointer, if there is no bias
            out,
            *sizes,
            HAS_BIAS=bias is not None,
            PAIRS=num_used,
            BLOCK=_COMBINE_BLOCK,
            num_warps=4,
            **early(x.device),
        )
        return out

    def _multiply(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The result of each pair, float32 [T * k, D]; undefined for pairs whose expert is not here."""
        stacks = (self._gate, self._up, self._down)
        if grouped_int_gemm.can_multiply(*stacks, *ids.shape):
            return grouped_int_gemm.multiply(*stacks, x, ids, self._unit)
        groups = group_by_expert(ids, self._gate.num_experts)
        pairs = x.new_empty((ids.numel(), self._down.rows))
        multiply = self._multiply_few if groups.block <= MAX_GEMV_TOKENS else self._multiply_many
        multiply(x, ids, groups, pairs)
        return pairs

    def _multiply_few(self, x: torch.Tensor, ids: torch.Tensor, groups: Groups, pairs: torch.Tensor) -> None:
        hidden = x.new_zeros((len(pairs), self._gate.rows))  # tiles also read pairs without an expert here
        gemv(self._gate, x, hidden, groups)
        if self._unit.is_plain:
            gemv(self._up, x, hidden, groups, gate=hidden)
        else:
            up = torch.empty_like(hidden)
            gemv(self._up, x, up, groups)
            self._apply_unit(hidden, up, ids)
        gemv(self._down, hidden, pairs, replace(groups, sharing=1))

    def _multiply_many(self, x: torch.Tensor, ids: torch.Tensor, groups: Groups, pairs: torch.Tensor) -> None:
        hidden = x.new_zeros((len(pairs), self._gate.rows))  # pairs without an expert here are also split
        given = gemm_input(x, self._gate.ggml_type)
        dequant_gemm(self._gate, given, hidden, groups)
        if (self._gate.ggml_type in FLOAT_TYPES) != (self._up.ggml_type in FLOAT_TYPES):
            given = gemm_input(x, self._up.ggml_type)
        if self._unit.is_plain:
            dequant_gemm(self._up, given, hidden, groups, gate=hidden)
        else:
            up = torch.zeros_like(hidden)
            dequant_gemm(self._up, given, up, groups)
            self._apply_unit(hidden, up, ids)
            del up
        del given
        dequant_gemm(self._down, gemm_input(hidden, self._down.ggml_type), pairs, replace(groups, sharing=1))

    def _apply_unit(self, gate: torch.Tensor, up: torch.Tensor, ids: torch.Tensor) -> None:
        """Replace the products with gate by hidden values, each [T * k, I]; see the kernel."""
        num_pairs, width = gate.shape
        gate_bias, up_bias, alpha, limit = self._unit.gate_and_up(gate)
        combine_kernels.apply_unit[num_pairs, -(-width // _COMBINE_BLOCK)](
            gate,
            up,
            ids,
            gate_bias,
            up_bias,
            self._gate.num_experts,
            width,
            alpha,
            limit,
            BLOCK=_COMBINE_BLOCK,
            **self._unit.constants,
            num_warps=4,
            **early(gate.device),
        )


def group_by_expert(ids: torch.Tensor, num_experts: int) -> Groups:
    """Group the pairs of token and expert, ids int32 [T, k], by expert; pairs whose expert is not here are in no tile.
    An expert has the fewest tiles that hold its pairs. Never waits for the device: the number of tiles is the maximum
    that could be needed."""
    num_tokens, num_used = ids.shape
    num_pairs = ids.numel()
    # A token has each expert at most once: with so few tokens, one tile holds all of an expert's pairs.
    block = num_tokens if num_tokens <= MAX_GEMV_TOKENS else grouped_gemm_block(num_tokens)
    num_tiles = min(num_pairs, num_experts + num_pairs // block)
    if platform_of(ids.device).has_fast_launches:
        if num_tokens <= block and num_pairs <= FEW_PAIRS:
            return Groups(*fused_groups(ids, num_experts), num_used, block)
        return Groups(*ordered_groups(ids, num_experts, block, num_tiles), num_used, block)
    flat = ids.reshape(-1)
    keys = torch.where((flat >= 0) & (flat < num_experts), flat, num_experts)
    keys, order = keys.sort(stable=True)
    begins = torch.searchsorted(keys, torch.arange(num_experts + 1, dtype=torch.int32, device=ids.device))
    lasts = ((begins.diff() + (block - 1)) // block).cumsum(0)
    tile = torch.arange(num_tiles, device=ids.device)
    expert = torch.searchsorted(lasts, tile, right=True)
    is_tile = expert < num_experts
    expert = expert.clamp(max=num_experts - 1)
    before = torch.where(expert > 0, lasts[expert - 1], 0)
    begin = begins[expert] + (tile - before) * block
    end = torch.minimum(begin + block, begins[expert + 1])
    tiles = torch.stack([torch.where(is_tile, expert, -1), begin, torch.where(is_tile, end, begin)], 1)
    return Groups(order.int(), tiles.int(), num_used, block)
