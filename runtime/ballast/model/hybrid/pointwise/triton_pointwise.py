"""`Pointwise` on a GPU: one Triton kernel per operation, where torch needs several."""

from __future__ import annotations

import math
from typing import Any

import torch

from ballast.families.architecture import Unit
from ballast.model.hybrid.panels.unit import kernel_unit
from ballast.model.hybrid.pointwise import block_kernels, pointwise_kernels
from ballast.model.hybrid.pointwise.pointwise import INDEX_NORM_EPS, HeadWeights, IndexNorm
from ballast.model.hybrid.pointwise.pools import BlockTokens, PooledTokens, PoolMemory
from ballast.model.hybrid.pointwise.triton_pools import keep_pools, leave_states
from ballast.model.hybrid.shared_kernels.early_launch import early
from ballast.model.hybrid.shared_kernels.power_of_two import padded
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.short_rows import LARGEST, ShortRows
from ballast.model.rope import RopeTable

_GATED_BLOCK = 1024
_QUERY_HEADS = 8


class TritonPointwise:
    """`Pointwise` for one model."""

    def __init__(self, rms_eps: float, rope: RopeTable, device: torch.device, largest_query: float = math.inf) -> None:
        """`largest_query`: the largest number that attention accepts in a query."""
        self.num_saturated = torch.zeros((), dtype=torch.int64, device=device)
        self._largest_query = largest_query
        self._rms_eps = rms_eps
        self._cos = torch.from_numpy(rope.cos).to(device)
        self._sin = torch.from_numpy(rope.sin).to(device)
        self._rotates, self._has_scales = rope.rotates, rope.query_scale is not None
        # Any pointer, if there are none.
        self._scales = self._cos if rope.query_scale is None else torch.from_numpy(rope.query_scale).to(device)
        self._rope_dim = 2 * rope.cos.shape[1]

    def add_and_norm(self, stream: torch.Tensor, parts: tuple[torch.Tensor, ...], weight: torch.Tensor) -> torch.Tensor:
        """See `Pointwise`; at most three parts."""
        num_tokens, width = stream.shape
        normed = stream.new_empty((num_tokens, width))
        first, second, third = (*parts, *[stream] * (3 - len(parts)))
        padded_width = padded(width)
        pointwise_kernels.add_and_norm[(num_tokens,)](
            stream,
            first,
            second,
            third,
            weight,
            normed,
            self._rms_eps,
            PARTS=len(parts),
            WIDTH=width,
            STRIDE=stream.stride(0),
            PADDED_WIDTH=padded_width,
            num_warps=max(1, min(16, padded_width // 256)),
            **early(stream.device),
        )
        return normed

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `Pointwise`."""
        return self.add_and_norm(x, (), weight)

    def query_and_cache(
        self,
        nope: torch.Tensor,
        heads: torch.Tensor,
        latents: torch.Tensor,
        weight: torch.Tensor,
        cache: torch.Tensor,
        step: Step,
    ) -> torch.Tensor:
        """See `Pointwise`."""
        num_tokens, num_heads, rank = nope.shape
        query = nope.new_empty((num_tokens, num_heads, rank + self._rope_dim))
        is_short = cache.dtype == torch.uint8
        others = [cache.view(kind) if is_short else cache for kind in (torch.float32, torch.bfloat16)]
        pointwise_kernels.query_and_cache[(num_tokens, num_heads + 1)](
            nope,
            heads,
            latents,
            weight,
            step.positions,
            step.slots,
            self._cos,
            self._sin,
            self._scales,
            query,
            cache,
            *others,
            self.num_saturated,
            num_heads,
            self._rms_eps,
            HAS_SCALES=self._has_scales,
            ROTATES=self._rotates,
            HEAD_DIM=heads.shape[2],
            HEADS_STRIDE=heads.stride(0),
            RANK=rank,
            ROPE=self._rope_dim,
            LATENT_STRIDE=latents.stride(0),
            ROW_WIDTH=cache.shape[1],
            PARTS=len(ShortRows.of_latents(rank, self._rope_dim).widths) if is_short else 0,
            PADDED_RANK=padded(rank),
            PADDED_PAIRS=padded(self._rope_dim // 2),
            LARGEST=LARGEST if is_short else torch.finfo(cache.dtype).max,
            LARGEST_QUERY=self._largest_query,
            num_warps=1,
            **early(nope.device),
        )
        return query

    def cache_rows(self, latents: torch.Tensor, weight: torch.Tensor, cache: torch.Tensor, step: Step) -> None:
        """See `Pointwise`."""
        none = latents.new_empty((len(latents), 0, weight.numel()))
        self.query_and_cache(none, none, latents, weight, cache, step)

    def rotated_query(self, heads: torch.Tensor, step: Step, scale: float, out: torch.Tensor) -> None:
        """See `Pointwise`."""
        num_tokens, num_heads, head_dim = heads.shape
        pointwise_kernels.rotated_query[num_tokens, -(-num_heads // _QUERY_HEADS)](
            heads,
            step.positions,
            self._cos,
            self._sin,
            self._scales,
            out,
            self.num_saturated,
            scale,
            num_heads,
            HAS_SCALES=self._has_scales,
            ROTATES=self._rotates,
            HEADS_STRIDE=heads.stride(0),
            NOPE=head_dim - self._rope_dim,
            ROPE=self._rope_dim,
            PADDED_NOPE=padded(head_dim - self._rope_dim),
            PADDED_PAIRS=padded(self._rope_dim // 2),
            HEADS=_QUERY_HEADS,
            LARGEST_QUERY=self._largest_query,
            **early(heads.device),
        )

    def heads_and_cache(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        weights: HeadWeights,
        cache: torch.Tensor,
        step: Step,
    ) -> torch.Tensor:
        """See `Pointwise`."""
        num_tokens, num_heads, head_dim = query.shape
        num_kv_heads, v_dim = value.shape[1:]
        query, query_bias, query_norm = self._all_normed(query, weights.query_bias, weights.query_norm)
        key, key_bias, key_norm = self._all_normed(key, weights.key_bias, weights.key_norm)
        rotated = torch.empty((num_tokens, num_heads, head_dim), device=query.device)
        is_short = cache.dtype == torch.uint8
        rest = head_dim - self._rope_dim
        pointwise_kernels.heads_and_cache[(num_tokens, num_heads + 2 * num_kv_heads)](
            query,
            key,
            value,
            # Any pointer, if there is no bias.
            *(query if given is None else given for given in (query_bias, key_bias, weights.value_bias)),
            *(query if given is None else given for given in (query_norm, key_norm)),
            step.positions,
            step.slots,
            self._cos,
            self._sin,
            rotated,
            cache,
            cache.view(torch.float32) if is_short else cache,
            self.num_saturated,
            num_heads,
            num_kv_heads,
            self._rms_eps,
            weights.value_scale,
            IS_SHORT=is_short,
            QUERY_STRIDE=query.stride(0),
            HEAD_STRIDE=query.stride(1),
            KEY_STRIDE=key.stride(0),
            VALUE_STRIDE=value.stride(0),
            HAS_QUERY_BIAS=query_bias is not None,
            HAS_KEY_BIAS=key_bias is not None,
            HAS_VALUE_BIAS=weights.value_bias is not None,
            HAS_QUERY_NORM=query_norm is not None,
            HAS_KEY_NORM=key_norm is not None,
            KEY_DIM=head_dim,
            V_DIM=v_dim,
            ROPE=self._rope_dim,
            ROW_WIDTH=cache.shape[1],
            PADDED_PAIRS=padded(self._rope_dim // 2),
            PADDED_REST=padded(rest) if rest else 0,
            PADDED_V=padded(v_dim),
            LARGEST=LARGEST if is_short else torch.finfo(cache.dtype).max,
            LARGEST_QUERY=self._largest_query,
            num_warps=1,
            **early(query.device),
        )
        return rotated

    def _all_normed(
        self, heads: torch.Tensor, bias: torch.Tensor | None, norm: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """`heads` [T, heads, K] with bias and norm applied if the norm spans all heads, because the kernel processes
        heads separately; otherwise unchanged. Followed by the bias and the norm that remain to be applied."""
        if norm is None or norm.numel() == heads.shape[2]:
            return heads, bias, norm
        rows = heads.flatten(1) if bias is None else heads.flatten(1) + bias
        return self.norm(rows, norm).view(heads.shape), None, None

    def index_query_and_key(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        norm: IndexNorm,
        keys: torch.Tensor,
        step: Step,
        normed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `Pointwise`."""
        num_tokens, num_heads, key_dim = query.shape
        kept = keys if normed is None else normed  # of one type with the query
        rotated = torch.empty((num_tokens, num_heads, key_dim), dtype=kept.dtype, device=query.device)
        pointwise_kernels.index_query_and_key[(num_tokens, num_heads + 1)](
            query,
            key,
            norm.weight,
            norm.shift,
            step.positions,
            step.slots,
            self._cos,
            self._sin,
            rotated,
            kept,
            self.num_saturated,
            num_heads,
            INDEX_NORM_EPS,
            BY_SLOT=normed is None,
            QUERY_STRIDE=query.stride(0),
            KEY_STRIDE=key.stride(0),
            KEY_DIM=key_dim,
            ROPE=self._rope_dim,
            PAIRS_APART=norm.pairs_apart,
            PADDED_PAIRS=padded(self._rope_dim // 2),
            PADDED_REST=padded(max(1, key_dim - self._rope_dim)),
            LARGEST=torch.finfo(keys.dtype).max,
            num_warps=1,
            **early(query.device),
        )
        return rotated.to(keys.dtype)

    def keep_pools(self, tokens: PooledTokens, memory: PoolMemory, step: Step) -> None:
        """See `Pointwise`."""
        keep_pools(tokens, memory, step)

    def block_queries(self, query: torch.Tensor, norm: torch.Tensor, keys: torch.Tensor, step: Step) -> torch.Tensor:
        """See `Pointwise`."""
        num_tokens, num_heads, key_dim = query.shape
        normed = torch.empty(query.shape, dtype=keys.dtype, device=query.device)
        block_kernels.norm_queries[num_tokens, num_heads](
            *(query, norm, step.positions, self._cos, self._sin, normed, self.num_saturated, self._rms_eps),
            STRIDE=query.stride(0),
            **self._index_constants(key_dim, keys.dtype),
        )
        return normed

    def keep_blocks(self, tokens: BlockTokens, memory: PoolMemory, step: Step) -> None:
        """See `Pointwise`."""
        rows, keys, states = step.states, tokens.keys.contiguous(), memory.states
        assert rows is not None, "steps of models with blocks have states"
        block_kernels.write_means[(len(keys),)](
            *(keys, tokens.norm, states, step.positions, step.slots, rows.owners, rows.begins, rows.before),
            *(self._cos, self._sin, memory.keys, self.num_saturated, self._rms_eps),
            POOL=states.shape[1] + 1,
            **self._index_constants(keys.shape[1], memory.keys.dtype),
        )
        leave_states(keys, None, memory, step)

    def _index_constants(self, key_dim: int, dtype: torch.dtype) -> dict[str, Any]:
        """Constants of kernels that norm and rotate keys or queries of an indexer."""
        return {
            "KEY": key_dim,
            "ROPE": self._rope_dim,
            "PADDED_PAIRS": padded(self._rope_dim // 2),
            "PADDED_REST": padded(max(1, key_dim - self._rope_dim)),
            "LARGEST": torch.finfo(dtype).max,
            "num_warps": 1,
        }

    def gated(self, gate: torch.Tensor, up: torch.Tensor, *, unit: Unit | None = None) -> torch.Tensor:
        """See `Pointwise`."""
        num_tokens, width = gate.shape
        out = gate.new_empty((num_tokens, width))
        grid = (num_tokens, -(-width // _GATED_BLOCK))
        kind, alpha, limit = kernel_unit(unit)
        given = gate, up, out, width, gate.stride(0), alpha, limit
        pointwise_kernels.gated[grid](*given, UNIT=kind, BLOCK=_GATED_BLOCK, **early(gate.device))
        return out

    def gate_rows(self, rows: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `Pointwise`."""
        num_tokens, width = rows.shape
        padded_width = padded(width)
        pointwise_kernels.gate_rows[(num_tokens,)](
            rows,
            x,
            weight,
            WIDTH=width,
            STRIDE=x.stride(0),
            PADDED_WIDTH=padded_width,
            num_warps=max(1, min(16, padded_width // 256)),
            **early(rows.device),
        )
        return rows
