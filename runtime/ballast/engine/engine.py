"""The engine thread: takes requests from the event loop, steps the core, and returns tokens in one hop per step."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from enum import StrEnum

from ballast._core import sched
from ballast.engine.accounts import Accounts
from ballast.engine.admission.admission import NEW_CLIENT, Admission, prompt_tokens
from ballast.engine.admission.gather import gather_s
from ballast.engine.core import BUSY, IDLE, EngineCore
from ballast.engine.limits import Limits
from ballast.engine.live import LiveRequest, live_requests
from ballast.engine.observer import EngineObserver, SilentObserver
from ballast.engine.publishing import Publisher, Snapshot
from ballast.engine.request import Request, SamplingParams
from ballast.engine.runner import bounded, with_tiers
from ballast.engine.startup.step_costs import with_measured_costs
from ballast.engine.stream import Deliveries, RequestStream
from ballast.errors import CapacityError, EngineDeadError
from ballast.model.runner import Runner

log = logging.getLogger(__name__)

# Every wait in this file has a limit; an idle engine wakes this often.
IDLE_WAKE_S = 60.0
WARM_UP_SEQ = 0
LONGEST_PREDICTION_S = 600.0
"""The prediction ends here; longer queue times are reported as this."""
GATHER_LOOK_S = 0.005
"""Interval at which a gathering engine checks for arrivals."""

Loader = Callable[[Callable[[float], None]], Runner]
"""Builds the runner on the engine thread, reporting progress from 0 to 1."""


class EngineState(StrEnum):
    """The engine's lifecycle, in order. DEAD may follow any state but STOPPED."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "dead"


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
        self.count_arriving: Callable[[], int] = lambda: 0
        """Returns the number of requests that are being tokenised; called on the engine's thread."""
        self._load = load
        self._config = config
        self._capacity_tokens = config.num_blocks * config.block_tokens
        self._on_death = on_death
        self._thread = threading.Thread(target=self._run, name="ballast-engine", daemon=True)
        self._publisher = Publisher()
        self._failure: BaseException | None = None

        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        # Guarded by the lock: requests from the event loop to the engine thread.
        self._admission = Admission(limits, self._capacity_tokens)
        self._state = EngineState.LOADING
        self._inbox: list[tuple[int, LiveRequest]] = []
        self._aborts: list[int] = []
        self._takes_requests = True
        """False until the engine is ready and after `begin_drain`."""
        self._stopping = False
        self._next_seq = WARM_UP_SEQ + 1

        # Used by the engine thread alone.
        self._accounts = Accounts(self._admission, self._publisher, observer or SilentObserver(), self._lock)
        self._last_publish = 0.0
        self._is_idle = False

    def start(self) -> None:
        """Begin loading, then serving, on the engine thread."""
        self._thread.start()

    @property
    def state(self) -> EngineState:
        """The state in the engine's lifecycle."""
        return self._state

    @property
    def load_progress(self) -> float:
        """Fraction of the model that is loaded, 0…1."""
        return self._publisher.load_progress

    @property
    def start_seconds(self) -> Mapping[str, float]:
        """Seconds of the start by phase; empty until the engine is ready."""
        return self._publisher.start_seconds

    @property
    def failure(self) -> BaseException | None:
        """The error that killed the engine, if its state is DEAD."""
        return self._failure

    @property
    def has_work(self) -> bool:
        """Whether any request is in the inbox, waiting or running."""
        return bool(self._inbox or self._accounts.live)

    def check_room(self, priority: int, client: int) -> None:
        """Raise CapacityError (429) if `submit` would refuse a request of one token now, so that a refused prompt is
        not tokenised. An engine that is not ready refuses nothing here."""
        with self._lock:
            if self._state is EngineState.READY:
                self._admission.check_room(priority, client, 1, 1)

    def submit(self, *requests: Request) -> RequestStream:
        """Queue requests whose outputs come on one stream. Must be called on the event loop that reads the stream.

        All requests are queued or none. Those with the same prompt compute it once. Raises RequestError when one can
        never fit, CapacityError when the queue is full (429) and while the engine loads or drains (503),
        EngineDeadError after a failure.
        """
        for request in requests:
            self._admission.check_fits(request)
        with self._lock:
            self._check_takes_requests()
            first = requests[0]
            self._admission.check_room(first.priority, first.client, len(requests), prompt_tokens(requests))
            seqs = range(self._next_seq, self._next_seq + len(requests))
            self._next_seq = seqs.stop
            stream = RequestStream(seqs, self._abort)
            if not self.has_work:
                self._publisher.end_silence()
            for seq, live in zip(seqs, live_requests(stream, seqs, requests), strict=True):
                self._inbox.append((seq, live))
                self._admission.arrive(live)
            self._wake.notify()
        return stream

    def announce_drain(self) -> None:
        """Set the state to draining. The engine accepts requests until `begin_drain`."""
        with self._lock:
            if self._state is EngineState.READY:
                self._state = EngineState.DRAINING

    def begin_drain(self) -> None:
        """Refuse new requests from now on. Accepted requests continue."""
        with self._lock:
            self._takes_requests = False
            if self._state in (EngineState.LOADING, EngineState.READY):
                self._state = EngineState.DRAINING

    def declare_dead(self, reason: str) -> None:
        """Mark the engine as dead although its thread still runs, and fail every request that it holds.

        If the current step ends later, its tokens are dropped.
        """
        self._fail_all_requests(EngineDeadError(reason))

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

    def snapshot(self) -> Snapshot:
        """The numbers after the last step."""
        with self._lock:
            num_arrived, has_work = len(self._inbox), self.has_work
            predicted_wait_s = self._admission.predicted_wait_s(0, NEW_CLIENT, 1, LONGEST_PREDICTION_S)
        return self._publisher.snapshot(
            self.limits,
            self._capacity_tokens,
            num_arrived=num_arrived,
            has_work=has_work,
            predicted_wait_s=predicted_wait_s,
        )

    def describe(self) -> list[dict[str, object]]:
        """One entry per request in their order: all running requests, and the first waiting ones."""
        return self._publisher.describe(self._accounts.live)

    def _abort(self, seq: int) -> None:
        with self._lock:
            self._aborts.append(seq)
            self._wake.notify()

    def _check_takes_requests(self) -> None:
        if self._state is EngineState.DEAD:
            assert self._failure is not None
            raise EngineDeadError.because_of(self._failure)
        if not self._takes_requests or self._state not in (EngineState.READY, EngineState.DRAINING):
            raise CapacityError(f"the server is {self._state}, try again later", status=503)

    def _run(self) -> None:
        try:
            runner = self._load(self._publisher.report_load)
            core = self._core_of(runner)
            self._warm_up(core)
            if runner.start is not None:
                self._publisher.report_start(runner.start)
            with self._lock:
                if self._state is EngineState.LOADING:
                    self._state = EngineState.READY
            while not self._stopping:
                self._take_inbox(core)
                if self._is_idle:
                    self._gather(core)
                result = core.step()
                if result is IDLE:
                    self._idle(core, runner)
                elif result is not BUSY:
                    deliveries, num_ended = self._accounts.settle(result)
                    self._publish(core, num_ended)
                    deliveries.send()
                elif not core.is_computing:
                    self._is_idle = True  # blocks are being copied, and nothing is computed
                if result is BUSY and self._publisher.is_due:
                    self._publisher.show(core)
            core.close()
            self._fail_all(CapacityError.shutting_down())
            with self._lock:
                self._state = EngineState.STOPPED
        except BaseException as failure:  # noqa: BLE001  last resort of the thread: fail every request, report the engine as dead
            self._fail_all_requests(failure)

    def _core_of(self, runner: Runner) -> EngineCore:
        alive = self._publisher.note_progress
        config = with_tiers(bounded(self._config, runner), runner)
        if runner.vocabulary is not None:
            config = with_measured_costs(config, runner, self.limits.max_model_tokens, alive)
        core = EngineCore(runner, config, alive, on_begin=lambda: self._publish_load(core))
        return core

    def _warm_up(self, core: EngineCore) -> None:
        """Compute one real token, so that a ready engine has run a complete step."""
        core.add(WARM_UP_SEQ, Request("warm-up", (0,), SamplingParams(max_tokens=1, temperature=0.0)), seed=0)
        while core.step() is BUSY:
            pass
        core.check()
        self._publisher.report_load(1.0)
        self._publish(core)

    def _gather(self, core: EngineCore) -> None:
        """Wait for requests that arrive shortly after the first ones; see `gather_s`."""
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
            self._admission.take_inbox()
            self._accounts.live.update(arrivals)
        for seq, live in arrivals:
            core.add(seq, live.request, live.seed, live.leader)
        num_ended = 0
        for seq in aborts:
            if (aborted := self._accounts.live.pop(seq, None)) is not None:
                core.abort(seq)
                self._accounts.leave_queue(aborted)
                num_ended += aborted.admitted > 0
        if arrivals or aborts:
            self._publish(core, num_ended)

    def _idle(self, core: EngineCore, runner: Runner) -> None:
        """Check the invariants once, then do spare work and sleep until a request arrives. Each wake-up checks for
        spare work again, because kernels may have been compiled."""
        core.check()
        self._publish(core)
        self._is_idle = True
        began = time.monotonic()
        while not (self._inbox or self._aborts or self._stopping):
            if runner.use_spare_time():
                self._publisher.note_progress()
                continue
            with self._lock:
                if not (self._inbox or self._aborts or self._stopping):
                    self._wake.wait(timeout=IDLE_WAKE_S)
            if time.monotonic() - began >= IDLE_WAKE_S and core.rest():
                break
        self._publisher.note_progress()

    def _publish(self, core: EngineCore, num_ended: int = 0) -> None:
        """Publish the core's numbers to other threads. `num_ended`: requests that left the batch since then."""
        self._publisher.note_progress()
        stats = self._publisher.show(core)
        now = self._publisher.last_progress
        self._admission.retries.ran((stats.running + num_ended) * (now - self._last_publish), num_ended)
        self._last_publish = now
        with self._lock:
            self._admission.note_stats(stats)
        self._publish_load(core)

    def _publish_load(self, core: EngineCore) -> None:
        """Copy the load for predictions by other threads. Called when a step begins and when requests come or go."""
        load = core.queue_state(self._admission.reply_lengths.mean_tokens, self._admission.prompt_share.value)
        taken = time.monotonic()
        with self._lock:
            self._admission.set_load(load, taken, [live for _, live in self._inbox])

    def _fail_all(self, error: Exception) -> None:
        """Fail every request that is still held, in the inbox or in the core."""
        with self._lock:
            pending, self._inbox = self._inbox, []
        deliveries = Deliveries()
        for live in [*self._accounts.live.values(), *(live for _, live in pending)]:
            deliveries.add(live.stream, error)
        deliveries.send()
        self._accounts.live.clear()

    def _fail_all_requests(self, failure: BaseException) -> None:
        if self._failure is not None:
            return  # was declared dead before its thread ended
        log.critical("engine died", exc_info=failure, extra={"requests": self.describe()})
        self._failure = failure
        with self._lock:
            self._state = EngineState.DEAD
        self._fail_all(EngineDeadError.because_of(failure))
        if self._on_death is not None:
            self._on_death()
