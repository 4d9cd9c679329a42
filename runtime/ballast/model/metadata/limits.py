"""Bounds far above any model's, for what a step or the state of a sequence allocates."""

from __future__ import annotations

from collections.abc import Iterable

from ballast.model.layers.layer import Mixer
from ballast.model.metadata.keys import Keys

MAX_HEADS = 1024
MAX_TAPS = 16
MAX_STATE_BYTES = 2 << 30
"""Limit of the state of one sequence. Kimi K3, with 2.8T weights, has 465 MB."""


def check_state(keys: Keys, mixers: Iterable[Mixer], named: str) -> None:
    """Raises ModelError if the states of these layers take more than MAX_STATE_BYTES. `named`: the keys of their sizes,
    with values."""
    num_bytes = sum(state.num_bytes for mixer in mixers for state in mixer.states)
    if num_bytes > MAX_STATE_BYTES:
        raise keys.refuse(
            f"{named}: the state of a sequence takes {num_bytes} bytes; expected at most {MAX_STATE_BYTES}"
        )
