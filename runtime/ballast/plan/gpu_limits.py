"""What a GPU cannot compute of a model: checked before anything is loaded."""

from __future__ import annotations

from ballast.model.hybrid.sparse.sizes import MOST_CHOSEN
from ballast.model.spec import ModelSpec


def why_not_on_gpu(spec: ModelSpec) -> str | None:
    """Why a GPU cannot compute what every token needs: None if it can."""
    if spec.index is None or spec.index.top_k <= MOST_CHOSEN:
        return None
    return (
        f"a token attends to {spec.index.top_k} positions, and kernels on a GPU choose at most {MOST_CHOSEN}; "
        "the CPU chooses as many"
    )
