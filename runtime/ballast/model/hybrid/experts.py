"""The routed experts of a layer, computed by the CPU where they lie, while the device goes on with something else."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.model.hybrid.weights import RoutedWeights
from ballast.model.spec import ModelSpec


class ExpertCall:
    """One layer's experts at work on one step."""

    def __init__(self, host: HostExperts, weights: RoutedWeights, num_tokens: int, device: torch.device) -> None:
        self._host = host
        self._weights = weights
        self._num_tokens = num_tokens
        self._device = device
        self._arrived = torch.Event(device) if device.type == "cuda" else None
        if self._arrived is not None:
            self._arrived.record()

    def result(self) -> torch.Tensor:
        """float32 [T, D] on the device: computed now, once the activations have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        routed = self._host.compute(self._weights, self._num_tokens)
        return routed.to(self._device, non_blocking=True)


class HostExperts:
    """Buffers that activations and results pass through, for all layers: the next one's activations arrive after the
    last one's results have left."""

    def __init__(self, spec: ModelSpec, pool: kernels.ThreadPool, max_tokens: int, device: torch.device) -> None:
        def buffer(width: int) -> torch.Tensor:
            return torch.empty((max_tokens, width), pin_memory=device.type == "cuda")

        self._spec = spec
        self._pool = pool
        self._device = device
        self._inputs = buffer(spec.hidden)
        self._logits = buffer(spec.num_experts)
        self._results = buffer(spec.hidden)
        self._ids: NDArray[np.int32] = np.empty((max_tokens, spec.num_experts_used), np.int32)
        self._shares: NDArray[np.float32] = np.empty((max_tokens, spec.num_experts_used), np.float32)

    def submit(self, weights: RoutedWeights, x: torch.Tensor) -> ExpertCall:
        """Send x float32 [T, D], the normed activations, on its way to the host."""
        num_tokens = x.shape[0]
        self._inputs[:num_tokens].copy_(x, non_blocking=True)
        self._logits[:num_tokens].copy_(weights.router(x), non_blocking=True)
        return ExpertCall(self, weights, num_tokens, self._device)

    def compute(self, weights: RoutedWeights, num_tokens: int) -> torch.Tensor:
        """Route the activations that arrived and run their experts; float32 [T, D] in host memory."""
        spec = self._spec
        ids, shares = self._ids[:num_tokens], self._shares[:num_tokens]
        kernels.route(
            self._logits[:num_tokens].numpy(),
            weights.bias,
            sigmoid=spec.gating == "sigmoid",
            num_groups=spec.num_groups,
            num_groups_used=spec.num_groups_used,
            group_score_top2=spec.group_score == "top2_sum",
            normalize=spec.normalize_weights,
            scale=spec.weights_scale,
            ids=ids,
            weights=shares,
        )
        results = self._results[:num_tokens]
        weights.experts.forward(self._pool, self._inputs[:num_tokens].numpy(), ids, shares, results.numpy())
        return results
