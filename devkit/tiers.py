"""The tiers of an engine's KV cache, for tests."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ballast.engine.core import EngineCore
from ballast.model.tiers.disk_tier import DiskTier
from ballast.model.tiers.tier import KvTier

LIMIT_S = 60.0


def tiers_of(core: EngineCore) -> Sequence[KvTier]:
    """The tiers, fastest first."""
    runner = core._runner
    return () if runner.cache_tiers is None else runner.cache_tiers.tiers


def until_written(core: EngineCore) -> None:
    """Wait until the disk tier has written everything: a small model is faster than its threads. The next step sees all
    blocks."""
    until = time.monotonic() + LIMIT_S
    for tier in tiers_of(core):
        while isinstance(tier, DiskTier) and _is_writing(tier):
            assert time.monotonic() < until, "the disk tier does not finish its writes"
            time.sleep(0.001)


def _is_writing(tier: DiskTier) -> bool:
    return len(tier._free_rows) < tier.most_storing or len(tier._free_state_rows) < tier.most_storing_states
