"""The engine thread: takes requests from the event loop, steps the core, and returns tokens in one hop per step."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ballast._core import sched
from ballast.awake_clock import AwakeClock
from ballast.engine.admission import Queue, reason_not_to_wait, reason_to_refuse
from ballast.engine.core import BUSY, IDLE, EngineCore, StepResult
from ballast.engine.gather import gather_s
from ballast.engine.load_history import PromptShare, ReplyLengths
from ballast.engine.logprobs import TokenLogprobs
from ballast.engine.observer import EngineObserver, SilentObserver
from ballast.engine.request import FinishReason, Output, Request, SamplingParams
from ballast.engine.retry_schedule import MAX_RETRY_AFTER_S, RetrySchedule
from ballast.engine.runner import HasSpareWork, Measurable, RecordsStart, Runner, bounded, with_tiers
from ballast.engine.step_costs import with_measured_costs
from ballast.engine.stream import RequestStream
from ballast.engine.tier_mover import TierNumbers
from ballast.errors import CapacityError, ContextLengthError, EngineDeadError, RequestError
from ballast.host.startup.start import Start
from ballast.model.device_counts import DeviceCounts
from ballast.model.switched_off import Feature

log = logging.getLogger(__name__)

# Every wait in this file has a limit; an idle engine wakes this often.
IDLE_WAKE_S = 60.0
LONGEST_LOOK_S = 2.0
"""Who watches for silence looks at least this often; a longer gap is a pause of the whole process."""
WARM_UP_SEQ = 0
NEW_CLIENT = -1
"""A client without waiting requests."""
LONGEST_PREDICTION_S = 600.0
"""Longer queue times are not predicted."""
GATHER_LOOK_S = 0.005
"""How often a gathering engine looks at what arrives."""
SHOW_S = 0.05
"""Interval for publishing statistics while no step ends."""
MAX_DESCRIBED = 100
"""Waiting requests in the description of what the engine holds; each of its steps makes one."""

Delivery = tuple[RequestStream, Output | Exception]

Loader = Callable[[Callable[[float], None]], Runner]
"""Builds the runner on the engine thread, reporting progress from 0 to 1."""


class EngineState(StrEnum):
    """The engine's lifecycle, in order. DEAD may follow any state but STOPPED."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask for, and how many may wait."""

    max_new_tokens: int
    max_model_tokens: int
    """Prompt and generated tokens of one request, together."""
    max_batch_size: int
    max_queue: int
    max_queue_tokens: int | None = None
    """Prompt tokens that may wait; None: no bound but the number of requests."""
    max_queue_wait_s: float = 0.0
    """Longest predicted queue time of an accepted request, in seconds; 0: no limit."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine's numbers after its last step, for metrics and debugging. The names are part of `/debug/state`."""

    batch_slots: int
    max_new_tokens: int
    """Most tokens that one request may generate."""
    running: int
    waiting: int
    capacity_tokens: int
    used_tokens: int
    cached_tokens: int
    preemptions: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    fetching: int
    """Of `waiting`, requests whose blocks are on their way from host memory or disk."""
    tiers: tuple[TierNumbers, ...]
    """What stands beside the KV cache, the fastest first."""
    waited_for_tiers_s: float
    """Seconds that requests have waited for blocks on their way, added up."""
    prompt_tokens: int
    generation_tokens: int
    expert_bytes_read: int
    """Bytes of routed experts' weights that steps have read from host memory."""
    expert_bytes_over_pcie: int
    """Those of them that a GPU has read."""
    streamed_steps: int
    """Steps whose routed experts were all computed by a GPU."""
    decode_graphs: int
    """Number of batch sizes that a GPU decodes by a captured graph."""
    gpu_experts: int
    """Routed experts in a GPU's memory, over all layers."""
    pcie_share: float
    """Share of a decode step's other experts that a GPU reads from host memory, 0…1."""
    saturated_numbers: int
    """Numbers too large for a GPU's cache or its attention, taken as the largest that they hold."""
    switched_off: Mapping[Feature, str]
    """Ways of computing on a GPU that start has switched off, and why."""
    predicted_wait_s: float
    """How long a short request of a new client would wait for its first step, in seconds."""
    step_costs: Mapping[str, Sequence[tuple[int, float]]]
    """(tokens, seconds) of steps as the scheduler knows them now, by lane; empty lists if nothing was measured."""
    heartbeat: float
    """Unix time at which the engine last made progress, in seconds."""
    has_work: bool
    silence_s: float
    """Seconds without progress although there is work; 0 without work. Pauses of the whole process do not count."""


@dataclass(slots=True)
class _Live:
    """A request that the engine holds, from submission to its last output."""

    stream: RequestStream
    index: int
    """Position of its sequence in the stream."""
    request: Request
    submitted: float
    seed: int
    leader: int | None
    """The sequence of the same stream that computes the same prompt first."""
    admitted: float = 0.0
    last_token: float = 0.0
    cached_tokens: int = 0
    num_generated: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens to compute: a prompt that several sequences share counts once."""
        return len(self.request.prompt_ids) if self.leader is None else 0


class Engine:
    """Owns one engine thread. `submit` and streams belong to an event loop; everything else is thread-safe."""

    def __init__(
        self,
        load: Loader,
        config: sched.SchedulerConfig,
        limits: Limits,
        *,
        observer: EngineObserver | None = None,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        self.limits = limits
        self._load = load
        self._config = config
        self._observer = observer or SilentObserver()
        self._on_death = on_death
        self._thread = threading.Thread(target=self._run, name="ballast-engine", daemon=True)

        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        # Guarded by the lock: requests from the event loop to the engine thread.
        self._state = EngineState.LOADING
        self._inbox: list[tuple[int, _Live]] = []
        self._aborts: list[int] = []
        self._takes_requests = True
        """Once it is ready."""
        self._stopping = False
        self._next_seq = WARM_UP_SEQ + 1
        self._num_waiting = self._num_running = 0
        self._waiting_tokens = 0
        """Prompt tokens of the requests that never ran, those in the inbox included."""
        self._used_tokens = 0
        self._queue_state: sched.QueueState | None = None
        """The load when the last step began or ended, and the requests in the inbox."""
        self._queue_state_taken = 0.0

        self._retries = RetrySchedule(limits.max_batch_size)
        self.count_arriving: Callable[[], int] = lambda: 0
        """Returns the number of requests that are being tokenised; called on the engine's thread."""

        # Used by the engine thread alone.
        self._live: dict[int, _Live] = {}
        self._prompt_share = PromptShare()
        self._reply_lengths = ReplyLengths()
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._expert_bytes_read = 0
        self._device_counts = DeviceCounts()
        self._tiers: tuple[TierNumbers, ...] = ()
        self._waited_for_tiers_s = 0.0
        self._last_publish = self._last_shown = 0.0
        self._is_idle = False

        # Written by the engine thread, read by any thread: each is replaced as a whole.
        self._heartbeat = time.time()
        self._clock = AwakeClock(LONGEST_LOOK_S)
        self._last_progress = self._clock.now()
        self._load_progress = 0.0
        self._start_seconds: Mapping[str, float] = {}
        self._failure: BaseException | None = None
        self._stats: sched.Stats | None = None
        self._step_costs: Mapping[str, Sequence[tuple[int, float]]] = {}
        self._description: list[tuple[int, str, int, int, int]] = []

    def start(self) -> None:
        """Begin loading, then serving, on the engine thread."""
        self._thread.start()

    @property
    def state(self) -> EngineState:
        """The state in the engine's lifecycle."""
        return self._state

    @property
    def load_progress(self) -> float:
        """Share of the model that is loaded, 0…1."""
        return self._load_progress

    @property
    def start_seconds(self) -> Mapping[str, float]:
        """Seconds of the start by phase; empty until the engine is ready."""
        return self._start_seconds

    @property
    def failure(self) -> BaseException | None:
        """The error that killed the engine, if its state is DEAD."""
        return self._failure

    def check_room(self, priority: int, client: int) -> None:
        """Raise CapacityError (429) where `submit` would refuse a request of one token now: so a prompt need not be
        tokenised to be refused. An engine that is not ready refuses nothing here."""
        with self._lock:
            if self._state is EngineState.READY:
                self._check_room(priority, client, 1, 1)

    def submit(self, *requests: Request) -> RequestStream:
        """Queue requests whose outputs come on one stream. Must be called on the event loop that reads the stream.

        All requests are queued or none. Those with the same prompt compute it once. Raises RequestError when one can
        never fit, CapacityError when the queue is full (429) and while the engine loads or drains (503),
        EngineDeadError after a failure.
        """
        for request in requests:
            self._check_fits(request)
        with self._lock:
            self._check_accepts(requests)
            seqs = range(self._next_seq, self._next_seq + len(requests))
            self._next_seq = seqs.stop
            stream = RequestStream(seqs, self._abort)
            if not self.has_work:
                self._last_progress = self._clock.now()  # silence counts from now: an idle engine makes no progress
            leaders: dict[tuple[int, tuple[int, ...], tuple[int, int]], int] = {}
            for index, (seq, request) in enumerate(zip(seqs, requests, strict=True)):
                leader = leaders.setdefault((request.priority, request.prompt_ids, request.salt), seq)
                seed = request.sampling.seed
                live = _Live(
                    stream,
                    index,
                    request,
                    time.monotonic(),
                    secrets.randbits(63) if seed is None else seed,
                    leader if leader != seq else None,
                )
                self._inbox.append((seq, live))
                self._waiting_tokens += live.prompt_tokens
                if self._queue_state is not None:
                    _arrive(self._queue_state, live, self._prompt_share.value)
            self._wake.notify()
        return stream

    def announce_drain(self) -> None:
        """Tell by the state that the engine is about to drain. It takes requests until `begin_drain`."""
        with self._lock:
            if self._state is EngineState.READY:
                self._state = EngineState.DRAINING

    def begin_drain(self) -> None:
        """Refuse new requests from now on. Requests that the engine holds continue."""
        with self._lock:
            self._takes_requests = False
            if self._state in (EngineState.LOADING, EngineState.READY):
                self._state = EngineState.DRAINING

    def declare_dead(self, reason: str) -> None:
        """Mark the engine as dead although its thread still runs, and fail every request that it holds.

        If the present step ends after all, its tokens are dropped.
        """
        self._die(EngineDeadError(reason))

    def stop(self, drain_timeout_s: float) -> None:
        """Drain, then end the thread. Requests that still run after `drain_timeout_s` get a CapacityError. Blocks."""
        self.begin_drain()
        deadline = time.monotonic() + drain_timeout_s
        while self.has_work and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(min(0.02, max(0.0, deadline - time.monotonic())))
        with self._lock:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=IDLE_WAKE_S)

    @property
    def has_work(self) -> bool:
        """Whether any request is in the inbox, waiting or running."""
        return bool(self._inbox or self._live)

    def snapshot(self) -> Snapshot:
        """The numbers after the last step."""
        stats, on_device = self._stats, self._device_counts
        with self._lock:
            queued, has_work = len(self._inbox), self.has_work
            predicted_wait_s = self._predicted_wait_s(0, NEW_CLIENT, 1, LONGEST_PREDICTION_S)
        return Snapshot(
            batch_slots=self.limits.max_batch_size,
            max_new_tokens=self.limits.max_new_tokens,
            running=stats.running if stats else 0,
            waiting=(stats.waiting if stats else 0) + queued,
            capacity_tokens=self._config.num_blocks * self._config.block_tokens,
            used_tokens=stats.used_tokens if stats else 0,
            cached_tokens=stats.cached_tokens if stats else 0,
            preemptions=stats.preemptions if stats else 0,
            prefix_query_tokens=stats.prefix_query_tokens if stats else 0,
            prefix_hit_tokens=stats.prefix_hit_tokens if stats else 0,
            fetching=stats.fetching if stats else 0,
            tiers=self._tiers,
            waited_for_tiers_s=self._waited_for_tiers_s,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            expert_bytes_read=self._expert_bytes_read,
            expert_bytes_over_pcie=on_device.expert_bytes_over_pcie,
            streamed_steps=on_device.streamed_steps,
            decode_graphs=on_device.decode_graphs,
            gpu_experts=on_device.gpu_experts,
            pcie_share=on_device.pcie_share,
            saturated_numbers=on_device.saturated_numbers,
            switched_off=on_device.switched_off,
            predicted_wait_s=predicted_wait_s,
            step_costs=self._step_costs,
            heartbeat=self._heartbeat,
            has_work=has_work,
            silence_s=self._clock.now() - self._last_progress if has_work else 0.0,
        )

    def describe(self) -> list[dict[str, object]]:
        """One entry per request that runs, and of those that wait the first MAX_DESCRIBED, in their order."""
        now = time.monotonic()
        return [
            {
                "id": live.request.id,
                "index": live.index,
                "state": state,
                "priority": live.request.priority,
                "tokens": num_tokens,
                "computed_tokens": num_computed,
                "kv_blocks": num_blocks,
                "generated_tokens": live.num_generated,
                "cached_tokens": live.cached_tokens,
                "age_s": round(now - live.submitted, 3),
            }
            for seq, state, num_tokens, num_computed, num_blocks in self._description
            if (live := self._live.get(seq)) is not None
        ]

    def _abort(self, seq: int) -> None:
        with self._lock:
            self._aborts.append(seq)
            self._wake.notify()

    def _check_fits(self, request: Request) -> None:
        prompt, limit = len(request.prompt_ids), self.limits.max_model_tokens
        if prompt + request.sampling.max_tokens > limit:
            raise ContextLengthError(
                limit,
                f"you requested {prompt + request.sampling.max_tokens} tokens ({prompt} in the prompt, "
                f"{request.sampling.max_tokens} for the completion)",
                param="messages",
                way_out="Shorten the prompt or lower max_tokens.",
            )

    def _check_accepts(self, requests: Sequence[Request]) -> None:
        if self._state is EngineState.DEAD:
            assert self._failure is not None
            raise EngineDeadError.because_of(self._failure)
        if not self._takes_requests or self._state not in (EngineState.READY, EngineState.DRAINING):
            raise CapacityError(f"the server is {self._state}, try again later", status=503)
        num_tokens = sum(map(len, {request.prompt_ids for request in requests}))
        self._check_room(requests[0].priority, requests[0].client, len(requests), num_tokens)

    def _check_room(self, priority: int, client: int, count: int, num_tokens: int) -> None:
        # Requests that fill free slots do not count as waiting, so that an idle engine accepts a burst.
        num_waiting = self._num_waiting + len(self._inbox)
        num_free = self.limits.max_batch_size - self._num_running
        queue = Queue(num_waiting - num_free, self._waiting_tokens)
        full = reason_to_refuse(queue, count, num_tokens, self.limits.max_queue, self.limits.max_queue_tokens)
        excess_s = 0.0
        limit_s = self.limits.max_queue_wait_s
        if full is None and limit_s > 0 and not (num_free > num_waiting and self._has_blocks(num_tokens)):
            wait_s = self._predicted_wait_s(priority, client, num_tokens, limit_s + MAX_RETRY_AFTER_S)
            full, excess_s = reason_not_to_wait(wait_s, limit_s), wait_s - limit_s
        if full is not None:
            retry_after_s = max(excess_s, self._retries.refuse(time.monotonic(), count))
            raise CapacityError.busy(full, retry_after_s=min(retry_after_s, MAX_RETRY_AFTER_S))

    def _has_blocks(self, num_tokens: int) -> bool:
        """Whether the KV cache has room for a prompt of `num_tokens`, in addition to running and waiting requests."""
        capacity = self._config.num_blocks * self._config.block_tokens
        return self._used_tokens + self._waiting_tokens + num_tokens < capacity

    def _predicted_wait_s(self, priority: int, client: int, num_tokens: int, horizon_s: float) -> float:
        """Seconds until the first step of a request that arrives now; 0 before the first step of all."""
        if self._queue_state is None:
            return 0.0
        num_computed = _computed_tokens(num_tokens, self._prompt_share.value)
        return self._queue_state.predicted_wait_s(
            priority,
            client,
            num_computed,
            self.limits.max_new_tokens,
            horizon_s=horizon_s,
            elapsed_s=time.monotonic() - self._queue_state_taken,
        )

    def _run(self) -> None:
        try:
            runner = self._load(self._report_progress)
            config = with_tiers(bounded(self._config, runner), runner)
            if isinstance(runner, Measurable):
                config = with_measured_costs(config, runner, self.limits.max_model_tokens, self._note_progress)
            self._config = config
            core = EngineCore(runner, config, self._note_progress, on_begin=lambda: self._share_queue_state(core))
            self._warm_up(core)
            spare = runner if isinstance(runner, HasSpareWork) else None
            if isinstance(runner, RecordsStart):
                self._log_start(runner.start)
            with self._lock:
                if self._state is EngineState.LOADING:
                    self._state = EngineState.READY
            while not self._stopping:
                self._take_inbox(core)
                if self._is_idle:
                    self._gather(core)
                result = core.step()
                if result is IDLE:
                    self._idle(core, spare)
                elif result is not BUSY:
                    self._account(core, result)
                elif not core.is_computing:
                    self._is_idle = True  # blocks are copied, and nothing is computed meanwhile
                if result is BUSY and self._clock.now() - self._last_shown > SHOW_S:
                    self._show(core)
            core.close()
            self._fail_all(CapacityError.shutting_down())
            with self._lock:
                self._state = EngineState.STOPPED
        except BaseException as failure:  # noqa: BLE001  last resort of the thread: fail every request and notify the owner
            self._die(failure)

    def _report_progress(self, share: float) -> None:
        self._load_progress = share
        self._note_progress()

    def _note_progress(self) -> None:
        self._heartbeat = time.time()
        self._last_progress = self._clock.now()

    def _warm_up(self, core: EngineCore) -> None:
        """Compute one real token, so that an engine that is ready has worked once."""
        core.add(WARM_UP_SEQ, Request("warm-up", (0,), SamplingParams(max_tokens=1, temperature=0.0)), seed=0)
        while core.step() is BUSY:
            pass
        core.check()
        self._load_progress = 1.0
        self._publish(core)

    def _log_start(self, start: Start) -> None:
        self._start_seconds = start.times.seconds()
        log.info(
            "started",
            extra={
                "seconds": round(sum(self._start_seconds.values()), 2),
                **{f"{phase}_s": round(seconds, 2) for phase, seconds in self._start_seconds.items()},
                "not_measured_again": start.measurements.reused,
            },
        )

    def _gather(self, core: EngineCore) -> None:
        """Wait a little for requests that arrive together with the first ones, as `gather_s` says."""
        self._is_idle = False
        began = last_arrival = time.monotonic()
        while not self._stopping:
            now = time.monotonic()
            wait_s = gather_s(core.next_prompt_step_s, now - began, now - last_arrival, self.count_arriving())
            if wait_s == 0.0:
                return
            with self._lock:
                if not (self._inbox or self._aborts):
                    self._wake.wait(timeout=min(wait_s, GATHER_LOOK_S))
                has_arrived = bool(self._inbox)
            if has_arrived:
                last_arrival = time.monotonic()
            self._take_inbox(core)

    def _take_inbox(self, core: EngineCore) -> None:
        with self._lock:
            arrivals, self._inbox = self._inbox, []
            aborts, self._aborts = self._aborts, []
            self._num_waiting += len(arrivals)
            for seq, live in arrivals:
                self._live[seq] = live
        for seq, live in arrivals:
            core.add(seq, live.request, live.seed, live.leader)
        num_ended = 0
        for seq in aborts:
            if (aborted := self._live.pop(seq, None)) is not None:
                core.abort(seq)
                self._leave_queue(aborted)
                num_ended += aborted.admitted > 0
        if arrivals or aborts:
            self._publish(core, num_ended)

    def _idle(self, core: EngineCore, spare: HasSpareWork | None) -> None:
        """Check the invariants once, then do spare work and sleep until something arrives. Each time that it wakes it
        asks for spare work again: kernels may be compiled by then."""
        core.check()
        self._publish(core)
        self._is_idle = True
        while not (self._inbox or self._aborts or self._stopping):
            if spare is not None and spare.use_spare_time():
                self._note_progress()
                continue
            with self._lock:
                if not (self._inbox or self._aborts or self._stopping):
                    self._wake.wait(timeout=IDLE_WAKE_S)
        self._note_progress()

    def _account(self, core: EngineCore, result: StepResult) -> None:
        now = time.monotonic()
        self._observer.on_step(result.kind, now - result.started, result.num_tokens)
        for seq, cached_tokens in result.admitted:
            live = self._live[seq]
            self._leave_queue(live)
            live.admitted, live.cached_tokens = result.started, cached_tokens
            if live.leader is None:
                self._prompt_share.note(live.prompt_tokens, cached_tokens)
            self._prompt_tokens += len(live.request.prompt_ids)
        num_ended = len(result.failed)
        deliveries: defaultdict[asyncio.AbstractEventLoop, list[Delivery]] = defaultdict(list)
        for prefill in result.prefilled:
            live = self._live[prefill.seq]
            output = _output(live, now, prompt_logprobs=prefill.scores, computed_tokens=prefill.computed_tokens)
            deliveries[live.stream.loop].append((live.stream, output))
        for event in result.events:
            live = self._live[event.seq]
            self._observe_token(live, now)
            output = _output(
                live,
                now,
                token_ids=(event.token_id,),
                finish_reason=event.finish_reason,
                logprobs=() if event.logprobs is None else (event.logprobs,),
                computed_tokens=len(live.request.prompt_ids),
            )
            deliveries[live.stream.loop].append((live.stream, output))
            if event.finish_reason is not None:
                self._reply_lengths.note(live.num_generated, stopped=event.finish_reason is FinishReason.STOP)
                self._observer.on_finish(
                    now - live.submitted, event.finish_reason, len(live.request.prompt_ids), live.num_generated
                )
                del self._live[event.seq]
                num_ended += 1
        for seq, error in result.failed:
            live = self._live.pop(seq)
            log.error("nothing to sample", extra={"request_id": live.request.id, "error": str(error)})
            delivered = error if isinstance(error, RequestError) else RequestError(str(error), status=500)
            deliveries[live.stream.loop].append((live.stream, delivered))
        self._generation_tokens += len(result.events)
        for seq in result.preempted:
            log.info("preempted", extra={"request_id": self._live[seq].request.id})
        self._publish(core, num_ended)
        for loop, items in deliveries.items():
            _call(loop, items)

    def _leave_queue(self, live: _Live) -> None:
        """A request left the queue: it was admitted, or aborted before."""
        if not live.admitted:
            with self._lock:
                self._waiting_tokens -= live.prompt_tokens

    def _observe_token(self, live: _Live, now: float) -> None:
        if live.num_generated == 0:
            self._observer.on_first_token(now - live.submitted, live.admitted - live.submitted)
        else:
            self._observer.on_inter_token(now - live.last_token)
        live.last_token = now
        live.num_generated += 1

    def _publish(self, core: EngineCore, num_ended: int = 0) -> None:
        """Show the core's numbers to other threads. `num_ended` requests have left the batch since the last time."""
        self._note_progress()
        stats = self._show(core)
        now = self._last_progress
        self._retries.ran((stats.running + num_ended) * (now - self._last_publish), num_ended)
        self._last_publish = now
        with self._lock:
            self._num_waiting, self._num_running = stats.waiting, stats.running
            self._used_tokens = stats.used_tokens
        self._share_queue_state(core)

    def _share_queue_state(self, core: EngineCore) -> None:
        """Copy the load for predictions by other threads. Called when a step begins and when requests come or go."""
        share = self._prompt_share.value
        state = core.queue_state(self._reply_lengths.mean_tokens, share)
        taken = time.monotonic()
        with self._lock:
            for _, live in self._inbox:
                _arrive(state, live, share)
            self._queue_state, self._queue_state_taken = state, taken

    def _show(self, core: EngineCore) -> sched.Stats:
        self._last_shown = self._clock.now()
        self._stats = stats = core.stats()
        self._step_costs = core.step_costs
        self._expert_bytes_read = core.expert_bytes_read
        self._device_counts = core.device_counts
        self._tiers = core.tier_numbers(stats)
        self._waited_for_tiers_s = core.waited_for_tiers_s
        self._description = core.describe(MAX_DESCRIBED)
        return stats

    def _fail_all(self, error: Exception) -> None:
        """Fail every request that is still held, in the inbox or in the core."""
        with self._lock:
            pending, self._inbox = self._inbox, []
        for live in [*self._live.values(), *(live for _, live in pending)]:
            _call(live.stream.loop, [(live.stream, error)])
        self._live.clear()

    def _die(self, failure: BaseException) -> None:
        if self._failure is not None:
            return  # declared dead before, and now the thread has ended
        log.critical("engine died", exc_info=failure, extra={"requests": self.describe()})
        self._failure = failure
        with self._lock:
            self._state = EngineState.DEAD
        self._fail_all(EngineDeadError.because_of(failure))
        if self._on_death is not None:
            self._on_death()


def _output(
    live: _Live,
    now: float,
    *,
    computed_tokens: int,
    token_ids: tuple[int, ...] = (),
    finish_reason: FinishReason | None = None,
    logprobs: tuple[TokenLogprobs, ...] = (),
    prompt_logprobs: tuple[TokenLogprobs, ...] = (),
) -> Output:
    return Output(
        token_ids,
        finish_reason,
        live.cached_tokens,
        live.index,
        logprobs,
        prompt_logprobs,
        computed_tokens,
        live.admitted,
        now,
    )


def _computed_tokens(num_tokens: int, prompt_share: float) -> int:
    """The tokens of a prompt that steps will compute, if the prefix cache serves as much of it as of others."""
    return max(1, int(num_tokens * prompt_share))


def _arrive(state: sched.QueueState, live: _Live, prompt_share: float) -> None:
    request = live.request
    num_computed = _computed_tokens(live.prompt_tokens, prompt_share)
    state.arrive(request.priority, request.client, num_computed, request.sampling.max_tokens)


def _call(loop: asyncio.AbstractEventLoop, items: list[Delivery]) -> None:
    """Deliver on the streams' own loop. If the loop is closed, nobody reads any more."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(_deliver, items)


def _deliver(items: list[Delivery]) -> None:
    for stream, item in items:
        stream.deliver(item)
