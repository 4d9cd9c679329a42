"""What a GPU cannot compute of a model: checked before anything is loaded."""

from __future__ import annotations

from ballast.model.hybrid.common_mixer import common_mixer
from ballast.model.hybrid.sparse.sizes import MOST_CHOSEN
from ballast.model.layers.latent import LatentSpec
from ballast.model.spec import ModelSpec


def why_not_on_gpu(spec: ModelSpec) -> str | None:
    """Why a GPU cannot compute what every token needs: None if it can."""
    mixer = common_mixer(spec)
    if mixer is None:
        return "its layers have different attention, and a GPU computes one kind; the CPU computes all"
    if not isinstance(mixer, LatentSpec) or mixer.index is None or mixer.index.top_k <= MOST_CHOSEN:
        return None
    return (
        f"a token attends to {mixer.index.top_k} positions, and kernels on a GPU choose at most {MOST_CHOSEN}; "
        "the CPU chooses as many"
    )
