"""What the engine needs of a model: a batch goes in, logits come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ballast._core import sched
from ballast.model.batch import Batch
from ballast.model.device_counts import DeviceCounts


class Runner(Protocol):
    """A loaded model together with its KV memory."""

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Write the batch's KV and return logits [sampled tokens, real vocabulary].

        Calls `alive` after a layer when its last call is 100 ms ago, so that a long step is told from a dead one.
        """


@runtime_checkable
class BoundsPrefill(Protocol):
    """A runner that may find while it is loaded that long steps do not pay."""

    @property
    def max_prefill_tokens(self) -> int | None:
        """Most tokens of a step in which nothing decodes, where it is fewer than configured."""


@runtime_checkable
class LooksAhead(Protocol):
    """A runner whose steps run beside the calling thread: `queue`, perhaps `stage`, then `logits` are one step."""

    def queue(self, batch: Batch, alive: Callable[[], None], *, is_staged: bool) -> None:
        """Begin a step, calling `alive` as `Runner.forward` does. `is_staged`: all of the batch but its token ids is
        what `stage` was given last."""

    def stage(self, batch: Batch) -> None:
        """Make ready the step that probably follows, in which every request has one token, not yet known."""

    def logits(self, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Wait for the step; what `Runner.forward` returns, valid until the next step is queued."""


@runtime_checkable
class UsesDevice(Protocol):
    """A runner that computes on a GPU as well."""

    @property
    def device_counts(self) -> DeviceCounts:
        """What it has done there so far."""


@runtime_checkable
class CountsExpertReads(Protocol):
    """A runner that knows what it has read."""

    @property
    def expert_bytes_read(self) -> int:
        """Bytes of routed experts' weights that steps have read from host memory so far."""


@runtime_checkable
class CountsExpertUses(Protocol):
    """A runner that knows which experts it has chosen."""

    @property
    def expert_uses(self) -> NDArray[np.int64]:
        """[routed layers, E]: for how many tokens the CPU has computed each so far."""


def bounded(config: sched.SchedulerConfig, runner: Runner) -> sched.SchedulerConfig:
    """The scheduler's configuration with the runner's bound on steps in which nothing decodes."""
    most = runner.max_prefill_tokens if isinstance(runner, BoundsPrefill) else None
    if most is None or most >= config.prefill_chunk_size:
        return config
    return sched.SchedulerConfig(
        num_blocks=config.num_blocks,
        block_tokens=config.block_tokens,
        max_batch_size=config.max_batch_size,
        chunk_size=config.chunk_size,
        prefill_chunk_size=max(most, config.chunk_size),
        max_queue=config.max_queue,
        prefix_cache=config.prefix_cache,
    )
