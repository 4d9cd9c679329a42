"""Keeps how experts were used while a server runs, for the next start."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ballast.moe.kept_uses import keep_heat
from ballast.weights.gguf import GgufModel

log = logging.getLogger(__name__)

PERIOD_S = 300.0
"""Seconds between two writes of a running server. A file has some hundred kilobytes."""
_CLOSE_S = 30.0
"""Maximum wait for a write that has begun."""


class HeatKeeper:
    """Keeps the heat of a model's experts while its server runs, so that a crash loses little, and at the end. A thread
    of its own writes, so that no step waits for a disk."""

    def __init__(
        self,
        gguf: GgufModel,
        model: str,
        num_used: int,
        heat: Callable[[], NDArray[np.float64] | None],
        period_s: float = PERIOD_S,
    ) -> None:
        """`gguf`, called `model`: its tokens select `num_used` experts. `heat` returns a copy of theirs, [layers, E],
        on any thread; None: there is nothing to keep from now on."""
        self._gguf, self._model, self._num_used = gguf, model, num_used
        self._heat = heat
        self._period_s = period_s
        self._written: NDArray[np.float64] | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ballast-keep-uses", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Keep the last heat, after all steps, unless the disk hangs."""
        self._ending.set()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            log.warning("uses of experts are not kept", extra={"why": f"the disk takes more than {_CLOSE_S:.0f} s"})
            return
        self._keep(self._heat())

    def _run(self) -> None:
        while not self._ending.wait(self._period_s):
            heat = self._heat()
            if heat is None or not self._keep(heat):
                return  # the end tries once more, so a full disk is reported twice at most

    def _keep(self, heat: NDArray[np.float64] | None) -> bool:
        """Keep `heat` if it has changed; returns False if that failed."""
        if heat is None or (self._written is not None and np.array_equal(heat, self._written)):
            return True
        is_kept = keep_heat(self._gguf, self._model, self._num_used, heat)
        if is_kept:
            self._written = heat
        return is_kept
