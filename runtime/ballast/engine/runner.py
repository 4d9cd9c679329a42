"""The scheduler's configuration, as far as it depends on the loaded runner."""

from __future__ import annotations

from typing import Any

from ballast._core import sched
from ballast.model.runner import Runner


def bounded(config: sched.SchedulerConfig, runner: Runner) -> sched.SchedulerConfig:
    """The configuration with the runner's bound on steps in which nothing decodes."""
    most = runner.max_prefill_tokens
    if most is None or most >= config.prefill_chunk_size:
        return config
    return with_changes(config, prefill_chunk_size=max(most, config.chunk_size))


def with_changes(config: sched.SchedulerConfig, **changes: Any) -> sched.SchedulerConfig:
    """The configuration with other values of some of its arguments."""
    names = ("num_blocks", "block_tokens", "max_batch_size", "chunk_size", "prefill_chunk_size", "prefix_cache",
             "decode_costs", "prefill_costs", "prefill_lane_tokens", "joint_tokens", "max_stall_s", "tiers",
             "window", "state_slots", "state_tiers")  # fmt: skip
    return sched.SchedulerConfig(**({name: getattr(config, name) for name in names} | changes))


def with_cache(config: sched.SchedulerConfig, runner: Runner) -> sched.SchedulerConfig:
    """The configuration with the window of the runner's cache, and its slots of recurrent state."""
    if (config.window, config.state_slots) == (runner.window, runner.state_slots):
        return config
    return with_changes(config, window=runner.window, state_slots=runner.state_slots)


def with_tiers(config: sched.SchedulerConfig, runner: Runner) -> sched.SchedulerConfig:
    """The configuration with the tiers of the runner's cache."""
    if runner.cache_tiers is None:
        return config
    tiers = runner.cache_tiers.tiers
    return with_changes(
        config,
        tiers=[(tier.num_blocks, tier.most_storing) for tier in tiers],
        state_slots=runner.state_slots,
        state_tiers=[
            (
                tier.num_states,
                tier.most_storing_states,
                tier.takes_rested_states,
                tier.state_bytes // tier.block_bytes,
            )
            for tier in tiers
        ],
    )
