"""What the engine needs of a model: a batch goes in, logits come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ballast.model.batch import Batch


class Runner(Protocol):
    """A loaded model together with its KV memory."""

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Write the batch's KV and return logits [sampled tokens, real vocabulary].

        Calls `alive` after a layer when its last call is 100 ms ago, so that a long step is told from a dead one.
        """


@runtime_checkable
class CountsExpertReads(Protocol):
    """A runner that knows what it has read."""

    @property
    def expert_bytes_read(self) -> int:
        """Bytes of routed experts' weights that steps have read from host memory so far."""
