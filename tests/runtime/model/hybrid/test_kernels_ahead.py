"""Kernels are compiled ahead for every step that an expert layer in host memory can have."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from gguf import GGMLQuantizationType as T

from ballast._core import kernels
from ballast.model.hybrid.experts.division import MAX_SHARED_TOKENS
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.panels.unit import PLAIN, ExpertUnit
from ballast.model.hybrid.startup.kernels_ahead import KernelsAhead
from ballast.model.hybrid.startup.warmup_sizes import smallest_for_experts
from ballast.model.hybrid.streaming.streamed_experts import GroupedExperts
from devkit.models.changed_spec import changed
from devkit.models.float_experts import FloatExperts
from devkit.models.specs.deepseek import R1_SPEC

CPU = torch.device("cpu")
HIDDEN, WIDTH, EXPERTS = 64, 32, 8
SPEC = changed(R1_SPEC, hidden=HIDDEN, num_experts=EXPERTS, num_experts_used=3)


def test_kernels_of_streamed_experts_are_compiled_ahead_once_per_kind() -> None:
    pool, launched = kernels.ThreadPool(1), list[int]()

    def make(gate: PanelStack, up: PanelStack, down: PanelStack, *, unit: ExpertUnit = PLAIN) -> GroupedExperts:
        experts = FloatExperts(gate, up, down, unit=unit)

        def launch(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            launched.append(len(x))
            return experts(x, ids, weights)

        return launch

    def layer() -> kernels.Experts:
        gate, up, down = (
            kernels.Matrix(np.ones((EXPERTS * rows, cols), np.float32), T.F32, EXPERTS * rows, cols)
            for rows, cols in ((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
        )
        return kernels.Experts(gate, up, down, EXPERTS).packed(pool, kernels.usable_isas()[0], activation_bytes=2)

    compiling = cast(Any, SimpleNamespace(kernels=nullcontext))
    given_back: list[int] = []
    sizes = smallest_for_experts(2000, SPEC.routing.num_experts_used, EXPERTS)
    ahead = KernelsAhead(compiling, SPEC, pool, make, 9000, sizes, CPU, lambda: given_back.append(len(launched)))
    ahead.add_experts(layer())
    assert launched == sizes
    assert MAX_SHARED_TOKENS < sizes[-1] < 2000
    assert given_back == [len(sizes)]
    ahead.add_experts(layer())
    assert launched == sizes
