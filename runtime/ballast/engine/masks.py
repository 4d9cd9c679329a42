"""Computes the grammars' masks on another thread during the forward pass."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ballast.engine.sequence import Sequence
from ballast.errors import RequestError

# A backstop: grammars bound their own work.
LIMIT_S = 30.0

Mask = NDArray[np.bool_] | None


class MaskWorker:
    """One thread, started with the first grammar. Call `begin` for the masks of a step, then `take` for each."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        # New threads inherit the engine thread's CPUs, and it may be pinned to one. The main thread never is.
        cpus = os.sched_getaffinity(os.getpid())
        self._executor = ThreadPoolExecutor(1, "ballast-masks", os.sched_setaffinity, (0, cpus))
        self._masks: dict[int, Future[Mask]] = {}

    def begin(self, sequences: Mapping[int, Sequence]) -> None:
        """Start computing the masks of the sequences that have a grammar. Masks of an earlier step that were not taken
        are dropped."""
        self._masks = {
            seq: self._executor.submit(sequence.constraint.allowed)
            for seq, sequence in sequences.items()
            if sequence.constraint is not None
        }

    def take(self, seq: int) -> Mask:
        """The mask [vocabulary] bool; None for a sequence without a grammar.

        Raises RequestError as `ConstraintState.allowed` does, and with status 500 when it takes too long.
        """
        mask = self._masks.pop(seq, None)
        if mask is None:
            return None
        try:
            return mask.result(self._limit_s)
        except TimeoutError:
            mask.cancel()
            raise RequestError(f"the grammar takes longer than {self._limit_s:g} s for one token", status=500) from None
