"""What the engine needs from a model: a batch goes in, logits come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels, sched
from ballast.host.startup.start import Start
from ballast.model.batch import Batch
from ballast.model.device_counts import DeviceCounts
from ballast.model.tiers.tier import CacheTiers


class Runner(Protocol):
    """A loaded model together with its KV memory."""

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Write the batch's KV and return logits [sampled tokens, real vocabulary].

        Calls `alive` after a layer if the last call was 100 ms ago or more, so that a long step can be told from a
        hung one.
        """


@runtime_checkable
class Measurable(Runner, Protocol):
    """A runner whose steps are measured before it serves."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids that a batch may hold."""


@runtime_checkable
class BoundsPrefill(Protocol):
    """A runner that may find out, while loading, that long prefill steps do not pay."""

    @property
    def max_prefill_tokens(self) -> int | None:
        """Most tokens of a step in which nothing decodes, if fewer than configured; None: as configured."""


@runtime_checkable
class LooksAhead(Protocol):
    """A runner whose steps run asynchronously. One step is `queue`, perhaps `stage`, then `logits`."""

    def queue(self, batch: Batch, alive: Callable[[], None], *, is_staged: bool) -> None:
        """Begin a step, calling `alive` as `Runner.forward` does.

        `is_staged`: the batch is the one that `stage` got last, but for its token ids.
        """

    def stage(self, batch: Batch) -> None:
        """Prepare the step that probably follows. Every request in it has one token, which is not known yet."""

    def logits(self, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Wait for the step and return what `Runner.forward` does; valid until the next step is queued."""


@runtime_checkable
class HasPrefillLane(LooksAhead, Protocol):
    """A runner that can compute a step of prompts beside the steps that it is asked for by `queue`, and without the
    CPU's threads. One step is `begin_prefill`, `advance_prefill` until that says so, then `prefill_logits`."""

    @property
    def can_prefill_beside(self) -> bool:
        """Whether it can with what was loaded."""

    def open_prefill_lane(self) -> None:
        """Long prompts come by `begin_prefill` from now on, and `queue` leaves to it what only one of both can use."""

    def is_done(self, timeout_s: float) -> bool:
        """Whether the longest part of the step that `queue` has begun is over, `timeout_s` from now at the latest, so
        that `logits` hardly waits. Raises what fails the step."""

    @property
    def joint_tokens(self) -> tuple[int, int] | None:
        """Fewest and most tokens of a step with prompts, begun by `queue`, that uses the link to the device; None: no
        such step does."""

    @property
    def can_begin_prefill(self) -> bool:
        """False while a step of the decode lane uses the bus to the device's memory: no step can begin then."""

    def begin_prefill(self, batch: Batch) -> None:
        """Begin a step, where `can_begin_prefill`."""

    def advance_prefill(self, alive: Callable[[], None]) -> bool:
        """Go on with the step, without waiting for anything; whether it is computed. To be called every millisecond or
        so. Calls `alive` where the step has made progress; raises what fails it."""

    @property
    def is_prefill_ahead(self) -> bool:
        """Whether `advance_prefill` has nothing to begin before the device has computed more."""

    def cancel_prefill(self) -> None:
        """Leave out what is left of the step: `advance_prefill` says when what has begun is over, and there are no
        logits. May be called again."""

    def abandon_prefill(self) -> None:
        """Wait until the device does nothing more for a step that has begun, which is given up."""

    def prefill_logits(self) -> NDArray[np.float32]:
        """What `Runner.forward` returns, of the step that is computed; valid until the next one begins."""


@runtime_checkable
class HasTiers(Protocol):
    """A runner whose cache may have tiers beside it."""

    @property
    def cache_tiers(self) -> CacheTiers | None:
        """None: there are none."""


@runtime_checkable
class RecordsStart(Protocol):
    """A runner that knows how it was loaded."""

    @property
    def start(self) -> Start:
        """The times of loading and the measurements."""


@runtime_checkable
class HasSpareWork(Protocol):
    """A runner that has left work for the time after its start."""

    def use_spare_time(self) -> bool:
        """Do a part of that work, some tenths of a second of it; returns whether more of it can be done now.
        Called while there are no requests, now and then after it has returned false too."""


@runtime_checkable
class UsesThreads(Protocol):
    """A runner that computes on the CPU."""

    @property
    def pool(self) -> kernels.ThreadPool:
        """Its threads, which are free from when it has returned logits until its next step."""


@runtime_checkable
class UsesDevice(Protocol):
    """A runner that computes on a GPU as well."""

    @property
    def device_counts(self) -> DeviceCounts:
        """What it has done on the GPU so far."""


@runtime_checkable
class CountsExpertReads(Protocol):
    """A runner that counts the bytes of experts that it reads."""

    @property
    def expert_bytes_read(self) -> int:
        """Bytes of routed experts' weights that steps have read from host memory so far."""


@runtime_checkable
class CountsExpertUses(Protocol):
    """A runner that counts how often each expert is used."""

    @property
    def expert_uses(self) -> NDArray[np.int64]:
        """[routed layers, E] the number of tokens that the CPU has computed each expert for so far."""


def bounded(config: sched.SchedulerConfig, runner: Runner) -> sched.SchedulerConfig:
    """The scheduler's configuration, with the runner's bound on steps in which nothing decodes."""
    most = runner.max_prefill_tokens if isinstance(runner, BoundsPrefill) else None
    if most is None or most >= config.prefill_chunk_size:
        return config
    return with_changes(config, prefill_chunk_size=max(most, config.chunk_size))


def with_changes(config: sched.SchedulerConfig, **changes: Any) -> sched.SchedulerConfig:
    """The configuration with other values of some of its arguments. Costs are not kept."""
    names = ("num_blocks", "block_tokens", "max_batch_size", "chunk_size", "prefill_chunk_size", "max_queue",
             "prefix_cache", "prefill_lane_tokens", "joint_tokens", "max_stall_s", "tiers")  # fmt: skip
    return sched.SchedulerConfig(**({name: getattr(config, name) for name in names} | changes))


def with_tiers(config: sched.SchedulerConfig, runner: Runner) -> sched.SchedulerConfig:
    """The scheduler's configuration, with the tiers beside the runner's cache."""
    beside = runner.cache_tiers if isinstance(runner, HasTiers) else None
    if beside is None:
        return config
    return with_changes(config, tiers=[(tier.num_blocks, tier.most_storing) for tier in beside.tiers])
