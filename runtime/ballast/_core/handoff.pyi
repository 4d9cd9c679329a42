"""Routed experts, which a thread computes when a device submits them.

Protocol for each routed layer of a step, in order: The device writes activations and their selected experts to host
memory, and sets the layer's `submitted` word to one. The thread resets that word to zero, computes, writes the results
and sets the layer's `done` word to one. The device, which waits for that word, resets it to zero and reads the results.
Shapes: T maximum tokens of a step, D hidden, k experts per token.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import _F32 as F32
from . import _I32 as I32
from . import PybindObject
from .kernels import Experts, ThreadPool

class ExpertWorker(PybindObject):
    def __init__(
        self,
        pool: ThreadPool,
        layers: Sequence[Experts],
        *,
        inputs: F32,
        ids: I32,
        weights: F32,
        results: F32,
        submitted: NDArray[np.uint32],
        done: NDArray[np.uint32],
        limit_s: float,
        adopt_thread: bool,
    ) -> None:
        """inputs, results [T, D]; ids, weights [T, k], as for Experts.forward; submitted, done [layers], zero. A step
        fails if the device does not submit a layer within `limit_s`, or if its computation takes longer than that plus
        0.1 s per token. With `adopt_thread`, the thread permanently becomes the pool's first thread. Raises ValueError
        for arrays and layers whose shapes do not match."""
    def begin(self, num_tokens: int) -> None:
        """Start a step. Raises the error of a failed earlier step; RuntimeError while a step is running; ValueError for
        more tokens than the buffers hold."""
    def finish(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` until the step's layers are computed; returns whether they are. Raises the error of a
        failed step: a computation failed, or the device never submitted a layer. Then all words that the device may
        wait for are one, and no further layer is computed."""
    @property
    def bytes_read(self) -> int:
        """Bytes of experts' weights read so far."""
