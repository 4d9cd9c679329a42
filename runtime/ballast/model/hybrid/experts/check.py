"""Whether the device computes experts as the CPU does, tried before anything relies on it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from gguf import GGMLQuantizationType as GgmlType
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.errors import first_line
from ballast.model.hybrid.experts.divided import LayerOnDevice
from ballast.model.hybrid.experts.division import MOST_SHARED_TOKENS
from ballast.model.hybrid.streaming.host_memory import panels_of
from ballast.model.hybrid.streaming.streamed_experts import GroupedExperts
from ballast.model.spec import ModelSpec

log = logging.getLogger(__name__)

_MOST_DIFFERENCE = 0.05
"""Of the largest result; activations that the CPU rounds to a byte come to a fifth of it."""

_MOST_COMPARED_TOKENS = 32
"""More take the CPU too long."""

Role = Literal["resident", "across"]
Kind = tuple[tuple[GgmlType, GgmlType, GgmlType], ...]


def checked(
    layers: Sequence[LayerOnDevice],
    experts: Sequence[kernels.Experts],
    pool: kernels.ThreadPool,
    spec: ModelSpec,
    num_tokens: Sequence[int],
    device: torch.device,
    rehearsal: Callable[[], AbstractContextManager[None]],
) -> list[LayerOnDevice]:
    """The layers as they are, where experts of each combination of types can be computed for so many tokens each, and
    for few of them come out as the CPU computes them; nothing on the device, and one warning, where a kernel cannot be
    compiled or is wrong. What CUDA itself reports is raised: there is no going on after that. In the context that
    `rehearsal` gives, launches only compile."""
    trials = [
        _Trial(layer, role, of_layer, pool, spec, count, device)
        for layer, role, of_layer in _kinds(layers, experts)
        for count in num_tokens
        if role == "resident" or count <= MOST_SHARED_TOKENS
    ]
    try:
        with rehearsal():
            for trial in trials:
                trial.on_device()
        for trial in trials:
            if trial.num_tokens <= _MOST_COMPARED_TOKENS:
                trial.compare()
            else:
                trial.on_device()
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # noqa: BLE001  compilers raise whatever they like, and the CPU can do without them
        reason = first_line(error)
        log.warning("the GPU computes no experts in decoding", extra={"reason": reason})
        return [LayerOnDevice()] * len(layers)
    return list(layers)


def _kinds(
    layers: Sequence[LayerOnDevice], experts: Sequence[kernels.Experts]
) -> Iterator[tuple[LayerOnDevice, Role, kernels.Experts]]:
    """The first layer of each combination of types, for each way in which the device has its experts."""
    seen: set[tuple[Role, Kind]] = set()
    roles: tuple[Role, ...] = ("resident", "across")
    for layer, of_layer in zip(layers, experts, strict=True):
        for role in roles:
            kind = role, kind_of(of_layer)
            if getattr(layer, role) and kind not in seen:
                seen.add(kind)
                yield layer, role, of_layer


def kind_of(experts: kernels.Experts) -> Kind:
    """Their combination of types: of gate, up and down, in each part."""
    return tuple((part.gate.ggml_type, part.up.ggml_type, part.down.ggml_type) for part in panels_of(experts))


@dataclass(frozen=True, slots=True)
class _Trial:
    """Random tokens of one layer."""

    layer: LayerOnDevice
    role: Role
    experts: kernels.Experts
    pool: kernels.ThreadPool
    spec: ModelSpec
    num_tokens: int
    device: torch.device

    def on_device(self) -> torch.Tensor:
        """What the device makes of them, [T, D]."""
        x, chosen, weights = self._given()
        slots = torch.from_numpy(self._slots()[chosen].astype(np.int32))
        arguments = [values.to(self.device) for values in (torch.from_numpy(x), slots, torch.from_numpy(weights))]
        parts: Sequence[GroupedExperts] = getattr(self.layer, self.role)
        return torch.stack([part(*arguments) for part in parts]).sum(0)

    def compare(self) -> None:
        """Raises ValueError when the device's results are others than the CPU's."""
        x, chosen, weights = self._given()
        wanted = np.empty_like(x)
        self.experts.forward(self.pool, x, chosen, weights, wanted)
        found = self.on_device().cpu().numpy()
        difference = float(np.abs(found - wanted).max() / np.abs(wanted).max())
        if not difference <= _MOST_DIFFERENCE:
            raise ValueError(
                f"{self.role} experts differ from the CPU's by {difference:.2g} for {self.num_tokens} tokens"
            )

    def _slots(self) -> NDArray[np.int64]:
        if self.role == "across" or self.layer.slots is None:
            return np.arange(self.experts.num_experts)
        slots: NDArray[np.int64] = self.layer.slots.cpu().numpy()
        return slots

    def _given(self) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        """Activations, experts that are there, weights."""
        rng = np.random.default_rng(self.num_tokens)
        there = np.flatnonzero(self._slots() >= 0)
        chosen = [rng.permutation(there)[: self.spec.num_experts_used] for _ in range(self.num_tokens)]
        ids = np.stack(chosen).astype(np.int32)
        x = rng.standard_normal((self.num_tokens, self.spec.hidden), dtype=np.float32)
        return x, ids, rng.random(ids.shape, dtype=np.float32)
