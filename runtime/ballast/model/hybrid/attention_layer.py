"""The attention of a layer, from its normed input to what is added to the stream.

A long step is computed slice by slice, so that queries and what is made of them are bounded. A slice's latents are in
the cache before its queries look there. Shapes: T tokens, D hidden, H heads.
"""

from __future__ import annotations

import torch

from ballast.model.batch import Batch
from ballast.model.hybrid.attention.expanded import ExpandedAttention
from ballast.model.hybrid.attention.latent import Attention
from ballast.model.hybrid.pieces import Pieces, drained
from ballast.model.hybrid.pointwise import Pointwise
from ballast.model.hybrid.slices import PRODUCT_TOKENS, SliceSizes, even_bounds
from ballast.model.hybrid.step import Step
from ballast.model.hybrid.weights import AttentionWeights
from ballast.model.spec import ModelSpec


class AttentionLayer:
    """Attention of one model's layers."""

    def __init__(
        self,
        spec: ModelSpec,
        pointwise: Pointwise,
        attend: Attention,
        expanded: ExpandedAttention | None,
        slices: SliceSizes,
    ) -> None:
        """`expanded` None: every slice is computed in the latent space, so that `slices` may have no long ones."""
        assert expanded is not None or slices.long_from is None
        self._spec = spec
        self._pointwise = pointwise
        self._attend = attend
        self._expanded = expanded
        self.slices = slices
        """How steps that are given are cut."""

    def prepare(self, step: Step) -> None:
        """As `Attention.prepare`."""
        self._attend.prepare(step)

    def prepared(self, batch: Batch, device: torch.device) -> Step:
        """The batch's tables on the device, cut and planned."""
        step = Step.from_batch(batch, device, self.slices)
        self._attend.prepare(step)
        return step

    def __call__(
        self, weights: AttentionWeights, normed: torch.Tensor, cache: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """normed float32 [T, D], cache [slots, kv_lora_rank + rope_dim] → float32 [T, D]; the tokens' rows of the cache
        are written."""
        return drained(self.pieces(weights, normed, cache, step))

    def pieces(
        self, weights: AttentionWeights, normed: torch.Tensor, cache: torch.Tensor, step: Step
    ) -> Pieces[torch.Tensor]:
        """As a call, a slice each time that the generator is advanced."""
        if not step.slices:
            attended = self._in_latent_space(weights, normed, cache, step)
            yield
            return attended
        out = torch.empty_like(normed)
        for part in step.slices:
            rows, own = normed[part.begin : part.end], out[part.begin : part.end]
            if part.is_long:
                self._outside(weights, rows, cache, part.step, own)
            else:
                own.copy_(self._in_latent_space(weights, rows, cache, part.step))
            yield
        return out

    def _in_latent_space(
        self, weights: AttentionWeights, normed: torch.Tensor, cache: torch.Tensor, step: Step
    ) -> torch.Tensor:
        heads, latents = self._heads_and_latents(weights, normed)
        nope = weights.k_up(heads[..., : self._spec.latent.nope_dim])
        query = self._pointwise.query_and_cache(nope, heads, latents, weights.kv_a_norm, cache, step)
        attended = self._attend(query, cache, step)
        return weights.output(weights.v_up(attended).flatten(1))

    def _outside(
        self, weights: AttentionWeights, normed: torch.Tensor, cache: torch.Tensor, step: Step, out: torch.Tensor
    ) -> None:
        """Attention with keys and values brought out of the latent space, into `out`."""
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

    def _heads_and_latents(self, weights: AttentionWeights, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries by head [T, H, nope_dim + rope_dim] and latents [T, kv_lora_rank + rope_dim], neither rotated."""
        queries, latents = weights.down(normed)
        if weights.query_up is not None:
            assert weights.query_norm is not None
            queries = weights.query_up(self._pointwise.norm(queries, weights.query_norm))
        return queries.view(len(normed), self._spec.num_heads, -1), latents
