"""Routed experts, computed by a thread as a device asks for them.

For each routed layer of a step, in order: the device writes activations, and the experts chosen for them, into host
memory and makes the layer's `submitted` word one; the thread makes that zero, computes, writes the results and makes
the layer's `done` word one; the device, which waits for that, makes it zero and takes the results.
Shapes: T the most tokens of a step, D hidden, k experts of a token.
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
        """inputs, results [T, D]; ids, weights [T, k], as Experts.forward takes them; submitted, done [layers], zero.
        A layer that is not submitted within `limit_s`, or then not computed within that and 0.1 s for each token, fails
        its step. `adopt_thread`: the thread is the pool's first,
        for good. ValueError for arrays and layers that do not fit."""
    def begin(self, num_tokens: int) -> None:
        """Expect a step. Raises what failed an earlier one; RuntimeError while one is running; ValueError for more
        tokens than its buffers hold."""
    def finish(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` until the step's layers are computed; returns whether they are. Raises the error of a
        failed step: a computation failed, or the device never submitted a layer. Every word that the device may wait
        for is then one, and no further layer is computed."""
    @property
    def bytes_read(self) -> int:
        """Bytes of experts' weights read so far."""
