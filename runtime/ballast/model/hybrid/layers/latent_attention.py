"""Latent attention of a slice: in the latent space, or outside it where the slice is long.

Shapes: T tokens, D hidden, H heads.
"""

from __future__ import annotations

import torch

from ballast.model.hybrid.attention.attention import Attention
from ballast.model.hybrid.attention.expanded import ExpandedAttention
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.slices import PRODUCT_TOKENS, even_bounds
from ballast.model.hybrid.step import Step
from ballast.model.hybrid.weights import LatentWeights
from ballast.model.spec import ModelSpec


class LatentAttention:
    """The latent `AttentionKind` of one model."""

    def __init__(
        self, spec: ModelSpec, pointwise: Pointwise, attend: Attention, expanded: ExpandedAttention | None
    ) -> None:
        """`expanded` None: every slice is computed in the latent space, so that there may be no long ones."""
        self._spec = spec
        self._pointwise = pointwise
        self.attend = attend
        self._expanded = expanded

    def __call__(self, weights: LatentWeights, normed: torch.Tensor, cache: torch.Tensor, step: Step) -> torch.Tensor:
        """See `AttentionKind`; in the latent space."""
        heads, latents = self._heads_and_latents(weights, normed)
        nope = weights.k_up(heads[..., : self._spec.latent.nope_dim])
        query = self._pointwise.query_and_cache(nope, heads, latents, weights.kv_a_norm, cache, step)
        attended = self.attend(query, cache, step)
        return weights.output(weights.v_up(attended).flatten(1))

    def long(
        self, weights: LatentWeights, normed: torch.Tensor, cache: torch.Tensor, step: Step, out: torch.Tensor
    ) -> None:
        """See `AttentionKind`; with keys and values brought out of the latent space."""
        assert self._expanded is not None
        spec, num_tokens = self._spec, len(normed)
        query = normed.new_empty((num_tokens, spec.num_heads, spec.latent.nope_dim + spec.rope_dim), dtype=cache.dtype)
        bounds = list(even_bounds(0, num_tokens, PRODUCT_TOKENS))
        for begin, end in bounds:
            heads, latents = self._heads_and_latents(weights, normed[begin:end])
            own = step.rows(begin, end)
            self._pointwise.rotated_query(heads, own, self._expanded.sizes.scale, query[begin:end])
            self._pointwise.cache_rows(latents, weights.kv_a_norm, cache, own)
            del heads, latents
        matrices = self._expanded.weights(weights.k_up, weights.v_up, cache.dtype, cache.device)
        attended = self._expanded(query, matrices, cache, step).flatten(1)
        del query, matrices
        for begin, end in bounds:
            out[begin:end] = weights.output(attended[begin:end])

    def _heads_and_latents(self, weights: LatentWeights, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries by head [T, H, nope_dim + rope_dim] and latents [T, kv_lora_rank + rope_dim], neither rotated."""
        queries, latents = weights.down(normed)
        if weights.query_up is not None:
            assert weights.query_norm is not None
            queries = weights.query_up(self._pointwise.norm(queries, weights.query_norm))
        return queries.view(len(normed), self._spec.num_heads, -1), latents
