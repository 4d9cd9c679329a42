"""The recurrent layers that kernels on a GPU support."""

from __future__ import annotations

from ballast.model.layers.delta_net import DeltaNetSpec

CHUNK_TOKENS = 64
"""Maximum tokens of a chunk. Chunks end at multiples of it, counted from the beginning of a request, so that equal
prompts are divided equally in any steps that end there."""
COLUMNS = 32
"""Columns of a head's state that a program computes."""
KEY_DIMS = (16, 32, 64, 128)
"""Widths of keys: powers of two, of which a program keeps all rows of its columns."""


def why_not_supported(mixer: DeltaNetSpec) -> str | None:
    """Why a GPU cannot compute layers with this mixer; None if it can."""
    if mixer.key_dim in KEY_DIMS and mixer.v_dim % COLUMNS == 0:
        return None
    widths = ", ".join(map(str, KEY_DIMS))
    return (
        f"its recurrent layers have keys of {mixer.key_dim} and values of {mixer.v_dim} numbers; kernels on a GPU "
        f"support keys of {widths} and values of a multiple of {COLUMNS}"
    )
