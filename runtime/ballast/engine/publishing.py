"""The engine's numbers, which its thread publishes and any thread reads."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from ballast._core import sched
from ballast.awake_clock import AwakeClock
from ballast.engine.core import EngineCore
from ballast.engine.limits import Limits
from ballast.engine.live import LiveRequest
from ballast.engine.tier_mover import TierNumbers
from ballast.host.startup.start import Start
from ballast.metric import Counter, Gauge
from ballast.model.device_counts import DeviceCounts

log = logging.getLogger(__name__)

LONGEST_LOOK_S = 2.0
"""The hang watchdog reads the clock at least this often; a longer gap is a pause of the whole process."""
SHOW_S = 0.05
"""Interval for publishing statistics while no step ends."""
MAX_DESCRIBED = 100
"""Most waiting requests, and recurrent states, in a description; each step makes a description."""


@dataclass(frozen=True, slots=True)
class SchedulerNumbers:
    """The numbers of `sched.Stats`, under the same names."""

    running: Annotated[
        int, Gauge("batch_running", "Requests in the running batch.", alias="vllm:num_requests_running")
    ] = 0
    waiting: Annotated[int, Gauge("requests_waiting", "Requests in the queue.", alias="vllm:num_requests_waiting")] = 0
    used_tokens: Annotated[int, Gauge("kv_cache_used_tokens", "Tokens in blocks that a request holds.")] = 0
    cached_tokens: Annotated[int, Gauge("kv_cache_cached_tokens", "Tokens in cached blocks that no request holds.")] = 0
    window_used_tokens: Annotated[
        int,
        Gauge(
            "kv_cache_window_used_tokens",
            "Tokens that requests see or write in layers with a window; 0 if these layers keep all tokens.",
        ),
    ] = 0
    window_cached_tokens: Annotated[
        int,
        Gauge(
            "kv_cache_window_cached_tokens",
            "Tokens that layers with a window keep for later requests, and that no request needs now.",
        ),
    ] = 0
    fetching: Annotated[
        int,
        Gauge("kv_tier_fetching", "Waiting requests whose KV is being read from host memory or disk."),
    ] = 0
    preemptions: Annotated[
        int,
        Counter(
            "preemptions",
            "Preempted requests: their KV blocks went to other requests and are computed or read again.",
            alias="vllm:num_preemptions",
        ),
    ] = 0
    prefix_query_tokens: Annotated[
        int,
        Counter(
            "prefix_cache_query_tokens",
            "Prompt tokens looked up in the prefix cache.",
            alias="vllm:prefix_cache_queries",
        ),
    ] = 0
    prefix_hit_tokens: Annotated[
        int,
        Counter(
            "prefix_cache_hit_tokens",
            "Prompt tokens served by the prefix cache, including those read from host memory or disk.",
            alias="vllm:prefix_cache_hits",
        ),
    ] = 0
    prefix_cut_tokens: Annotated[
        int,
        Counter(
            "prefix_cache_cut_tokens",
            "Cached prompt tokens, also in host memory or on disk, without the snapshot or window to use them.",
        ),
    ] = 0
    snapshots: Annotated[
        int,
        Gauge("recurrent_snapshots", "Recurrent states kept for later requests; 0 for models without such state."),
    ] = 0
    snapshot_hits: Annotated[
        int,
        Counter("recurrent_snapshot_hits", "Times that a request began at a kept recurrent state."),
    ] = 0
    snapshots_evicted: Annotated[
        int,
        Counter("recurrent_snapshots_evicted", "Kept recurrent states whose slots were needed for other states."),
    ] = 0
    state_slots: Annotated[
        int,
        Gauge("recurrent_slots", "Slots of recurrent state, for requests and for kept states."),
    ] = 0
    state_slots_used: Annotated[
        int,
        Gauge("recurrent_slots_used", "Slots of recurrent state that requests hold."),
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(SchedulerNumbers):
    """The engine's numbers after its last step, for metrics and debugging. The names are part of `/debug/state`."""

    batch_slots: Annotated[int, Gauge("batch_slots", "Most requests in one step.")]
    max_new_tokens: int
    """Most tokens that one request may generate."""
    capacity_tokens: Annotated[int, Gauge("kv_cache_capacity_tokens", "Tokens that the KV cache can hold.")]
    load_progress: Annotated[float, Gauge("model_load_progress_ratio", "Fraction of the model that is loaded.")]
    predicted_wait_s: Annotated[
        float,
        Gauge("predicted_wait_seconds", "Predicted queue time of a short request from a client that has none waiting."),
    ]
    prompt_tokens: Annotated[
        int, Counter("prompt_tokens", "Prompt tokens of admitted requests.", alias="vllm:prompt_tokens")
    ]
    generation_tokens: Annotated[int, Counter("generation_tokens", "Tokens generated.", alias="vllm:generation_tokens")]
    snapshot_bytes: Annotated[int, Gauge("recurrent_snapshot_bytes", "Memory of recurrent_snapshots.")]
    snapshot_positions: Sequence[int]
    """The number of tokens before each kept recurrent state, of those used last."""
    tiers: tuple[TierNumbers, ...]
    """The tiers of the KV cache, the fastest first."""
    waited_for_tiers_s: Annotated[
        float,
        Counter(
            "kv_tier_wait_seconds",
            "Seconds that requests have waited for KV from host memory or disk, added up.",
        ),
    ]
    expert_bytes_read: Annotated[
        int, Counter("expert_weight_bytes_read", "Bytes of experts' weights read from memory.")
    ]
    device_counts: DeviceCounts
    step_costs: Mapping[str, Sequence[tuple[int, float]]]
    """(tokens, seconds) of steps as the scheduler estimates them now, by lane; empty lists if nothing was measured."""
    heartbeat: Annotated[float, Gauge("engine_heartbeat_timestamp_seconds", "When the engine last made progress.")]
    has_work: bool
    silence_s: float
    """Seconds without progress while there is work; 0 without work. Pauses of the whole process do not count."""

    @property
    def occupancy(self) -> Annotated[float, Gauge("batch_occupancy_ratio", "batch_running divided by batch_slots.")]:
        """Fraction of the batch's slots in use."""
        return self.running / self.batch_slots

    @property
    def cache_usage(
        self,
    ) -> Annotated[
        float,
        Gauge("kv_cache_usage_ratio", "Fraction of the KV cache that requests hold.", alias="vllm:kv_cache_usage_perc"),
    ]:
        """Fraction of the KV cache that requests hold."""
        return self.used_tokens / self.capacity_tokens

    def numbers(self) -> dict[str, Any]:
        """All numbers by name, including those of devices."""
        named = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "device_counts"}
        return named | {each.name: getattr(self.device_counts, each.name) for each in fields(self.device_counts)}


class Publisher:
    """Written by the engine's thread. Each value is replaced as a whole."""

    def __init__(self) -> None:
        self.load_progress = 0.0
        self.last_progress = 0.0
        """When the engine last made progress, by `clock`."""
        self.clock = AwakeClock(LONGEST_LOOK_S)
        self.start_seconds: Mapping[str, float] = {}
        """Seconds per phase of the start; empty until the engine is ready."""
        self.num_prompt_tokens = 0
        """Prompt tokens of admitted requests."""
        self.num_generated = 0
        self._heartbeat = 0.0
        self._last_shown = 0.0
        self._scheduler = SchedulerNumbers()
        self._core: Mapping[str, Any] = {
            "snapshot_bytes": 0,
            "snapshot_positions": (),
            "tiers": (),
            "waited_for_tiers_s": 0.0,
            "expert_bytes_read": 0,
            "device_counts": DeviceCounts(),
            "step_costs": {},
        }
        self._description: list[tuple[int, str, int, int, int]] = []
        self.note_progress()

    def report_load(self, share: float) -> None:
        """Publish the fraction of the model that is loaded, 0…1."""
        self.load_progress = share
        self.note_progress()

    def report_start(self, start: Start) -> None:
        """Publish and log the phases of the start when it has ended."""
        self.start_seconds = start.times.seconds()
        log.info(
            "started",
            extra={
                "seconds": round(sum(self.start_seconds.values()), 2),
                **{f"{phase}_s": round(seconds, 2) for phase, seconds in self.start_seconds.items()},
                "not_measured_again": start.measurements.reused,
            },
        )

    def note_progress(self) -> None:
        """Record that the engine has made progress."""
        self._heartbeat = time.time()
        self.last_progress = self.clock.now()

    def end_silence(self) -> None:
        """Restart the measurement of silence after an idle period."""
        self.last_progress = self.clock.now()

    @property
    def is_due(self) -> bool:
        """Whether the numbers were last published at least SHOW_S ago."""
        return self.clock.now() - self._last_shown > SHOW_S

    def show(self, core: EngineCore) -> sched.Stats:
        """Publish the core's numbers."""
        self._last_shown = self.clock.now()
        stats = core.stats()
        self._scheduler = SchedulerNumbers(*(getattr(stats, each.name) for each in fields(SchedulerNumbers)))
        self._core = {
            "snapshot_bytes": stats.snapshots * core.state_bytes,
            "snapshot_positions": core.snapshot_positions(MAX_DESCRIBED),
            "tiers": core.tier_numbers(stats),
            "waited_for_tiers_s": core.waited_for_tiers_s,
            "expert_bytes_read": core.expert_bytes_read,
            "device_counts": core.device_counts,
            "step_costs": core.step_costs,
        }
        self._description = core.describe(MAX_DESCRIBED)
        return stats

    def snapshot(
        self, limits: Limits, capacity_tokens: int, *, num_arrived: int, has_work: bool, predicted_wait_s: float
    ) -> Snapshot:
        """The numbers after the last step. `num_arrived`: requests that the scheduler does not know yet."""
        scheduler = {each.name: getattr(self._scheduler, each.name) for each in fields(SchedulerNumbers)}
        return Snapshot(
            **scheduler | {"waiting": self._scheduler.waiting + num_arrived},
            **self._core,
            batch_slots=limits.max_batch_size,
            max_new_tokens=limits.max_new_tokens,
            capacity_tokens=capacity_tokens,
            load_progress=self.load_progress,
            predicted_wait_s=predicted_wait_s,
            prompt_tokens=self.num_prompt_tokens,
            generation_tokens=self.num_generated,
            heartbeat=self._heartbeat,
            has_work=has_work,
            silence_s=self.clock.now() - self.last_progress if has_work else 0.0,
        )

    def describe(self, live: Mapping[int, LiveRequest]) -> list[dict[str, object]]:
        """One entry per request in their order: all running requests, and the first MAX_DESCRIBED waiting ones."""
        now = time.monotonic()
        return [
            found.description(now, state, num_tokens, num_computed, num_blocks)
            for seq, state, num_tokens, num_computed, num_blocks in self._description
            if (found := live.get(seq)) is not None
        ]
