"""Predicted queue times compared with actual ones, in simulated time: every step takes exactly its cost."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ballast._core import sched

ONE_LANE = {"decode_costs": [(1, 0.05), (16, 0.12), (256, 1.5)]}
TWO_LANES = {
    "decode_costs": [(1, 0.03), (16, 0.12), (256, 0.4), (1024, 1.2)],
    "prefill_costs": [(64, 0.7), (4096, 1.0)],
}
ERROR = 0.25
"""A prediction is good if its relative error is at most this, or its absolute error is less than a decode-only step."""
GOOD_SHARE = 0.9


@dataclass
class Arrival:
    at_s: float
    prompt_tokens: int
    reply_tokens: int
    client: int
    predicted_s: float = -1.0
    waited_s: float = -1.0
    first_token_s: float = -1.0


class Clocked:
    """Runs a scheduler with both lanes in simulated time."""

    def __init__(self, config: sched.SchedulerConfig, costs: dict[str, Any], contention: float = 1.0) -> None:
        """A pass takes `contention` times as long if the decode lane computes when it begins."""
        self.scheduler = sched.Scheduler(config)
        self.costs = costs
        self.contention = contention
        self.has_prefill_lane = config.has_prefill_lane
        self.now_s = 0.0
        self.longest_step_s = self.longest_decode_s = 0.0

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
                        factor = self.contention if lane == sched.Lane.PREFILL and outstanding else 1.0
                        outstanding[lane] = (self.now_s + factor * self._cost(lane, plan), plan)
                        for seq in waiting.intersection(plan.seqs.tolist()):
                            arrivals[seq].waited_s = self.now_s - arrivals[seq].at_s
                        waiting.difference_update(plan.seqs.tolist())
            times = [end for end, _ in outstanding.values()]
            if pending:
                times.append(pending[0][1].at_s)
            assert times, "a request waits, but nothing runs"
            self.now_s = max(self.now_s, min(times))
            for lane, (end, plan) in list(outstanding.items()):
                if end <= self.now_s:
                    del outstanding[lane]
                    tokens = np.ones(int(plan.samples.sum()), np.int32)
                    committed = self.scheduler.commit(tokens, lane, now_s=self.now_s)
                    for seq in committed.seqs.tolist():
                        if arrivals[seq].first_token_s < 0:
                            arrivals[seq].first_token_s = self.now_s - arrivals[seq].at_s

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
        if lane == sched.Lane.DECODE:
            self.longest_step_s = max(self.longest_step_s, seconds)
        if plan.num_decode == plan.num_requests:
            self.longest_decode_s = max(self.longest_decode_s, seconds)
        return seconds


def poisson(rate: float, count: int, seed: int, num_clients: int = 1) -> list[Arrival]:
    rng = random.Random(seed)
    at_s, arrivals = 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(rate)
        prompt = int(10 ** rng.uniform(1.3, 2.8))
        arrivals.append(Arrival(at_s, prompt, rng.randrange(10, 120), rng.randrange(num_clients)))
    return arrivals


def config(costs: dict[str, Any], **changes: int) -> sched.SchedulerConfig:
    limits = {"num_blocks": 4096, "max_batch_size": 8, "prefill_chunk_size": 4096 if len(costs) > 1 else 256}
    return sched.SchedulerConfig(block_tokens=32, chunk_size=256, **(limits | changes), **costs)


@pytest.mark.parametrize("costs", [ONE_LANE, TWO_LANES], ids=["one lane", "two lanes"])
@pytest.mark.parametrize(("rate", "slots"), [(0.5, 8), (1.0, 8), (2.0, 8), (2.0, 16), (3.0, 16)])
def test_nine_of_ten_predictions_are_within_a_quarter(costs: dict[str, Any], rate: float, slots: int) -> None:
    clocked = Clocked(config(costs, max_batch_size=slots), costs)
    arrivals = poisson(rate, 300, seed=11)
    clocked.run(arrivals)
    slack_s = clocked.longest_decode_s
    errors = [abs(each.predicted_s - each.waited_s) for each in arrivals]
    allowed = [max(ERROR * each.waited_s, slack_s) for each in arrivals]
    good = sum(error <= most for error, most in zip(errors, allowed, strict=True))
    waiting = [each for each in arrivals if each.waited_s > slack_s]
    assert len(waiting) > (1 - GOOD_SHARE) * len(arrivals), "predictions of 0 must not pass"
    assert good >= GOOD_SHARE * len(arrivals)


def test_short_requests_on_a_quiet_server_are_predicted_to_start_with_the_next_step() -> None:
    clocked = Clocked(config(ONE_LANE, max_batch_size=64), ONE_LANE)
    arrivals = [Arrival(each.at_s, 20, each.reply_tokens, 0) for each in poisson(0.5, 60, seed=5)]
    clocked.run(arrivals)
    assert max(each.predicted_s for each in arrivals) <= clocked.longest_step_s


R1_CUT = {
    "decode_costs": [(1, 0.01), (16, 0.08), (64, 0.18), (256, 0.27), (1024, 0.41)],
    "prefill_costs": [(64, 0.52), (16384, 1.26)],
    "joint_tokens": (64, 1024),
}
"""Seconds of steps of DeepSeek-R1's shape cut to 8 layers on an H100 (benchmarks/results/arrivals.jsonl)."""


QWEN3 = {
    "decode_costs": [(1, 0.007), (16, 0.034), (64, 0.10), (128, 0.11), (256, 0.23), (512, 0.36), (1024, 0.57)],
    "prefill_costs": [(64, 0.15), (512, 0.26), (16384, 1.06)],
}
"""The same for Qwen3-30B's shape."""
CONTENTION = 1.9
"""Slowdown of a pass of QWEN3 while the CPU computes prompts."""


def first_tokens(
    users: int, prompt_tokens: int, reply_tokens: int, costs: dict[str, Any], contention: float = 1.0
) -> list[float]:
    """Time to first token of concurrent users, in their order."""
    limits = {"max_batch_size": 16, "prefill_chunk_size": 16384 if "prefill_costs" in costs else 256}
    clocked = Clocked(config(costs, **limits), costs, contention)
    arrivals = [Arrival(0.0, prompt_tokens, reply_tokens, 0) for _ in range(users)]
    clocked.run(arrivals)
    return [arrival.first_token_s for arrival in arrivals]


@pytest.mark.parametrize(("users", "prompt_tokens"), [(2, 64), (4, 64), (8, 64), (16, 64), (16, 200), (8, 1000)])
@pytest.mark.parametrize("is_joint", [True, False])
def test_simultaneous_users_wait_at_most_one_pass_over_all_prompts(
    users: int, prompt_tokens: int, is_joint: bool
) -> None:
    by_cpu = [(1, 0.01), (16, 0.08), (64, 0.31), (256, 0.65), (1024, 1.5)]
    costs = R1_CUT if is_joint else {**R1_CUT, "joint_tokens": None, "decode_costs": by_cpu}
    one_pass_s = float(np.interp(users * prompt_tokens, *zip(*R1_CUT["prefill_costs"], strict=True)))
    assert max(first_tokens(users, prompt_tokens, 20, costs)) <= 1.5 * one_pass_s


@pytest.mark.parametrize(("users", "prompt_tokens"), [(16, 64), (16, 200), (8, 1000)])
def test_prompts_share_a_pass_if_decoding_would_slow_several_down(users: int, prompt_tokens: int) -> None:
    one_pass_s = float(np.interp(users * prompt_tokens, *zip(*QWEN3["prefill_costs"], strict=True)))
    assert max(first_tokens(users, prompt_tokens, 20, QWEN3, CONTENTION)) <= 1.05 * one_pass_s


@pytest.mark.parametrize("users", [17, 24, 32, 64])
def test_users_beyond_the_batch_do_not_delay_those_within(users: int) -> None:
    alone = max(first_tokens(16, 64, 20, R1_CUT))
    times = first_tokens(users, 64, 20, R1_CUT)
    assert max(times[:16]) <= alone
    assert min(times[16:]) > alone, "these users wait for slots"
    assert times[16:] == sorted(times[16:])


def test_a_burst_in_one_lane_takes_as_long_as_one_prompt_of_all_its_tokens() -> None:
    costs = {"decode_costs": [(1, 0.05), (16, 0.12), (256, 1.5)]}
    for prompt_tokens in (20, 64):
        alone = first_tokens(1, 16 * prompt_tokens, 20, costs)[0]
        assert max(first_tokens(16, prompt_tokens, 20, costs)) <= 1.25 * alone
