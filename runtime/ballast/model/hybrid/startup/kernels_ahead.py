"""Compiles the kernels of a model while its weights are loaded: those of the first layer of each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ballast._core import kernels
from ballast.model.hybrid.experts.device_layers import place_experts
from ballast.model.hybrid.experts.self_check import Kind, kind_of, launch_experts
from ballast.model.hybrid.faults.device_errors import DEVICE_ERRORS, is_full
from ballast.model.hybrid.linear import Linear
from ballast.model.hybrid.panels.autotune import launch_products
from ballast.model.hybrid.panels.panel_linear import PanelLinear, Shape
from ballast.model.hybrid.startup.parallel_compile import CompileAhead
from ballast.model.hybrid.streaming.streamed_experts import MakeExperts
from ballast.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class KernelsAhead:
    """Launches the same kernels as the start, in a context in which launches only compile."""

    compiling: CompileAhead
    spec: ModelSpec
    pool: kernels.ThreadPool
    make_experts: MakeExperts
    most_tokens: int
    """Maximum tokens of a step."""
    expert_sizes: Sequence[int]
    """Numbers of tokens for which kernels of experts are compiled."""
    device: torch.device
    give_back_memory: Callable[[], None]
    """Returns memory that torch keeps for later allocations: blocks of long steps would be split among weights."""
    _shapes: set[Shape] = field(default_factory=set)
    _kinds: set[Kind] = field(default_factory=set)

    def add_linear(self, linear: Linear) -> None:
        """Called after a linear layer was loaded."""
        if isinstance(linear, PanelLinear) and linear.shape not in self._shapes:
            self._shapes.add(linear.shape)
            self._compile(lambda: launch_products(linear, self.most_tokens, self.device))

    def add_experts(self, experts: kernels.Experts) -> None:
        """Called after a layer's experts were loaded into host memory, if the device will read or stream some."""
        if (kind := kind_of(experts)) not in self._kinds:
            self._kinds.add(kind)
            layer = place_experts(experts, (), self.make_experts, self.device, is_readable=True)
            self._compile(lambda: launch_experts(layer, experts, self.pool, self.spec, self.expert_sizes, self.device))
            self.give_back_memory()

    def _compile(self, launch: Callable[[], None]) -> None:
        """Raises the errors that CUDA itself reports, except that its memory is full: then fewer kernels are compiled
        ahead."""
        try:
            with self.compiling.kernels():
                launch()
        except DEVICE_ERRORS as error:
            if not is_full(error):
                raise
        except Exception:  # noqa: BLE001, S110  the check that launches it again gets the same error
            pass
