"""DeepSeek V2, V3, R1 and Kimi K2 with attention and shared weights on one device and routed experts on the CPU.

The same transformer as csrc/model/deepseek.cpp, on torch tensors. Shapes: T tokens, D hidden, H heads,
L = kv_lora_rank + rope_dim. Activations are float32 throughout.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.model.batch import Batch
from ballast.model.deepseek import ALIVE_EVERY_S
from ballast.model.hybrid.experts import HostExperts
from ballast.model.hybrid.kv_pool import DeviceKvPool
from ballast.model.hybrid.step import Step
from ballast.model.hybrid.weights import AttentionWeights, HybridWeights, LayerWeights, MlpWeights
from ballast.model.rope import build_rope_table
from ballast.model.spec import ModelSpec

Attention = Callable[[torch.Tensor, torch.Tensor, Step], torch.Tensor]
"""query float32 [T, H, L], cache [slots, L] → float32 [T, H, kv_lora_rank]; see `latent_attention`."""


class HybridModel:
    """A loaded model and its KV pool; implements the engine's Runner."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: HybridWeights,
        experts: HostExperts,
        kv: DeviceKvPool,
        num_positions: int,
        device: torch.device,
        attention: Attention,
    ) -> None:
        rope = build_rope_table(spec, num_positions)
        self._spec = spec
        self._weights = weights
        self._experts = experts
        self._kv = kv
        self._device = device
        self._cos = torch.from_numpy(rope.cos).to(device)
        self._sin = torch.from_numpy(rope.sin).to(device)
        self._attend = attention

    @torch.inference_mode()
    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Write the batch's KV; return logits [sampled, vocabulary]. A GPU gets the whole step in its queue at once."""
        apart = self._device.type == "cuda"
        step = Step.from_batch(batch, self._kv.block_tokens, self._device, decodes_apart=apart)
        stream = self._embed(batch.token_ids)
        self._experts.begin(len(stream))
        told = time.monotonic()
        for index, (layer, cache) in enumerate(zip(self._weights.layers, self._kv.layers, strict=True)):
            stream += self._attention(layer.attention, stream, cache, step)
            stream += self._feed_forward(layer, index - self._spec.num_dense_layers, stream)
            if time.monotonic() - told >= ALIVE_EVERY_S:
                alive()
                told = time.monotonic()
        last = self._norm(stream[step.sampled], self._weights.output_norm)
        logits = self._weights.output(last)
        self._experts.finish(alive)
        on_host: NDArray[np.float32] = logits.cpu().numpy()
        return on_host

    @property
    def expert_bytes_read(self) -> int:
        """Bytes of routed experts' weights that steps have read from host memory so far."""
        return self._experts.bytes_read

    def _embed(self, token_ids: NDArray[np.int32]) -> torch.Tensor:
        rows = np.empty((token_ids.size, self._spec.hidden), np.float32)
        kernels.embed(self._weights.embedding, token_ids, rows)
        return torch.from_numpy(rows).to(self._device)

    def _attention(
        self, weights: AttentionWeights, stream: torch.Tensor, cache: torch.Tensor, step: Step
    ) -> torch.Tensor:
        rank = self._spec.kv_lora_rank
        normed = self._norm(stream, weights.norm)
        latent = weights.kv_a(normed)
        key = self._rotate(latent[:, None, rank:], step)[:, 0]
        cache[step.slots] = torch.cat([self._norm(latent[:, :rank], weights.kv_a_norm), key], -1).to(cache.dtype)
        query = self._query(weights, normed, step)
        return weights.output(weights.v_up(self._attend(query, cache, step)).flatten(1))

    def _query(self, weights: AttentionWeights, normed: torch.Tensor, step: Step) -> torch.Tensor:
        """[T, H, L]: carried into the latent space, then the rotated part."""
        if weights.query_down is not None:
            assert weights.query_norm is not None
            normed = self._norm(weights.query_down(normed), weights.query_norm)
        heads = weights.query_up(normed).view(len(normed), self._spec.num_heads, -1)
        nope, rope = heads[..., : self._spec.nope_dim], heads[..., self._spec.nope_dim :]
        return torch.cat([weights.k_up(nope), self._rotate(rope, step)], -1)

    def _feed_forward(self, layer: LayerWeights, routed_index: int, stream: torch.Tensor) -> torch.Tensor:
        """Experts first: they work while the device computes what every token needs."""
        normed = self._norm(stream, layer.ffn_norm)
        if layer.routed is None:
            assert layer.mlp is not None
            return _mlp(layer.mlp, normed)
        self._experts.submit(routed_index, normed, *layer.routed.choose(layer.routed.router(normed)))
        every_token = 0 if layer.mlp is None else _mlp(layer.mlp, normed)
        return self._experts.result(routed_index) + every_token

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self._spec.rms_eps)

    def _rotate(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Pairs (2i, 2i + 1) of [T, heads, rope_dim]."""
        cos, sin = self._cos[step.positions, None], self._sin[step.positions, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


def _mlp(weights: MlpWeights, x: torch.Tensor) -> torch.Tensor:
    return weights.down(F.silu(weights.gate(x)) * weights.up(x))
