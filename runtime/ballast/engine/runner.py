"""What the engine needs from a model: a batch goes in, logits come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels, sched
from ballast.model.batch import Batch
from ballast.model.device_counts import DeviceCounts


class Runner(Protocol):
    """A loaded model together with its KV memory."""

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Write the batch's KV and return logits [sampled tokens, real vocabulary].

        Calls `alive` after a layer if the last call was 100 ms ago or more, so that a long step can be told from a
        hung one.
        """


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
    return sched.SchedulerConfig(
        num_blocks=config.num_blocks,
        block_tokens=config.block_tokens,
        max_batch_size=config.max_batch_size,
        chunk_size=config.chunk_size,
        prefill_chunk_size=max(most, config.chunk_size),
        max_queue=config.max_queue,
        prefix_cache=config.prefix_cache,
    )
