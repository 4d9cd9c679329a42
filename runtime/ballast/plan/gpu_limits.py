"""Checks before loading whether a GPU can compute a model."""

from __future__ import annotations

from ballast.model.hybrid.common_mixer import common_mixer
from ballast.model.hybrid.sparse.sizes import MOST_CHOSEN
from ballast.model.layers.latent import LatentSpec
from ballast.model.spec import ModelSpec


def why_not_on_gpu(spec: ModelSpec) -> str | None:
    """Why a GPU cannot compute the model's attention; None if it can."""
    mixer = common_mixer(spec)
    if mixer is None:
        return "its layers have different kinds of attention, and a GPU supports one kind; the CPU supports all"
    if not isinstance(mixer, LatentSpec) or mixer.index is None or mixer.index.top_k <= MOST_CHOSEN:
        return None
    return (
        f"a token attends to {mixer.index.top_k} positions, and kernels on a GPU select at most {MOST_CHOSEN}; "
        "the CPU has no limit"
    )
