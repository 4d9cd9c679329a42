"""Computes the masks of grammars on helper threads during the forward pass."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from queue import SimpleQueue

from ballast.awake_clock import AwakeClock
from ballast.engine.sampling.constraint import Mask, broken_grammar
from ballast.engine.sequence import Sequence
from ballast.errors import RequestError

# A last resort: grammars limit their own work to about 50 ms per token.
LIMIT_S = 5.0
"""How long a step waits for all of its masks after the model has computed its logits."""
MAX_LATE = 32
"""Most masks that may still be computed after their step timed out: each occupies a thread, and perhaps a core."""

_Jobs = SimpleQueue[tuple[Future[Mask], Callable[[], Mask]] | None]


class MaskWorker:
    """Call `begin` for the masks of a step, then `take` for each.

    Each mask of a step has its own thread, so a slow mask does not delay others. Threads are started on demand and
    kept. They are daemons, so a hanging one does not prevent the process from ending.
    """

    def __init__(self, limit_s: float | None = None, max_late: int = MAX_LATE) -> None:
        """`limit_s`: by default LIMIT_S."""
        self._limit_s = LIMIT_S if limit_s is None else limit_s
        self._max_late = max_late
        self._waited_s = 0.0
        # New threads inherit the engine thread's affinity, perhaps one CPU. The main thread is never pinned.
        self._cpus = os.sched_getaffinity(os.getpid())
        self._jobs: _Jobs = SimpleQueue()
        self._masks: dict[int, Future[Mask]] = {}
        self._late: set[Future[Mask]] = set()
        self.threads: list[threading.Thread] = []
        weakref.finalize(self, self._jobs.put, None)

    def begin(self, sequences: Mapping[int, Sequence]) -> None:
        """Start computing the masks of the sequences that have a grammar. Masks of an earlier step that were not taken
        are dropped."""
        self._late = {mask for mask in (*self._late, *self._masks.values()) if not mask.done()}
        self._waited_s = 0.0
        self._masks = {}
        for seq, sequence in sequences.items():
            if sequence.constraint is not None:
                self._masks[seq] = self._submit(sequence.constraint.allowed)
        for _ in range(len(self.threads), len(self._late) + len(self._masks)):
            self._start_thread()

    def take(self, seq: int) -> Mask:
        """The mask; None for a sequence without a grammar.

        Raises RequestError as `ConstraintState.allowed` does; with status 500 if that takes too long or fails, and 503
        if too many others hang already.
        """
        mask = self._masks.pop(seq, None)
        if mask is None:
            return None
        if not self._wait_for(mask):
            self._late.add(mask)
            message = f"the grammar takes longer than {self._limit_s:g} s for one token"
            raise RequestError(message, status=500, code="grammar_too_slow")
        try:
            return mask.result()
        except RequestError:
            raise
        except BaseException as error:
            raise broken_grammar(error) from error

    def _wait_for(self, mask: Future[Mask]) -> bool:
        """Wait for the mask. Returns False if the step's time limit for masks passed first."""
        if mask.done():
            return True
        clock = AwakeClock.for_limit(self._limit_s)
        while not mask.done() and (left_s := self._limit_s - self._waited_s - clock.now()) > 0:
            wait([mask], min(left_s, self._limit_s / 10))
        self._waited_s += clock.now()
        return mask.done()

    def _submit(self, work: Callable[[], Mask]) -> Future[Mask]:
        mask: Future[Mask] = Future()
        if len(self._late) >= self._max_late:
            message = f"{len(self._late)} grammars hang; try again later"
            mask.set_exception(RequestError(message, status=503, code="grammar_threads_busy"))
        else:
            self._jobs.put((mask, work))
        return mask

    def _start_thread(self) -> None:
        thread = threading.Thread(
            target=_compute, args=(self._jobs, self._cpus), name=f"ballast-masks_{len(self.threads)}", daemon=True
        )
        thread.start()
        self.threads.append(thread)


def _compute(jobs: _Jobs, cpus: set[int]) -> None:
    """Run jobs until None arrives, which stays queued for the other threads."""
    with contextlib.suppress(OSError):  # the CPUs may no longer be allowed
        os.sched_setaffinity(0, cpus)
    while (job := jobs.get()) is not None:
        mask, work = job
        try:
            mask.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised by `take`
            mask.set_exception(error)
        del job, mask, work  # an idle thread must not keep a request's state alive
    jobs.put(None)
