"""`Pointwise` in torch's operations, on any device."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from ballast.families.architecture import Unit
from ballast.model.hybrid.attention.device_kv_pool import largest_number
from ballast.model.hybrid.pointwise.pointwise import INDEX_NORM_EPS, HeadWeights, IndexNorm
from ballast.model.hybrid.pointwise.pools import BlockTokens, PooledTokens, PoolMemory
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.short_rows import ShortRows
from ballast.model.rope import RopeTable
from devkit.kernels.short_rows import rounded_rows
from devkit.kernels.torch_pools import keep_blocks, keep_pools
from devkit.kernels.torch_unit import unit_of


class TorchPointwise:
    """`Pointwise` in torch's operations, on any device."""

    def __init__(self, rms_eps: float, rope: RopeTable, device: torch.device, largest_query: float = math.inf) -> None:
        """`largest_query`: what attention can take of a query."""
        self.num_saturated = torch.zeros((), dtype=torch.int64, device=device)
        self._largest_query = largest_query
        self._rms_eps = rms_eps
        self._cos = torch.from_numpy(rope.cos).to(device)
        self._sin = torch.from_numpy(rope.sin).to(device)
        self._scales = None if rope.query_scale is None else torch.from_numpy(rope.query_scale).to(device)
        self._rope_dim = 2 * rope.cos.shape[1]
        self._rotates = rope.rotates

    def add_and_norm(self, stream: torch.Tensor, parts: tuple[torch.Tensor, ...], weight: torch.Tensor) -> torch.Tensor:
        """See `Pointwise`."""
        for part in parts:
            stream += part
        return self.norm(stream, weight)

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `Pointwise`."""
        return F.rms_norm(x, weight.shape, weight, self._rms_eps)

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
        rank = weight.numel()
        key = self._rotated(latents[:, None, rank:], step)[:, 0]
        row = torch.cat([self.norm(latents[:, :rank], weight), key], -1)
        self._keep(row, cache, step, ShortRows.of_latents(rank, self._rope_dim))
        turned = self._rotated(heads[..., heads.shape[-1] - self._rope_dim :], step)
        query = torch.cat([nope, turned], -1)
        return self._bounded(self._scaled(query, step), self._largest_query)

    def cache_rows(self, latents: torch.Tensor, weight: torch.Tensor, cache: torch.Tensor, step: Step) -> None:
        """See `Pointwise`."""
        none = latents.new_empty((len(latents), 0, weight.numel()))
        self.query_and_cache(none, none, latents, weight, cache, step)

    def rotated_query(self, heads: torch.Tensor, step: Step, scale: float, out: torch.Tensor) -> None:
        """See `Pointwise`."""
        turned = self._rotated(heads[..., -self._rope_dim :], step)
        query = torch.cat([heads[..., : -self._rope_dim], turned], -1)
        out.copy_(self._bounded(self._scaled(query, step), self._largest_query) * scale)

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
        turned = []
        for heads, bias, norm in (
            (query, weights.query_bias, weights.query_norm),
            (key, weights.key_bias, weights.key_norm),
        ):
            normed = _biased(heads, bias)
            if norm is not None:
                normed = self.norm(normed.reshape(len(heads), -1, norm.numel()), norm).view(heads.shape)
            turned.append(self._halves_rotated(normed, step.positions))
        row = torch.cat([turned[1].flatten(1), self._values(value, weights).flatten(1)], 1)
        self._keep(row, cache, step, ShortRows.of_heads(key.shape[1], key.shape[2], value.shape[2]))
        return self._bounded(turned[0], self._largest_query)

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
        largest = torch.finfo(keys.dtype).max
        own = F.layer_norm(key, norm.weight.shape, norm.weight, norm.shift, INDEX_NORM_EPS)
        turned = []
        for heads in (query, own[:, None]):
            if self._rope_dim == 0:
                turned.append(heads)
            elif norm.pairs_apart:
                turned.append(self._halves_rotated(heads, step.positions))
            else:
                first, rest = heads.tensor_split((self._rope_dim,), -1)
                turned.append(torch.cat([self._rotated(first, step), rest], -1))
        bounded = self._bounded(turned[1][:, 0], largest)
        if normed is None:
            keys[step.slots] = bounded.to(keys.dtype)
        else:
            normed.copy_(bounded)
        return self._bounded(turned[0], largest).to(keys.dtype)

    def keep_pools(self, tokens: PooledTokens, memory: PoolMemory, step: Step) -> None:
        """See `Pointwise`."""
        keep_pools(tokens, memory, step)

    def block_queries(self, query: torch.Tensor, norm: torch.Tensor, keys: torch.Tensor, step: Step) -> torch.Tensor:
        """See `Pointwise`."""
        normed = self._halves_rotated(self.norm(query, norm), step.positions)
        return self._bounded(normed, torch.finfo(keys.dtype).max).to(keys.dtype)

    def keep_blocks(self, tokens: BlockTokens, memory: PoolMemory, step: Step) -> None:
        """See `Pointwise`."""

        def finish(key: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            normed = self._halves_rotated(self.norm(key, tokens.norm)[None, None], position[None])[0, 0]
            return self._bounded(normed, torch.finfo(memory.keys.dtype).max)

        keep_blocks(tokens, memory, step, finish)

    def gated(self, gate: torch.Tensor, up: torch.Tensor, *, unit: Unit | None = None) -> torch.Tensor:
        """See `Pointwise`."""
        return unit_of(gate, up, unit)

    def gate_rows(self, rows: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `Pointwise`."""
        rows *= (x * weight).sum(1, keepdim=True).sigmoid()
        return rows

    def _keep(self, rows: torch.Tensor, cache: torch.Tensor, step: Step, layout: ShortRows) -> None:
        """Write rows [T, numbers] to the cache. `layout`: if it has 8 bits."""
        bounded = self._bounded(rows, largest_number(cache.dtype))
        cache[step.slots] = rounded_rows(bounded, layout) if cache.dtype == torch.uint8 else bounded.to(cache.dtype)

    @staticmethod
    def _values(value: torch.Tensor, weights: HeadWeights) -> torch.Tensor:
        return _biased(value, weights.value_bias) * weights.value_scale

    def _bounded(self, values: torch.Tensor, largest: float) -> torch.Tensor:
        self.num_saturated += (values.abs() > largest).sum()
        return values.clamp(-largest, largest)

    def _scaled(self, query: torch.Tensor, step: Step) -> torch.Tensor:
        """`query` [T, heads, …] times the factor of each token's position."""
        return query if self._scales is None else query * self._scales[step.positions, None, None]

    def _rotated(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Pairs (2i, 2i + 1) of [T, heads, rope_dim]."""
        if not self._rotates:
            return x
        cos, sin = self._cos[step.positions, None], self._sin[step.positions, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)

    def _halves_rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Pairs (i, i + rope_dim / 2) of [T, heads, rope_dim or more], by positions [T]."""
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        first, second, rest = x.tensor_split((self._rope_dim // 2, self._rope_dim), -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def _biased(heads: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """heads [T, heads, width], bias [heads * width]."""
    return heads if bias is None else heads + bias.view(heads.shape[1:])
