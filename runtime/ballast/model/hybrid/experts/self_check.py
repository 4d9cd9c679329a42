"""Checks that the device computes experts as the CPU does, before they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from ballast.families.architecture import Unit
from ballast.model.hybrid.agreement import MAX_DIFFERENCE, RandomTokens, difference
from ballast.model.hybrid.experts.division import MAX_SHARED_TOKENS
from ballast.model.hybrid.experts.layer_on_device import LayerOnDevice
from ballast.model.hybrid.faults.kernel_check import ParallelCompile, why_unusable
from ballast.model.hybrid.streaming.host_memory import panels_of
from ballast.model.hybrid.streaming.streamed_experts import GroupedExperts
from ballast.model.spec import ModelSpec
from ballast.model.switched_off import Feature, SwitchedOff

_MAX_COMPARED_TOKENS = 32
"""Maximum tokens that are compared; the CPU takes too long for more."""

Role = Literal["gpu_experts", "across"]
"""A field of `LayerOnDevice`."""
_NAMES: Mapping[Role, str] = {"gpu_experts": "GPU", "across": "across"}
_FEATURES: Mapping[Role, Feature] = {"gpu_experts": "gpu_experts", "across": "pcie_share"}
Kind = tuple[tuple[GgmlType, GgmlType, GgmlType, Unit | None, bool], ...]


def checked(
    layers: Sequence[LayerOnDevice],
    experts: Sequence[kernels.Experts],
    pool: kernels.ThreadPool,
    spec: ModelSpec,
    num_tokens: Sequence[int],
    device: torch.device,
    parallel_compile: ParallelCompile,
    off: SwitchedOff,
) -> list[LayerOnDevice]:
    """`layers` unchanged if the device computes them correctly, otherwise layers with nothing on the device; `off` gets
    the reason.

    Computes one layer of each combination of types for each of `num_tokens`, and compares results of few tokens with
    the CPU's. Launches inside the context that `parallel_compile` returns only compile. Raises the errors that CUDA
    itself reports."""
    comparisons = [
        comparison
        for comparison in _comparisons(layers, experts, pool, spec, num_tokens, device)
        if comparison.role == "gpu_experts" or comparison.num_tokens <= MAX_SHARED_TOKENS
    ]

    def check() -> None:
        with parallel_compile():
            for comparison in comparisons:
                comparison.on_device()
        for comparison in comparisons:
            if comparison.num_tokens <= _MAX_COMPARED_TOKENS:
                comparison.compare()
            else:
                comparison.on_device()

    reason = why_unusable(check)
    if reason is None:
        return list(layers)
    for role in sorted({comparison.role for comparison in comparisons}):
        off.add(_FEATURES[role], reason)
    return [LayerOnDevice()] * len(layers)


def launch_experts(
    layer: LayerOnDevice,
    experts: kernels.Experts,
    pool: kernels.ThreadPool,
    spec: ModelSpec,
    num_tokens: Sequence[int],
    device: torch.device,
) -> None:
    """Launch the experts of one layer for each of `num_tokens`. Call this in a context in which launches only
    compile."""
    for comparison in _comparisons([layer], [experts], pool, spec, num_tokens, device):
        comparison.on_device()


def _comparisons(
    layers: Sequence[LayerOnDevice],
    experts: Sequence[kernels.Experts],
    pool: kernels.ThreadPool,
    spec: ModelSpec,
    num_tokens: Sequence[int],
    device: torch.device,
) -> list[_Comparison]:
    return [
        _Comparison(layer, role, of_layer, pool, spec, count, device)
        for layer, role, of_layer in _kinds(layers, experts)
        for count in num_tokens
    ]


def _kinds(
    layers: Sequence[LayerOnDevice], experts: Sequence[kernels.Experts]
) -> Iterator[tuple[LayerOnDevice, Role, kernels.Experts]]:
    """The first layer of each combination of types with experts in device memory, and the first with experts read from
    host memory."""
    seen: set[tuple[Role, Kind]] = set()
    roles: tuple[Role, ...] = ("gpu_experts", "across")
    for layer, of_layer in zip(layers, experts, strict=True):
        for role in roles:
            kind = role, kind_of(of_layer)
            if getattr(layer, role) and kind not in seen:
                seen.add(kind)
                yield layer, role, of_layer


def kind_of(experts: kernels.Experts) -> Kind:
    """The combination of types: those of gate, up and down in each part, what it computes of gate and up, and whether
    it has biases."""
    return tuple(
        (
            part.gate.ggml_type,
            part.up.ggml_type,
            part.down.ggml_type,
            part.unit.unit,
            part.unit.gate_bias is not None,
        )
        for part in panels_of(experts)
    )


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A layer computed for random tokens."""

    layer: LayerOnDevice
    role: Role
    experts: kernels.Experts
    pool: kernels.ThreadPool
    spec: ModelSpec
    num_tokens: int
    device: torch.device

    def on_device(self) -> torch.Tensor:
        """The device's results, [T, D]."""
        return self._computed(self._tokens())

    def _computed(self, tokens: RandomTokens) -> torch.Tensor:
        x, ids, weights = tokens.on(self.device)
        if self.role == "gpu_experts" and self.layer.slots is not None:
            ids = self.layer.slots[ids.long()].int()
        parts: Sequence[GroupedExperts] = getattr(self.layer, self.role)
        return torch.stack([part(x, ids, weights) for part in parts]).sum(0)

    def compare(self) -> None:
        """Raises ValueError if the device's results differ from the CPU's."""
        tokens = self._tokens()
        x, ids, weights = (values.numpy() for values in tokens.on(torch.device("cpu")))
        expected = np.empty_like(x)
        self.experts.forward(self.pool, x, ids, weights, expected)
        found = self._computed(tokens).cpu().numpy()
        by = difference(found, expected)
        if not by <= MAX_DIFFERENCE:
            raise ValueError(
                f"{_NAMES[self.role]} experts differ from the CPU's by {by:.2g} for {self.num_tokens} tokens"
            )

    def _tokens(self) -> RandomTokens:
        """Tokens that use experts that the device has."""
        there = np.arange(self.experts.num_experts)
        if self.role == "gpu_experts" and self.layer.slots is not None:
            there = np.flatnonzero(self.layer.slots.cpu().numpy() >= 0)
        return RandomTokens.draw(self.num_tokens, self.spec.hidden, there, self.spec.routing.num_experts_used)
