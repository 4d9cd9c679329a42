"""A seeded long run: thousands of requests that share prefixes, stop, are aborted and preempt each other."""

import hashlib
import random
from typing import Any

import pytest

from ballast._core import sched
from devkit.long import times
from devkit.oracles.reference_scheduler import Expected, ReferenceScheduler

STOP = 0
CONFIG: dict[str, Any] = {
    "num_blocks": 48,
    "block_tokens": 8,
    "max_batch_size": 12,
    "chunk_size": 48,
    "prefill_chunk_size": 96,
}
MOST_WAITING = 24
"""Maximum number of requests that wait for their first step; the engine rejects more, and so does this test."""


class Simulation:
    def __init__(
        self,
        seed: int,
        num_requests: int,
        *,
        looks_ahead: bool = False,
        num_clients: int = 1,
        num_salts: int = 1,
        most_draft_tokens: int = 0,
        **options: Any,
    ) -> None:
        """`num_clients`: the first client sends as many requests as all others together. `num_salts`: number of
        different salts, including no salt. `options`: fields of the scheduler's configuration in addition to CONFIG."""
        self.random = random.Random(seed)
        self.reference = ReferenceScheduler(sched.SchedulerConfig(**(CONFIG | options)), looks_ahead)
        self.num_requests = num_requests
        self.num_clients = num_clients
        self.num_salts = num_salts
        self.most_draft_tokens = most_draft_tokens
        self.num_added = 0
        self.num_refused = 0
        self.digest = hashlib.sha256()
        self._system_prompts = [
            [self.random.randrange(1, 1000) for _ in range(self.random.randrange(70))] for _ in range(8)
        ]

    def run(self) -> None:
        while self.num_added < self.num_requests:
            # Somewhat more arrivals than can be served, in bursts, so that the queue fills up and drains.
            burst = self.random.randrange(1, 12) if self.random.random() < 0.065 else 0
            for seq in range(self.num_added, self.num_added + burst):
                self._add(seq)
            self.num_added += burst
            if self.reference.live and self.random.random() < 0.01:
                self.reference.abort(self.random.choice(list(self.reference.live)))
            if self.reference.config.has_prefill_lane:
                self._step_of_the_prefill_lane()
            if self.reference.tiers:
                self._move_some()
            if self.most_draft_tokens and self.random.random() < 0.6:
                self._draft_some()
            self._digest(self.reference.step(self._next_token, self._abort_some, self._fail_some))
        self.reference.run_dry(self._next_token, max_steps=10_000)

    def _step_of_the_prefill_lane(self) -> None:
        """Its steps last as long as several steps of the other lane."""
        if sched.Lane.PREFILL not in self.reference.outstanding:
            self._digest(self.reference.begin(sched.Lane.PREFILL))
        elif self.random.random() < 0.3:
            self.reference.end(sched.Lane.PREFILL, self._next_token, self._fail_some)

    def _move_some(self) -> None:
        """Transfers take several steps; a few are lost or find damaged blocks."""
        for tier in range(len(self.reference.tiers)):
            self.reference.end_stores(self.random.randrange(5), tier)
            if self.reference.config.state_slots:
                self.reference.end_state_stores(self.random.randrange(2), tier)
                if self.random.random() < 0.05:
                    self.reference.rest()
        if self.reference.fetches and self.random.random() < 0.3:
            self.reference.end_fetch(
                self.random.choice(list(self.reference.fetches)),
                self.random.randrange(3) if self.random.random() < 0.1 else None,
                is_damaged=self.random.random() < 0.5,
            )
        if self.reference.fetches and self.random.random() < 0.02:
            self.reference.abort(self.random.choice(list(self.reference.fetches)))

    def _draft_some(self) -> None:
        """Propose draft tokens for most decoding sequences."""
        for request in list(self.reference.live.values()):
            if request.decodes and self.random.random() < 0.7:
                count = self.random.randrange(self.most_draft_tokens + 1)
                self.reference.propose(request.seq, [self._next_token(request) for _ in range(count)])

    def _digest(self, plan: sched.Plan) -> None:
        for array in (plan.seqs, plan.token_ids, plan.slots, plan.kv_indices, plan.preempted):
            self.digest.update(array.tobytes())

    def _add(self, seq: int) -> None:
        tail = [self.random.randrange(1, 1000) for _ in range(self.random.randrange(1, 50))]
        prompt = self.random.choice(self._system_prompts) + tail
        max_tokens = self.random.choice((1, 8, 40, 200))
        client = self.random.choice((0, self.random.randrange(self.num_clients))) if self.num_clients > 1 else 0
        salt = (0, self.random.randrange(self.num_salts)) if self.num_salts > 1 else (0, 0)
        num_new = sum(not request.admitted_before for request in self.reference.live.values())
        self.num_refused += num_new >= MOST_WAITING or not self.reference.add(
            seq, prompt, max_tokens, {STOP}, min_tokens=2, client=client, salt=salt
        )

    def _next_token(self, request: Expected) -> int:
        if request.draft_token is not None and self.random.random() < 0.7:
            return request.draft_token
        return STOP if self.random.random() < 0.04 else self.random.randrange(1, 1000)

    def _fail_some(self, rows: list[int]) -> dict[int, bool]:
        return {self.random.choice(rows): self.random.random() < 0.5} if rows and self.random.random() < 0.01 else {}

    def _abort_some(self, live: list[int]) -> list[int]:
        return [self.random.choice(live)] if live and self.random.random() < 0.01 else []


def test_thousands_of_requests_leave_no_block_behind() -> None:
    scale = times(1, 4)
    simulation = Simulation(seed=20250117, num_requests=3_500 * scale)
    simulation.run()
    reference = simulation.reference
    stats = reference.scheduler.stats()
    assert (stats.waiting, stats.running, stats.used_tokens) == (0, 0, 0)
    totals = reference.totals
    assert totals.finished + totals.aborted + simulation.num_refused == simulation.num_added
    # The run is only useful if all of this has happened often.
    assert totals.finished + totals.aborted >= 2_500 * scale
    assert totals.aborted > 125 * scale
    assert totals.preemptions > 125 * scale
    assert totals.prefix_hit_tokens > 25_000 * scale
    assert simulation.num_refused > 125 * scale


def test_the_same_calls_give_the_same_plans() -> None:
    digests = set()
    for _ in range(2):
        simulation = Simulation(seed=7, num_requests=500)
        simulation.run()
        digests.add(simulation.digest.hexdigest())
    assert len(digests) == 1


def test_without_a_prefix_cache_everything_is_still_served_once() -> None:
    simulation = Simulation(seed=11, num_requests=500, prefix_cache=False)
    simulation.run()
    assert simulation.reference.totals.prefix_hit_tokens == 0
    assert simulation.reference.totals.preemptions > 0


def test_steps_planned_ahead_leak_no_blocks() -> None:
    simulation = Simulation(seed=13, num_requests=1_000, looks_ahead=True)
    simulation.run()
    totals = simulation.reference.totals
    assert simulation.reference.scheduler.stats().used_tokens == 0
    assert totals.preemptions > 50
    assert 0.05 * totals.steps < totals.predicted < totals.steps


def test_two_lanes_leave_no_block_behind_either() -> None:
    # Short prompts are cheaper in steps with decoding requests, longer ones in separate steps.
    costs = {"decode_costs": [(1, 1.0), (48, 5.0)], "prefill_costs": [(1, 4.0), (96, 4.5)]}
    simulation = Simulation(seed=17, num_requests=times(1_500, 3_000), looks_ahead=True, **costs)
    simulation.run()
    totals = simulation.reference.totals
    assert simulation.reference.scheduler.stats().used_tokens == 0
    assert totals.preemptions > 50
    assert totals.prefill_steps > 200
    assert totals.joined > 20
    assert totals.starved > 5
    assert totals.predicted > 100
    digests = set()
    for _ in range(2):
        again = Simulation(seed=18, num_requests=300, **costs)
        again.run()
        digests.add(again.digest.hexdigest())
    assert len(digests) == 1


def test_two_lanes_that_follow_their_costs_leave_no_block_behind_either() -> None:
    costs = {"decode_costs": [(1, 1.0), (48, 5.0)], "prefill_costs": [(1, 4.0), (96, 4.5)], "joint_tokens": (20, 90)}
    digests = set()
    for _ in range(2):
        simulation = Simulation(seed=31, num_requests=1_000, **costs)
        simulation.reference.now_s = 0.0
        simulation.run()
        digests.add(simulation.digest.hexdigest())
    assert len(digests) == 1
    totals = simulation.reference.totals
    assert simulation.reference.scheduler.stats().used_tokens == 0
    assert totals.prefill_steps > 50
    assert simulation.reference.scheduler.costs()["decode"] != costs["decode_costs"]


def test_fair_share_among_clients_leaks_no_blocks() -> None:
    simulation = Simulation(seed=19, num_requests=times(1_000, 3_000), num_clients=5)
    simulation.run()
    totals = simulation.reference.totals
    assert simulation.reference.scheduler.stats().used_tokens == 0
    assert totals.preemptions > 50
    assert totals.overtaken > 200
    digests = set()
    for _ in range(2):
        again = Simulation(seed=20, num_requests=300, num_clients=5)
        again.run()
        digests.add(again.digest.hexdigest())
    assert len(digests) == 1


def test_one_client_is_served_first_come_first_served() -> None:
    simulation = Simulation(seed=21, num_requests=500)
    simulation.run()
    assert simulation.reference.totals.overtaken == 0


def test_tiers_restore_evicted_blocks() -> None:
    scale = times(1, 2)
    simulation = Simulation(seed=23, num_requests=1_000 * scale, looks_ahead=True, tiers=[(60, 8), (400, 16)])
    simulation.run()
    reference = simulation.reference
    totals, stats = reference.totals, reference.scheduler.stats()
    assert (stats.used_tokens, stats.fetching) == (0, 0)
    assert totals.preemptions > 25 * scale
    assert totals.fetched_blocks > 1_000 * scale
    assert totals.damaged_blocks > 10 * scale
    assert totals.aborted_fetches > 10 * scale
    assert totals.given_up_fetches > 10 * scale
    assert totals.fetched_blocks * CONFIG["block_tokens"] == sum(tier.fetched_tokens for tier in stats.tiers)
    assert all(tier.fetched_tokens > 0 for tier in stats.tiers)
    reference.restart()
    assert reference.totals.restored_blocks > 300
    simulation.num_requests += 500
    simulation.run()
    assert reference.totals.fetched_blocks > 300


def test_tiers_and_two_lanes_leave_no_block_behind_either() -> None:
    costs = {"decode_costs": [(1, 1.0), (48, 5.0)], "prefill_costs": [(1, 4.0), (96, 4.5)]}
    digests = set()
    for _ in range(times(1, 2)):  # the test below repeats this with draft tokens
        simulation = Simulation(seed=29, num_requests=700, looks_ahead=True, tiers=[(200, 8)], **costs)
        simulation.run()
        digests.add(simulation.digest.hexdigest())
    totals = simulation.reference.totals
    assert len(digests) == 1
    assert simulation.reference.scheduler.stats().used_tokens == 0
    assert totals.prefill_steps > 50
    assert totals.fetched_blocks > 200


def test_draft_tokens_leak_no_blocks_whether_correct_or_wrong() -> None:
    costs = {"decode_costs": [(1, 1.0), (48, 5.0)], "prefill_costs": [(1, 4.0), (96, 4.5)]}
    for options in ({}, costs | {"tiers": [(200, 8)]}):
        digests = set()
        for _ in range(2 if options else times(1, 2)):
            simulation = Simulation(seed=41, num_requests=700, looks_ahead=True, most_draft_tokens=7, **options)
            simulation.run()
            digests.add(simulation.digest.hexdigest())
        totals = simulation.reference.totals
        assert len(digests) == 1
        assert simulation.reference.scheduler.stats().used_tokens == 0
        assert totals.preemptions > 10
        assert totals.predicted > 100
        assert totals.drafted_tokens > 3_000
        assert 0.3 * totals.drafted_tokens < totals.right_draft_tokens < 0.7 * totals.drafted_tokens


@pytest.mark.parametrize("has_lanes", [False, True])
def test_tiers_restore_what_windows_need(has_lanes: bool) -> None:
    window, sizes = 20, {"block_tokens": CONFIG["block_tokens"], "max_batch_size": 4}
    costs = {"decode_costs": [(1, 1.0), (96, 3.0)], "prefill_costs": [(1, 2.0)]} if has_lanes else {}
    least = sched.num_window_blocks(
        window=window,
        num_blocks=900,
        step_tokens=192 if has_lanes else 96,
        keeps_borders=False,
        has_tiers=True,
        **sizes,
    )
    for num_window_blocks in times((least,), (least, least + 8)):
        simulation = Simulation(
            seed=47,
            num_requests=700,
            looks_ahead=True,
            most_draft_tokens=4,
            num_blocks=80,
            max_batch_size=4,
            tiers=[(60, 8), (400, 16)],
            window=(window, num_window_blocks),
            **costs,
        )
        simulation.run()
        totals, stats = simulation.reference.totals, simulation.reference.scheduler.stats()
        assert stats.used_tokens == stats.window_used_tokens == 0
        assert totals.fetched_blocks > 300
        assert totals.damaged_blocks > 0
        assert all(tier.fetched_tokens > 0 for tier in stats.tiers)


def test_windows_leave_no_block_behind_either_and_are_found_again() -> None:
    window = 20
    sizes = {name: CONFIG[name] for name in ("num_blocks", "block_tokens", "max_batch_size")}
    least = sched.num_window_blocks(window=window, step_tokens=96, keeps_borders=False, **sizes | {"num_blocks": 900})
    hits = []
    for num_blocks, num_window_blocks in ((48, 48), (200, least), (200, least + 12), (200, 200)):
        digests = set()
        for _ in range(2 if num_window_blocks == least else times(1, 2)):
            simulation = Simulation(
                seed=43,
                num_requests=times(400, 1_500),
                looks_ahead=True,
                most_draft_tokens=4,
                num_salts=2,
                num_blocks=num_blocks,
                window=(window, num_window_blocks),
            )
            simulation.run()
            digests.add(simulation.digest.hexdigest())
        totals, stats = simulation.reference.totals, simulation.reference.scheduler.stats()
        assert len(digests) == 1
        assert stats.used_tokens == stats.window_used_tokens == 0
        assert totals.predicted > 100
        hits.append(totals.prefix_hit_tokens)
        assert num_blocks > 48 or totals.preemptions > times(10, 50)
    assert least < 100
    assert 1_000 < hits[1] < hits[2] < hits[3]


def test_states_leave_no_slot_behind_and_are_found_again() -> None:
    least = 2 * CONFIG["max_batch_size"]
    costs = {"decode_costs": [(1, 1.0), (48, 5.0)], "prefill_costs": [(1, 4.0), (96, 4.5)]}
    hits = []
    for num_blocks, state_slots, options in (
        (48, least + 8, {}),
        (200, least + 8, costs),
        (200, least, {}),
        (200, least + 4, {}),
        (200, least + 100, {}),
    ):
        digests = set()
        for _ in range(2 if options else times(1, 2)):
            simulation = Simulation(
                seed=47,
                num_requests=times(500, 1_500),
                looks_ahead=True,
                most_draft_tokens=4,
                num_salts=2,
                num_blocks=num_blocks,
                state_slots=state_slots,
                **options,
            )
            simulation.run()
            digests.add(simulation.digest.hexdigest())
        totals, stats = simulation.reference.totals, simulation.reference.scheduler.stats()
        assert len(digests) == 1
        assert stats.used_tokens == totals.drafted_tokens == 0
        hits.append(totals.prefix_hit_tokens)
        assert num_blocks > 48 or totals.preemptions > times(15, 50)
    assert hits[2] < hits[3] < hits[4]
    assert hits[4] > 1_000


def test_tiers_bring_states_back() -> None:
    least = 2 * CONFIG["max_batch_size"] + 2
    simulation = Simulation(
        seed=53,
        num_requests=1_200,
        num_salts=2,
        tiers=[(120, 8), (400, 16)],
        state_slots=least + 6,
        state_tiers=[(30, 2, False, 2), (60, 1, True, 2)],
    )
    simulation.run()
    reference = simulation.reference
    totals = reference.totals
    assert reference.scheduler.stats().used_tokens == 0
    assert totals.stored_states > 300
    assert totals.fetched_states > 30
    assert totals.damaged_blocks > totals.damaged_states > 0
    assert totals.preemptions > 20
    reference.restart()
    assert reference.tiers[-1].blocks_of_states
    simulation.num_requests += 300
    simulation.run()
    assert reference.totals.fetched_states > 0


def test_requests_with_different_salts_never_share_a_block() -> None:
    # The reference identifies a token's KV by all tokens before it and the salt, and compares it in every step and
    # fetch.
    simulation = Simulation(seed=37, num_requests=600, num_salts=3, tiers=[(60, 8), (400, 16)])
    simulation.run()
    reference = simulation.reference
    assert reference.scheduler.stats().used_tokens == 0
    assert reference.totals.prefix_hit_tokens > 2_000
    assert reference.totals.fetched_blocks > 300
    assert len({record.salt for record in reference.tiers[-1].records.values()}) == 3
    reference.restart()
    assert reference.totals.restored_blocks > 200
    simulation.num_requests += 300
    simulation.run()
    assert reference.totals.fetched_blocks > 200
