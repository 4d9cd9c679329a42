"""What the engine needs from a model: a batch goes in, logits come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.host.startup.start import Start
from ballast.model.batch import Batch
from ballast.model.device_counts import DeviceCounts
from ballast.model.tiers.tier import CacheTiers


class Runner(ABC):
    """A loaded model together with its KV memory. Every model has `forward`; the rest is optional."""

    vocabulary: int | None = None
    """Number of token ids that a batch may hold; None: steps are not measured before the runner serves."""
    max_prefill_tokens: int | None = None
    """Most tokens of a step in which nothing decodes, if fewer than configured: the runner may find out, while loading,
    that long prefill steps do not pay."""
    cache_tiers: CacheTiers | None = None
    """The tiers of the KV cache; None: there are none."""
    window: tuple[int, int] | None = None
    """The tokens that a token sees in layers that free what is behind their windows, and the number of usable blocks of
    these layers; None: all layers keep all."""
    state_slots: int = 0
    """The number of usable slots of recurrent state; 0: no layer has such a state."""
    state_bytes: int = 0
    """Bytes of such a slot."""
    pool: kernels.ThreadPool | None = None
    """The threads that compute on the CPU. They are free from when logits are returned until the next step."""
    measuring: Callable[[], AbstractContextManager[None]] = nullcontext
    """Makes a context whose steps are measured: their tokens do not count as use of experts."""
    start: Start | None = None
    """The times of loading and the measurements; None: they are not recorded."""

    @abstractmethod
    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Write the batch's KV and return logits [sampled tokens, real vocabulary].

        Calls `alive` after a layer if the last call was 100 ms ago or more, so that a long step can be told from a
        hung one.
        """

    def use_spare_time(self) -> bool:
        """Do a part of the work that was left for the time after the start, some tenths of a second of it, and return
        whether more of it can be done now. Called while there are no requests, sometimes also after it has returned
        False."""
        return False

    def close(self) -> None:
        """Wait until nothing runs any more, and keep what the next start can use. Called behind the last step."""
        return

    @property
    def device_counts(self) -> DeviceCounts:
        """Counts of its work on a GPU so far; zeros without a GPU."""
        return DeviceCounts()

    @property
    def expert_bytes_read(self) -> int:
        """Bytes of routed experts' weights that steps have read from host memory so far."""
        return 0

    @property
    def expert_uses(self) -> NDArray[np.int64]:
        """[routed layers, E] the number of tokens that the CPU has computed each expert for so far."""
        raise NotImplementedError

    # Steps that run asynchronously: one step is `queue`, perhaps `stage`, then `logits`.

    @property
    def is_asynchronous(self) -> bool:
        """Whether steps are begun by `queue`. Otherwise they are `forward`."""
        return False

    def queue(self, batch: Batch, alive: Callable[[], None], *, is_staged: bool) -> None:
        """Begin a step, calling `alive` as `forward` does.

        `is_staged`: the batch is the one that `stage` got last, but for its token ids.
        """
        raise NotImplementedError

    def stage(self, batch: Batch) -> None:
        """Prepare the step that probably follows. Every request in it has one token, which is not known yet."""
        raise NotImplementedError

    def is_done(self, timeout_s: float) -> bool:
        """Whether the longest part of the step that `queue` has begun is over, `timeout_s` from now at the latest, so
        that `logits` hardly waits. Raises what fails the step."""
        raise NotImplementedError

    def logits(self, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Wait for the step and return what `forward` does; valid until the next step is queued."""
        raise NotImplementedError

    # The prefill lane: steps of prompts that run concurrently with the steps begun by `queue`, and without the CPU's
    # threads. One step is `begin_prefill`, `advance_prefill` until it returns True, then `prefill_logits`.

    @property
    def can_prefill_beside(self) -> bool:
        """Whether there is a prefill lane, with what was loaded."""
        return False

    def open_prefill_lane(self) -> None:
        """Long prompts come by `begin_prefill` from now on, and `queue` leaves to it what only one of both can use."""
        raise NotImplementedError

    @property
    def joint_tokens(self) -> tuple[int, int] | None:
        """Fewest and most tokens of a step with prompts, begun by `queue`, that uses the link to the device; None: no
        such step does."""
        return None

    @property
    def can_begin_prefill(self) -> bool:
        """False while a step of the decode lane uses the bus to the device's memory: no step can begin then."""
        raise NotImplementedError

    def begin_prefill(self, batch: Batch) -> None:
        """Begin a step, if `can_begin_prefill`."""
        raise NotImplementedError

    def advance_prefill(self, alive: Callable[[], None]) -> bool:
        """Continue the step without waiting for anything, and return whether it is computed. To be called about every
        millisecond. Calls `alive` if the step has made progress; raises what fails it."""
        raise NotImplementedError

    @property
    def is_prefill_ahead(self) -> bool:
        """Whether `advance_prefill` has nothing to begin before the device has computed more."""
        raise NotImplementedError

    def cancel_prefill(self) -> None:
        """Skip the rest of the step: `advance_prefill` reports when the begun part is over, and there are no logits.
        May be called again."""
        raise NotImplementedError

    def abandon_prefill(self) -> None:
        """Wait until the device does nothing more for a step that has begun and is given up."""
        raise NotImplementedError

    def prefill_logits(self) -> NDArray[np.float32]:
        """What `forward` returns, of the step that is computed; valid until the next one begins."""
        raise NotImplementedError
