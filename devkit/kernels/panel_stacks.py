"""Random matrices of several experts, as kernels of a GPU take them."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.model.hybrid.panels.stack import PanelStack, scales_on
from devkit.models.random_blocks import dequantized, random_blocks, random_scales, scaled

NUM_EXPERTS = 3


def stack_of(
    rng: np.random.Generator,
    pool: kernels.ThreadPool,
    kind: GGMLQuantizationType,
    rows: int,
    cols: int,
    device: torch.device,
) -> tuple[PanelStack, NDArray[np.float64]]:
    """(a stack of NUM_EXPERTS random matrices, their weights [E, rows, cols])."""
    data, scales = random_blocks(rng, kind, NUM_EXPERTS * rows, cols), random_scales(rng, kind, NUM_EXPERTS)
    packed = kernels.pack(
        pool,
        kernels.Matrix(data, kind, NUM_EXPERTS * rows, cols, scales),
        kernels.usable_isas()[0],
        activation_bytes=1,
        num_heads=NUM_EXPERTS,
        head_stride=rows,
        num_rows=rows,
    )
    panels = torch.from_numpy(packed.panels.copy()).to(device)
    stack = PanelStack(panels, kind, NUM_EXPERTS, rows, cols, scales_on(device, packed.scales, kind, NUM_EXPERTS))
    return stack, scaled(dequantized(data, kind).reshape(NUM_EXPERTS, rows, cols), scales)
