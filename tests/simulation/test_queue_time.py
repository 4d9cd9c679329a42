"""Predicted queue times compared with actual ones, in simulated time: every step takes exactly its cost."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from ballast._core import sched

ONE_LANE = {"decode_costs": [(1, 0.05), (16, 0.12), (256, 1.5)]}
TWO_LANES = {
    "decode_costs": [(1, 0.03), (16, 0.12), (256, 0.4), (1024, 1.2)],
    "prefill_costs": [(64, 0.7), (4096, 1.0)],
}
ERROR = 0.25
"""A prediction is good if it is this close to the true wait, as a share of it, or closer than a step."""
GOOD_SHARE = 0.9


@dataclass
class Arrival:
    at_s: float
    prompt_tokens: int
    reply_tokens: int
    client: int
    predicted_s: float = -1.0
    waited_s: float = -1.0


class Clocked:
    """Runs a scheduler with both lanes in simulated time."""

    def __init__(self, config: sched.SchedulerConfig, costs: dict[str, list[tuple[int, float]]]) -> None:
        self.scheduler = sched.Scheduler(config)
        self.costs = costs
        self.has_prefill_lane = config.has_prefill_lane
        self.now_s = 0.0
        self.longest_step_s = 0.0

    def run(self, arrivals: list[Arrival]) -> None:
        pending = list(enumerate(arrivals))
        outstanding: dict[int, tuple[float, sched.Plan]] = {}
        waiting = set()
        while pending or waiting or outstanding or self.scheduler.stats().running:
            while pending and pending[0][1].at_s <= self.now_s:
                seq, arrival = pending.pop(0)
                self._arrive(seq, arrival)
                waiting.add(seq)
            for lane in (sched.Lane.DECODE, sched.Lane.PREFILL)[: 1 + self.has_prefill_lane]:
                if lane not in outstanding:
                    plan = self.scheduler.plan(lane, now_s=self.now_s)
                    if plan.num_requests:
                        outstanding[lane] = (self.now_s + self._cost(lane, plan), plan)
                        for seq in waiting.intersection(plan.seqs.tolist()):
                            arrivals[seq].waited_s = self.now_s - arrivals[seq].at_s
                        waiting.difference_update(plan.seqs.tolist())
            times = [end for end, _ in outstanding.values()]
            if pending:
                times.append(pending[0][1].at_s)
            assert times, "something waits and nothing runs"
            self.now_s = max(self.now_s, min(times))
            for lane, (end, plan) in list(outstanding.items()):
                if end <= self.now_s:
                    del outstanding[lane]
                    tokens = np.ones(int(plan.samples.sum()), np.int32)
                    self.scheduler.commit(tokens, lane, now_s=self.now_s)

    def _arrive(self, seq: int, arrival: Arrival) -> None:
        state = self.scheduler.queue_state(now_s=self.now_s)
        arrival.predicted_s = state.predicted_wait_s(
            0, arrival.client, arrival.prompt_tokens, arrival.reply_tokens, horizon_s=1e6
        )
        prompt = np.arange(arrival.prompt_tokens, dtype=np.int32) + seq * 10_000
        none = np.array([], np.int32)
        self.scheduler.add(seq, prompt, arrival.reply_tokens, none, client=arrival.client)

    def _cost(self, lane: int, plan: sched.Plan) -> float:
        points = self.costs["prefill_costs" if lane == sched.Lane.PREFILL else "decode_costs"]
        seconds = float(np.interp(plan.num_tokens, *zip(*points, strict=True)))
        self.longest_step_s = max(self.longest_step_s, seconds if lane == sched.Lane.DECODE else 0.0)
        return seconds


def poisson(rate: float, count: int, seed: int, num_clients: int = 1) -> list[Arrival]:
    rng = random.Random(seed)
    at_s, arrivals = 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(rate)
        prompt = int(10 ** rng.uniform(1.3, 2.8))
        arrivals.append(Arrival(at_s, prompt, rng.randrange(10, 120), rng.randrange(num_clients)))
    return arrivals


def config(costs: dict[str, list[tuple[int, float]]], **changes: int) -> sched.SchedulerConfig:
    limits = {"num_blocks": 4096, "max_batch_size": 8, "prefill_chunk_size": 4096 if len(costs) > 1 else 256}
    return sched.SchedulerConfig(block_tokens=32, chunk_size=256, max_queue=10_000, **(limits | changes), **costs)


@pytest.mark.parametrize("costs", [ONE_LANE, TWO_LANES], ids=["one lane", "two lanes"])
@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0])
def test_nine_of_ten_predictions_are_within_a_quarter(costs: dict[str, list[tuple[int, float]]], rate: float) -> None:
    clocked = Clocked(config(costs), costs)
    arrivals = poisson(rate, 300, seed=11)
    clocked.run(arrivals)
    errors = [abs(each.predicted_s - each.waited_s) for each in arrivals]
    allowed = [max(ERROR * each.waited_s, clocked.longest_step_s) for each in arrivals]
    good = sum(error <= most for error, most in zip(errors, allowed, strict=True))
    assert good >= GOOD_SHARE * len(arrivals)


def test_short_requests_on_a_quiet_server_are_predicted_to_start_with_the_next_step() -> None:
    clocked = Clocked(config(ONE_LANE, max_batch_size=64), ONE_LANE)
    arrivals = [Arrival(each.at_s, 20, each.reply_tokens, 0) for each in poisson(0.5, 60, seed=5)]
    clocked.run(arrivals)
    assert max(each.predicted_s for each in arrivals) <= clocked.longest_step_s
