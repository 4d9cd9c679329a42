"""The engine without threads or clocks: plan, forward, sample, commit. Deterministic, so tests run it directly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballast._core import sched
from ballast.engine.observer import StepKind
from ballast.engine.request import FinishReason, Request
from ballast.engine.runner import Runner
from ballast.engine.sampler import SequenceSampler
from ballast.model.batch import Batch

FINISH_REASONS = {sched.Finish.STOP: FinishReason.STOP, sched.Finish.LENGTH: FinishReason.LENGTH}


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One sequence got one token."""

    seq: int
    token_id: int
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did. `num_tokens` counts the tokens that went through the model; 0 means nothing can run."""

    kind: StepKind
    num_tokens: int
    events: tuple[TokenEvent, ...]
    admitted: tuple[tuple[int, int], ...]
    """(sequence, prompt tokens served by the prefix cache) of each request that left the queue in this step."""
    preempted: tuple[int, ...]
    failed: tuple[tuple[int, FloatingPointError], ...]
    """Sequences whose logits left nothing to sample from; they are gone, the others go on."""


IDLE = StepResult("decode", 0, (), (), (), ())


class EngineCore:
    """One scheduler, one runner, one sampler a sequence. Not thread-safe."""

    def __init__(self, runner: Runner, config: sched.SchedulerConfig, alive: Callable[[], None] = lambda: None) -> None:
        self._runner = runner
        self._scheduler = sched.Scheduler(config)
        self._samplers: dict[int, SequenceSampler] = {}
        self._queued: set[int] = set()
        self._alive = alive

    def add(self, seq: int, request: Request, seed: int) -> None:
        """Queue a request under a fresh sequence id. Raises ValueError when it can never fit, QueueFullError."""
        params = request.sampling
        self._scheduler.add(
            seq,
            np.array(request.prompt_ids, dtype=np.int32),
            params.max_tokens,
            np.array(sorted(params.stop_token_ids), dtype=np.int32),
            params.min_tokens,
        )
        self._samplers[seq] = SequenceSampler(params, request.prompt_ids, seed)
        self._queued.add(seq)

    def abort(self, seq: int) -> None:
        """Free a sequence in whatever state it is; unknown ids are ignored, the sequence may just have ended."""
        self._scheduler.abort(seq)
        self._samplers.pop(seq, None)
        self._queued.discard(seq)

    def step(self) -> StepResult:
        """Run one step; returns IDLE when nothing can run."""
        plan = self._scheduler.plan()
        if plan.num_requests == 0:
            return IDLE
        kind = _kind(plan)
        num_tokens = plan.num_tokens
        admitted = tuple((seq, self._scheduler.cached_tokens(seq)) for seq in plan.seqs.tolist() if seq in self._queued)
        self._queued.difference_update(seq for seq, _ in admitted)
        preempted = tuple(plan.preempted.tolist())
        logits = self._runner.forward(Batch.from_plan(plan), self._alive)
        sampled = plan.seqs[plan.samples.astype(bool)].tolist()
        tokens, failed = self._sample(sampled, logits)
        committed = self._scheduler.commit(np.array(tokens, dtype=np.int32))
        events = tuple(
            TokenEvent(seq, token, FINISH_REASONS.get(finish))
            for seq, token, finish in zip(
                committed.seqs.tolist(), committed.tokens.tolist(), committed.finish.tolist(), strict=True
            )
        )
        for event in events:
            if event.finish_reason is not None:
                del self._samplers[event.seq]
        for seq in failed:
            self.abort(seq)
        events = tuple(event for event in events if event.seq not in failed)
        return StepResult(kind, num_tokens, events, admitted, preempted, tuple(failed.items()))

    def _sample(self, seqs: list[int], logits: NDArray[np.float32]) -> tuple[list[int], dict[int, FloatingPointError]]:
        """A token for each sequence; one that fails gets token 0, which is never delivered."""
        tokens: list[int] = []
        failed: dict[int, FloatingPointError] = {}
        for seq, row in zip(seqs, logits, strict=True):
            try:
                tokens.append(self._samplers[seq].next_token(row))
            except FloatingPointError as error:
                tokens.append(0)
                failed[seq] = error
        return tokens, failed

    def stats(self) -> sched.Stats:
        """The scheduler's counts now."""
        return self._scheduler.stats()

    def describe(self) -> list[tuple[int, str, int, int, int]]:
        """One (seq, state, num_tokens, num_computed_tokens, num_blocks) per live sequence."""
        return self._scheduler.describe()

    def check(self) -> None:
        """Prove the scheduler's invariants; raises InvariantError."""
        self._scheduler.check()


def _kind(plan: sched.Plan) -> StepKind:
    if plan.num_decode == plan.num_requests:
        return "decode"
    return "mixed" if plan.num_decode else "prefill"
