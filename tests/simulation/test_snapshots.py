"""Requests begin at the deepest snapshot of recurrent state that an earlier request requested or left."""

import random

import pytest

from ballast._core import sched
from devkit.long import times
from devkit.oracles.reference_scheduler import SNAPSHOT_DISTANCE, Expected, ReferenceScheduler

STOP, OPENER = 0, 1
LANES = {"decode_costs": [(1, 1.0), (48, 5.0)], "prefill_costs": [(1, 4.0), (96, 4.5)]}


class Conversations:
    """Prompts that repeat a part of an earlier prompt and reply, like turns whose reply is rendered differently."""

    def __init__(self, seed: int, *, has_lanes: bool, **sizes: int) -> None:
        self.random = random.Random(seed)
        config = {"block_tokens": 8, "max_batch_size": 6, "chunk_size": 48, "prefill_chunk_size": 96} | sizes
        self.reference = ReferenceScheduler(
            sched.SchedulerConfig(num_blocks=60_000, state_slots=8_000, **config, **(LANES if has_lanes else {})),
            finds_snapshots=True,
        )
        self._said: list[list[int]] = [[]]

    def run(self, num_requests: int) -> None:
        num_added = 0
        while num_added < num_requests:
            if self.random.random() < 0.15:
                self._add(num_added)
                num_added += 1
            if self.reference.live and self.random.random() < 0.01:
                self.reference.abort(self.random.choice(list(self.reference.live)))
            if self.reference.config.has_prefill_lane:
                if sched.Lane.PREFILL not in self.reference.outstanding:
                    self.reference.begin(sched.Lane.PREFILL)
                elif self.random.random() < 0.4:
                    self.reference.end(sched.Lane.PREFILL, self._next_token)
            self.reference.step(self._next_token)
        self.reference.run_dry(self._next_token, max_steps=10_000)

    def _add(self, seq: int) -> None:
        said = self.random.choice(self._said)
        prompt = said[: self.random.randrange(len(said) + 1)]
        prompt = prompt + [self.random.randrange(2, 1000) for _ in range(self.random.randrange(1, 60))]
        if self.random.random() < 0.01:
            prompt += [self.random.randrange(2, 1000) for _ in range(2 * SNAPSHOT_DISTANCE)]
        at = sorted(self.random.randrange(len(prompt) + 1) for _ in range(self.random.randrange(3)))
        max_tokens = self.random.choice((1, 8, 40))
        assert self.reference.add(
            seq, prompt, max_tokens, {STOP}, snapshots_at=at, snapshot_before={OPENER} if seq % 2 else ()
        )
        self._said.append(self.reference.live[seq].tokens)  # grows with the reply

    def _next_token(self, _: Expected) -> int:
        chance = self.random.random()
        return STOP if chance < 0.03 else OPENER if chance < 0.1 else self.random.randrange(2, 1000)


@pytest.mark.parametrize("has_lanes", [False, True], ids=["one lane", "two lanes"])
def test_requests_begin_at_the_deepest_snapshot(has_lanes: bool) -> None:
    conversations = Conversations(23, has_lanes=has_lanes)
    conversations.run(times(250, 3_000))
    totals, stats = conversations.reference.totals, conversations.reference.scheduler.stats()
    assert totals.preemptions == 0
    assert stats.snapshots > times(250, 600)
    assert totals.prefix_hit_tokens > times(4_000, 10_000)
    assert stats.used_tokens == 0
