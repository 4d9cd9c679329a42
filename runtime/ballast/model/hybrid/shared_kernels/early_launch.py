"""Launches kernels of decode steps before the kernel in front of them has ended; see early_kernels.py."""

from __future__ import annotations

import torch

from ballast.model.hybrid.platforms.platform_of import platform_of


def early(device: torch.device) -> dict[str, bool]:
    """Options for the launch of a kernel that begins with `wait_for_previous`."""
    return {"launch_pdl": True} if platform_of(device).launches_early else {}
