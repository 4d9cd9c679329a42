"""Whether the device computes experts as the CPU does, tried before anything relies on it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from ballast._core import kernels
from ballast.model.hybrid.divided_experts import LayerOnDevice
from ballast.model.hybrid.host_memory import panels_of
from ballast.model.spec import ModelSpec

log = logging.getLogger(__name__)

_MOST_DIFFERENCE = 0.05
"""Of the largest result; activations that the CPU rounds to a byte come to a fifth of it."""

Role = Literal["resident", "across"]


def checked(
    layers: Sequence[LayerOnDevice],
    experts: Sequence[kernels.Experts],
    pool: kernels.ThreadPool,
    spec: ModelSpec,
    num_tokens: Sequence[int],
    device: torch.device,
) -> list[LayerOnDevice]:
    """The layers as they are, where experts of each combination of types come out as the CPU computes them, for so many
    tokens each; nothing on the device, and one warning, where a kernel cannot be compiled or is wrong. What CUDA itself
    reports is raised: there is no going on after that."""
    tried: set[tuple[object, ...]] = set()
    try:
        for layer, of_layer in zip(layers, experts, strict=True):
            types = tuple((part.gate.ggml_type, part.up.ggml_type, part.down.ggml_type) for part in panels_of(of_layer))
            roles: tuple[Role, ...] = ("resident", "across")
            for role in roles:
                if getattr(layer, role) and (role, types) not in tried:
                    tried.add((role, types))
                    for count in num_tokens:
                        _compare(layer, role, of_layer, pool, spec, count, device)
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # noqa: BLE001  compilers raise whatever they like, and the CPU can do without them
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        log.warning("the GPU computes no experts in decoding", extra={"reason": reason})
        return [LayerOnDevice()] * len(layers)
    return list(layers)


def _compare(
    layer: LayerOnDevice,
    role: Role,
    experts: kernels.Experts,
    pool: kernels.ThreadPool,
    spec: ModelSpec,
    num_tokens: int,
    device: torch.device,
) -> None:
    """Raises ValueError when the device's results are others than the CPU's."""
    rng = np.random.default_rng(num_tokens)
    slots = np.arange(experts.num_experts) if role == "across" or layer.slots is None else layer.slots.cpu().numpy()
    there = np.flatnonzero(slots >= 0)
    chosen = np.stack([rng.permutation(there)[: spec.num_experts_used] for _ in range(num_tokens)]).astype(np.int32)
    x = rng.standard_normal((num_tokens, spec.hidden), dtype=np.float32)
    weights = rng.random(chosen.shape, dtype=np.float32)
    wanted = np.empty_like(x)
    experts.forward(pool, x, chosen, weights, wanted)
    arguments = [torch.from_numpy(values).to(device) for values in (x, slots[chosen].astype(np.int32), weights)]
    found = sum(part(*arguments).cpu().numpy() for part in getattr(layer, role))
    difference = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    if not difference <= _MOST_DIFFERENCE:
        raise ValueError(f"{role} experts differ from the CPU's by {difference:.2g} for {num_tokens} tokens")
