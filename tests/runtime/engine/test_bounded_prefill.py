"""A runner that measures no benefit from long prefill steps bounds only these steps."""

from __future__ import annotations

import pytest

from ballast._core import sched
from ballast.engine.runner import bounded
from devkit.servers.fake_model import FakeModel


def model(max_prefill_tokens: int | None = None) -> FakeModel:
    runner = FakeModel(num_slots=64, block_tokens=16, vocab_size=8)
    if max_prefill_tokens is not None:
        runner.max_prefill_tokens = max_prefill_tokens
    return runner


@pytest.mark.parametrize(("most", "expected"), [(None, 4096), (256, 256), (1000, 1000), (8192, 4096), (8, 64)])
def test_steps_without_decode_rows_are_shortened(most: int | None, expected: int) -> None:
    config = sched.SchedulerConfig(
        num_blocks=300,
        block_tokens=16,
        max_batch_size=4,
        chunk_size=64,
        prefill_chunk_size=4096,
        prefix_cache=False,
    )
    after = bounded(config, model(most))
    assert after.prefill_chunk_size == expected
    same = ("num_blocks", "block_tokens", "max_batch_size", "chunk_size", "prefix_cache")
    assert [getattr(after, name) for name in same] == [getattr(config, name) for name in same]


def test_a_runner_without_a_limit_changes_nothing() -> None:
    config = sched.SchedulerConfig(
        num_blocks=300, block_tokens=16, max_batch_size=4, chunk_size=64, prefill_chunk_size=128
    )
    assert bounded(config, model()) is config
