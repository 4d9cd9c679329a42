"""The engine without threads: plan, forward, sample, commit.

Deterministic, given the order in which steps of two lanes end, so tests run it directly."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels, sched
from ballast.engine.observer import StepKind
from ballast.engine.request import FinishReason, Request
from ballast.engine.runner import with_cache
from ballast.engine.sampling.logprobs import TokenLogprobs
from ballast.engine.sampling.row_sampler import RequestedRow, RowSampler, Sampled, requested_rows
from ballast.engine.sampling.sampler import has_finite_peak
from ballast.engine.sequence import Sequence
from ballast.engine.tier_mover import TierMover, TierNumbers
from ballast.model.batch import Batch
from ballast.model.device_counts import DeviceCounts
from ballast.model.runner import Runner

FINISH_REASONS = {sched.Finish.STOP: FinishReason.STOP, sched.Finish.LENGTH: FinishReason.LENGTH}


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One sequence got one token."""

    seq: int
    token_id: int
    finish_reason: FinishReason | None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class PrefillEvent:
    """A step computed some tokens of one sequence's prompt."""

    seq: int
    computed_tokens: int
    """Prompt tokens computed so far, cached ones included."""
    scores: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of one step. `num_tokens` is the number of tokens that went through the model."""

    kind: StepKind
    num_tokens: int
    events: tuple[TokenEvent, ...]
    admitted: tuple[tuple[int, int], ...]
    """(sequence, prompt tokens served by the prefix cache) per request that left the queue in this step."""
    preempted: tuple[int, ...]
    prefilled: tuple[PrefillEvent, ...]
    """Progress of prompts, for sequences that request it; always before their first token."""
    failed: tuple[tuple[int, Exception], ...]
    """(sequence, reason) where nothing could be sampled. These sequences are gone; the others are not affected."""
    started: float
    """When the step began, by the core's clock, in seconds."""


IDLE = StepResult("decode", 0, (), (), (), (), (), 0.0)
"""No step could run."""
BUSY = StepResult("prefill", 0, (), (), (), (), (), 0.0)
"""The prefill lane computes a step, or blocks are being copied from or to a tier, while the decode lane has no work.
The caller should handle arrivals and call again."""

NO_LOGITS = np.empty((0, 0), np.float32)

POLL_S = 0.001
"""Interval for polling the prefill lane, in seconds."""
BUSY_S = 0.005
"""How long a step waits for the prefill lane alone, or for a tier alone, before it returns BUSY."""


@dataclass(slots=True)
class _Step:
    """A lane's outstanding plan."""

    plan: sched.Plan
    requested: list[RequestedRow]
    admitted: tuple[tuple[int, int], ...]
    sampler: RowSampler
    started: float


class EngineCore:
    """One scheduler, one runner, the live sequences. Not thread-safe."""

    def __init__(
        self,
        runner: Runner,
        config: sched.SchedulerConfig,
        alive: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        on_begin: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_begin` is called when a step has begun, before the core waits for it. Raises ValueError if `config` has a
        prefill lane and the runner has none."""
        config = with_cache(config, runner)
        self._runner = runner
        self._has_prefill_lane = config.has_prefill_lane
        if self._has_prefill_lane:
            if not runner.can_prefill_beside:
                raise ValueError("the configuration has costs of a prefill lane, and the runner has no such lane")
            runner.open_prefill_lane()
        self._scheduler = sched.Scheduler(config)
        self._block_tokens = config.block_tokens
        tiers = runner.cache_tiers if config.tiers else None
        self._tiers = None if tiers is None else TierMover(self._scheduler, tiers, clock)
        self._decode_sampler = RowSampler(runner.pool or kernels.ThreadPool(1))
        # The pool may be computing experts of the decode lane while the prefill lane samples.
        self._prefill_sampler = RowSampler(kernels.ThreadPool(1))
        self._decode_step: _Step | None = None
        self._prefill_step: _Step | None = None
        self._is_prefill_held = False
        """Whether the last step of the decode lane prevented a pass from beginning."""
        self._preempted: list[int] = []
        self._sequences: dict[int, Sequence] = {}
        self._queued: set[int] = set()
        self._alive = alive
        self._clock = clock
        self._on_begin = on_begin

    def add(self, seq: int, request: Request, seed: int, leader: int | None = None) -> None:
        """Queue a request under a fresh sequence id.

        `leader` is a sequence with the same prompt that computes it first; it is ignored if it has ended.
        Raises ValueError when the request can never fit.
        """
        params = request.sampling
        sequence = Sequence(request, seed)
        self._scheduler.add(
            seq,
            np.array(request.prompt_ids, dtype=np.int32),
            params.max_tokens,
            np.array(sorted(params.stop_token_ids), dtype=np.int32),
            # The sampler forbids stop tokens before that, unless a constraint allows nothing else.
            0 if params.constraint is not None else params.min_tokens,
            priority=request.priority,
            leader=leader if leader in self._sequences else None,
            scores_prompt=request.prompt_logprobs is not None,
            client=request.client,
            salt=request.salt,
            snapshots_at=request.snapshots_at,
            snapshot_before=sorted(request.snapshot_before),
        )
        self._sequences[seq] = sequence
        self._queued.add(seq)

    def abort(self, seq: int) -> None:
        """Free a sequence in any state. Unknown ids are ignored, since the sequence may have just ended."""
        self._scheduler.abort(seq)
        if self._tiers is not None:
            self._tiers.cancel(seq)
        self._sequences.pop(seq, None)
        self._queued.discard(seq)

    def step(self) -> StepResult:
        """Begin a step in each lane that has none, and return when one has ended; BUSY or IDLE if none runs."""
        if self._tiers is not None:
            self._tiers.settle()
        before = self._decode_step, self._prefill_step
        if self._decode_step is None:
            if self._is_prefill_held and self._has_prefill_lane and self._prefill_step is None:
                self._prefill_step = self._begin_prefill()  # before another decode step can delay it
                self._is_prefill_held = False
            self._decode_step = self._begin_decode()
        if self._has_prefill_lane and self._prefill_step is None:
            self._is_prefill_held = not self._runner.can_begin_prefill
            if not self._is_prefill_held:
                self._prefill_step = self._begin_prefill()
        decode, prefill = self._decode_step, self._prefill_step
        if (decode, prefill) != before:
            self._on_begin()
        if prefill is not None:
            is_wanted = any(row.seq in self._sequences for row in prefill.requested)
            if not is_wanted:
                self._runner.cancel_prefill()
            if self._prefill_ends_first(decode):
                self._prefill_step = None
                if is_wanted:
                    return self._end(prefill, self._runner.prefill_logits(), sched.Lane.PREFILL)
                for row in prefill.requested:
                    self._scheduler.fail(row.seq, forget=False)
                return replace(self._end(prefill, NO_LOGITS, sched.Lane.PREFILL, is_whole=False), num_tokens=0)
            if decode is None:
                return BUSY
        if decode is None:
            return self._wait_for_blocks()
        if self._runner.is_asynchronous:
            logits = self._runner.logits(self._alive)
        else:
            logits = self._runner.forward(_batch(decode.plan, decode.requested), self._alive)
        self._decode_step = None
        return self._end(decode, logits, sched.Lane.DECODE)

    def _wait_for_blocks(self) -> StepResult:
        """Wait for a tier, with nothing to compute. A tier reports its own timeouts, so waiting counts as progress."""
        if self._tiers is None or not self._tiers.is_moving:
            return IDLE
        self._tiers.wait(BUSY_S)
        self._alive()
        return BUSY

    def rest(self) -> bool:
        """To be called when nothing has run for a while. Returns whether steps have something to do now."""
        return self._tiers is not None and self._tiers.rest()

    def _begin_decode(self) -> _Step | None:
        """Plan a step of the decode lane. A device queues it immediately; then the following step is planned, except
        for the tokens that this step samples."""
        step = self._planned(sched.Lane.DECODE, self._decode_sampler)
        runner = self._runner
        if step is not None and runner.is_asynchronous:
            batch = _batch(step.plan, step.requested)
            runner.queue(batch, self._alive, is_staged=step.plan.was_predicted)
            predicted = self._scheduler.plan_ahead()
            if predicted is not None:
                runner.stage(Batch.from_plan(predicted, logits_at=()))
        return step

    def _begin_prefill(self) -> _Step | None:
        step = self._planned(sched.Lane.PREFILL, self._prefill_sampler)
        if step is not None:
            self._runner.begin_prefill(_batch(step.plan, step.requested))
        return step

    def _planned(self, lane: int, sampler: RowSampler) -> _Step | None:
        """The lane's next step; None if there is none."""
        plan = self._scheduler.plan(lane, now_s=self._clock())
        self._preempted += plan.preempted.tolist()
        if self._tiers is not None:
            self._tiers.begin()
            self._tiers.before_step(plan, self._block_tokens, self._alive)
        if plan.num_requests == 0:
            return None
        admitted = tuple((seq, self._scheduler.cached_tokens(seq)) for seq in plan.seqs.tolist() if seq in self._queued)
        self._queued.difference_update(seq for seq, _ in admitted)
        requested = requested_rows(plan, self._sequences)
        sampler.begin(requested, self._sequences)
        return _Step(plan, requested, admitted, sampler, self._clock())

    def _prefill_ends_first(self, decode: _Step | None) -> bool:
        """Drive the prefill lane until its step ends, or the decode lane's does; without a decode step, for BUSY_S."""
        until = self._clock() + BUSY_S
        runner = self._runner
        while not runner.advance_prefill(self._alive):
            if decode is None:
                if self._clock() > until:
                    return False
                if runner.is_prefill_ahead:
                    time.sleep(POLL_S / 10)
            elif runner.is_done(POLL_S if runner.is_prefill_ahead else 0.0):
                return False
        return True

    def _end(self, step: _Step, logits: NDArray[np.float32], lane: int, *, is_whole: bool = True) -> StepResult:
        """Apply a step's logits. `is_whole`: it was not cut short, so its time counts as a cost."""
        # Rows of sequences that were aborted while the step ran are dropped.
        live = [row for row in step.requested if row.seq in self._sequences]
        prefilled, sampled, failed = self._apply_logits(step, live, logits)
        tokens = [sampled.get(row.seq, (0, None))[0] for row in step.requested if row.samples]
        now_s = self._clock() if is_whole else None
        committed = self._scheduler.commit(np.array(tokens, dtype=np.int32), lane, now_s=now_s)
        if self._tiers is not None:
            self._tiers.begin()
        events = tuple(
            TokenEvent(seq, token, FINISH_REASONS.get(finish), sampled[seq][1])
            for seq, token, finish in zip(
                committed.seqs.tolist(), committed.tokens.tolist(), committed.finish.tolist(), strict=True
            )
        )
        for seq in (*failed, *(event.seq for event in events if event.finish_reason is not None)):
            del self._sequences[seq]
        admitted = tuple((seq, cached) for seq, cached in step.admitted if any(row.seq == seq for row in live))
        preempted, self._preempted = tuple(seq for seq in self._preempted if seq in self._sequences), []
        return StepResult(
            _kind(step.plan),
            step.plan.num_tokens,
            events,
            admitted,
            preempted,
            prefilled,
            tuple(failed.items()),
            step.started,
        )

    def _apply_logits(
        self, step: _Step, requested: list[RequestedRow], logits: NDArray[np.float32]
    ) -> tuple[tuple[PrefillEvent, ...], dict[int, Sampled], dict[int, Exception]]:
        """Prompt scores, sampled tokens in plan order, and failures, which are reported to the scheduler. A failed
        sequence gets token 0, which is never delivered."""
        results = step.sampler.results(requested, self._sequences, logits)
        prefilled: list[PrefillEvent] = []
        failed: dict[int, Exception] = {}
        for row in requested:
            seq = row.seq
            if seq in results.errors:
                failed[seq] = results.errors[seq]
                # If the model's own logits are not finite, the KV that they were computed from may be wrong too.
                own = logits[row.first_logit : row.first_logit + row.num_logits]
                self._scheduler.fail(seq, forget=not all(has_finite_peak(each) for each in own))
            elif seq in results.scores or (self._sequences[seq].request.report_progress and row.computed_tokens):
                prefilled.append(PrefillEvent(seq, row.computed_tokens, tuple(results.scores.get(seq, ()))))
        return tuple(prefilled), results.sampled, failed

    def close(self) -> None:
        """Wait until the runner has finished all steps under way, so that its memory may be freed. The core cannot be
        used afterwards."""
        if self._decode_step is not None and self._runner.is_asynchronous:
            self._runner.logits(self._alive)
        if self._prefill_step is not None:
            self._runner.abandon_prefill()
        if self._tiers is not None:
            self._tiers.close()
        self._runner.close()

    def stats(self) -> sched.Stats:
        """The scheduler's counts now."""
        return self._scheduler.stats()

    @property
    def state_bytes(self) -> int:
        """Bytes of a recurrent state; 0 for a model without."""
        return self._runner.state_bytes

    def snapshot_positions(self, most: int) -> list[int]:
        """The number of tokens before each kept recurrent state."""
        return self._scheduler.snapshot_positions(most)

    @property
    def is_computing(self) -> bool:
        """Whether a step is outstanding in either lane."""
        return self._decode_step is not None or self._prefill_step is not None

    @property
    def step_costs(self) -> Mapping[str, list[tuple[int, float]]]:
        """(tokens, seconds) of steps by lane, as the scheduler knows them now."""
        return self._scheduler.costs()

    @property
    def next_prompt_step_s(self) -> float:
        """Seconds that a step over the prompts of the next waiting requests takes; 0 without costs."""
        return self._scheduler.next_prompt_step_s()

    def queue_state(self, mean_reply_tokens: float | None, prompt_share: float) -> sched.QueueState:
        """A copy of the load, for predictions of queue times; see `sched.Scheduler.queue_state`."""
        return self._scheduler.queue_state(
            mean_reply_tokens=mean_reply_tokens, prompt_share=prompt_share, now_s=self._clock()
        )

    @property
    def expert_bytes_read(self) -> int:
        """Bytes of experts' weights that steps have read from host memory; 0 if the runner does not count."""
        return self._runner.expert_bytes_read

    def tier_numbers(self, stats: sched.Stats) -> tuple[TierNumbers, ...]:
        """Numbers of each tier of the KV cache."""
        return () if self._tiers is None else self._tiers.numbers(stats)

    @property
    def waited_for_tiers_s(self) -> float:
        """Seconds that sequences have waited for blocks of tiers, added up."""
        return 0.0 if self._tiers is None else self._tiers.waited_s

    @property
    def device_counts(self) -> DeviceCounts:
        """The runner's counters of GPU work; zeros if it uses no GPU."""
        return self._runner.device_counts

    def describe(self, max_waiting: int) -> list[tuple[int, str, int, int, int]]:
        """One (seq, state, num_tokens, num_computed_tokens, num_blocks) per running sequence, and per waiting sequence
        for the first `max_waiting`."""
        return self._scheduler.describe(max_waiting)

    def check(self) -> None:
        """Prove the scheduler's invariants; raises InvariantError."""
        self._scheduler.check()


def _batch(plan: sched.Plan, requested: list[RequestedRow]) -> Batch:
    if not any(row.scored for row in requested):
        return Batch.from_plan(plan)
    logits_at = [at for row in requested for at in (*row.scored, *([row.last] if row.samples else ()))]
    return Batch.from_plan(plan, logits_at)


def _kind(plan: sched.Plan) -> StepKind:
    if plan.num_decode == plan.num_requests:
        return "decode"
    return "mixed" if plan.num_decode else "prefill"
