"""The scheduler agrees with the reference scheduler under any sequence of operations."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ballast._core import sched
from devkit.long import times
from devkit.oracles.reference_scheduler import ReferenceScheduler

# Few tokens and small blocks, so that prefixes are shared often and blocks are scarce.
STOP = 3
TOKENS = st.integers(0, 2)
CLIENTS = st.integers(0, 2)
SALTS = st.tuples(st.integers(0, 1), st.integers(0, 1))


@st.composite
def windows(draw: st.DrawFn, sizes: dict[str, int], has_lanes: bool, has_tiers: bool) -> tuple[int, int]:
    """Tokens of a window, and the minimum number of blocks or a few more."""
    window = draw(st.integers(1, 10))
    chunk_size, prefill_chunk_size = sizes["chunk_size"], sizes["prefill_chunk_size"]
    least = sched.num_window_blocks(
        window=window,
        num_blocks=sizes["num_blocks"],
        block_tokens=sizes["block_tokens"],
        max_batch_size=sizes["max_batch_size"],
        step_tokens=max(chunk_size, prefill_chunk_size) + (prefill_chunk_size if has_lanes else 0),
        keeps_borders=False,
        has_tiers=has_tiers,
    )
    return window, min(sizes["num_blocks"], least + draw(st.integers(0, 4)))


@st.composite
def configs(draw: st.DrawFn) -> sched.SchedulerConfig:
    max_batch_size = draw(st.integers(1, 4))
    has_costs = draw(st.booleans())
    decode_s = draw(st.floats(0.1, 2.0))
    prefix_cache = draw(st.booleans())
    tiers = st.lists(st.tuples(st.integers(1, 16), st.integers(1, 4)), max_size=2)
    sizes = {
        "num_blocks": draw(st.integers(2, 14)),
        "block_tokens": draw(st.integers(1, 4)),
        "max_batch_size": max_batch_size,
        "chunk_size": max_batch_size + draw(st.integers(0, 8)),
        "prefill_chunk_size": draw(st.integers(1, 16)),
    }
    has_window, has_states = draw(st.sampled_from([(False, False), (True, False), (False, True)]))
    has_lanes = draw(st.booleans())
    of_tiers = draw(tiers) if prefix_cache else []
    of_state = st.tuples(st.integers(0, 5), st.integers(1, 2), st.booleans(), st.integers(0, 3))
    state_tiers = [draw(of_state) for _ in of_tiers] if has_states else []
    least_slots = 2 * max_batch_size + 2 * any(num_states for num_states, *_ in state_tiers)
    return sched.SchedulerConfig(
        **sizes,
        prefix_cache=prefix_cache,
        # Costs of steps with 1 and 8 tokens in seconds, such that either lane can be the cheaper one for a prompt.
        decode_costs=[(1, 1.0), (8, 1.0 + decode_s)] if has_costs else [],
        prefill_costs=[(1, draw(st.floats(0.5, 4.0)))] if has_lanes else [],
        max_stall_s=draw(st.none() | st.floats(0.0, 3.0)),
        joint_tokens=draw(st.none() | st.tuples(st.integers(1, 4), st.integers(4, 12))),
        tiers=of_tiers,
        window=draw(windows(sizes, has_lanes, bool(of_tiers))) if has_window else None,
        state_slots=least_slots + draw(st.integers(0, 6)) if has_states else 0,
        state_tiers=state_tiers,
    )


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(config=configs(), looks_ahead=st.booleans(), now_s=st.none() | st.just(100.0))
    def start(self, config: sched.SchedulerConfig, looks_ahead: bool, now_s: float | None) -> None:
        self.reference = ReferenceScheduler(config, looks_ahead, now_s=now_s)
        self.next_seq = 0

    def _add(self, prompt: list[int], max_tokens: int, min_tokens: int, **options: Any) -> bool:
        self.next_seq += 1
        return self.reference.add(self.next_seq - 1, prompt, max_tokens, {STOP}, min_tokens, **options)

    @rule(
        requests=st.lists(
            st.tuples(
                st.lists(TOKENS, min_size=1, max_size=20), st.integers(1, 12), st.integers(0, 4), st.integers(-1, 1)
            ),
            min_size=1,
            max_size=4,
        ),
        options=st.fixed_dictionaries(
            {"scores_prompt": st.booleans(), "client": CLIENTS, "salt": SALTS, "snapshot_before": st.sets(TOKENS)}
        ),
        snapshots_at=st.lists(st.floats(0, 1), max_size=3).map(sorted),
    )
    def add(
        self,
        requests: list[tuple[list[int], int, int, int]],
        options: dict[str, Any],
        snapshots_at: list[float],
    ) -> None:
        """`snapshots_at`: fractions of each prompt."""
        for prompt, max_tokens, min_tokens, priority in requests:
            at = [int(share * len(prompt)) for share in snapshots_at]
            self._add(prompt, max_tokens, min_tokens, priority=priority, snapshots_at=at, **options)

    @rule(
        prompt=st.lists(TOKENS, min_size=1, max_size=20),
        max_tokens=st.integers(1, 12),
        count=st.integers(1, 3),
        priority=st.integers(-1, 1),
        of_followers=st.integers(-1, 1),
        clients=st.tuples(CLIENTS, CLIENTS),
        salt=SALTS,
    )
    def add_several_choices(
        self,
        prompt: list[int],
        max_tokens: int,
        count: int,
        priority: int,
        of_followers: int,
        clients: tuple[int, int],
        salt: tuple[int, int],
    ) -> None:
        leader = self.next_seq
        if self._add(prompt, max_tokens, 0, priority=priority, client=clients[0], salt=salt):
            for _ in range(count):
                self._add(prompt, max_tokens, 0, priority=of_followers, leader=leader, client=clients[1], salt=salt)

    @rule(count=st.integers(2, 4), repeated=st.integers(1, 6), data=st.data())
    def exhaust_blocks(self, count: int, repeated: int, data: st.DataObject) -> None:
        """Several requests, each of which could fill the whole cache."""
        capacity = self.reference.config.num_blocks * self.reference.config.block_tokens
        for _ in range(count):
            prompt = data.draw(st.lists(TOKENS, min_size=1, max_size=2)) * repeated
            if len(prompt) <= capacity:
                self._add(prompt, capacity + 1 - len(prompt), 0)

    @precondition(lambda self: self.reference.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.reference.abort(data.draw(st.sampled_from(list(self.reference.live))))

    @rule()
    def abort_an_unknown_sequence(self) -> None:
        self.reference.abort(self.next_seq)

    @rule(tokens=st.lists(TOKENS, min_size=4, max_size=4), steps=st.integers(1, 6))
    def step(self, tokens: list[int], steps: int) -> None:
        for _ in range(steps):
            self.reference.step(lambda request: tokens[request.seq % 4])

    @precondition(lambda self: any(request.decodes for request in self.reference.live.values()))
    @rule(guesses=st.lists(st.lists(TOKENS | st.just(STOP), max_size=5), min_size=1, max_size=4), data=st.data())
    def draft_tokens(self, guesses: list[list[int]], data: st.DataObject) -> None:
        """For decoding sequences, and without effect for others. About half of the tokens are correct."""
        for tokens in guesses:
            self.reference.propose(data.draw(st.sampled_from(list(self.reference.live))), tokens)
        self.reference.step(
            lambda request: request.seq % 3 if request.draft_token is None else request.draft_token // 2 * 2
        )

    @precondition(lambda self: self.reference.live)
    @rule(data=st.data())
    def finish_by_stop_token(self, data: st.DataObject) -> None:
        stopping = data.draw(st.sampled_from(list(self.reference.live)))
        self.reference.step(lambda request: STOP if request.seq == stopping else 0)

    @precondition(lambda self: self.reference.live)
    @rule(data=st.data())
    def abort_during_a_step(self, data: st.DataObject) -> None:
        def choose(live: list[int]) -> list[int]:
            return data.draw(st.lists(st.sampled_from(live), unique=True))

        self.reference.step(lambda request: request.seq % 3, choose)

    @precondition(lambda self: self.reference.live)
    @rule(data=st.data())
    def fail_rows(self, data: st.DataObject) -> None:
        def choose(rows: list[int]) -> dict[int, bool]:
            return data.draw(st.dictionaries(st.sampled_from(rows), st.booleans(), max_size=3))

        self.reference.step(lambda request: request.seq % 3, fail_rows=choose)

    @precondition(lambda self: self.reference.config.has_prefill_lane)
    @rule(data=st.data())
    def step_of_the_prefill_lane(self, data: st.DataObject) -> None:
        """It begins in one call and ends in a later one."""
        if sched.Lane.PREFILL not in self.reference.outstanding:
            self.reference.begin(sched.Lane.PREFILL)
            return

        def choose(rows: list[int]) -> dict[int, bool]:
            return data.draw(st.dictionaries(st.sampled_from(rows), st.booleans(), max_size=2))

        self.reference.end(sched.Lane.PREFILL, lambda request: request.seq % 3, choose)

    @precondition(lambda self: self.reference.fetches)
    @rule(data=st.data(), num_blocks=st.none() | st.integers(0, 3), is_damaged=st.booleans())
    def end_a_fetch(self, data: st.DataObject, num_blocks: int | None, is_damaged: bool) -> None:
        seq = data.draw(st.sampled_from(list(self.reference.fetches)))
        self.reference.end_fetch(seq, num_blocks, is_damaged=is_damaged)

    @precondition(lambda self: self.reference.fetches)
    @rule(data=st.data())
    def abort_a_fetch(self, data: st.DataObject) -> None:
        self.reference.abort(data.draw(st.sampled_from(list(self.reference.fetches))))

    @precondition(lambda self: self.reference.tiers)
    @rule(count=st.integers(1, 8), tier=st.integers(0, 1))
    def end_stores(self, count: int, tier: int) -> None:
        self.reference.end_stores(count, tier)

    @precondition(lambda self: self.reference.tiers and self.reference.config.state_slots)
    @rule(count=st.integers(1, 3), tier=st.integers(0, 1), is_whole=st.sampled_from((True, True, True, False)))
    def end_stores_of_states(self, count: int, tier: int, is_whole: bool) -> None:
        self.reference.end_state_stores(count, tier, is_whole=is_whole)

    @precondition(lambda self: self.reference.tiers and self.reference.config.state_slots)
    @rule()
    def rest(self) -> None:
        self.reference.rest()

    @precondition(lambda self: self.reference.tiers)
    @rule(tier=st.integers(0, 1))
    def lose_a_store(self, tier: int) -> None:
        self.reference.end_stores(1, tier, is_whole=False)

    @precondition(lambda self: self.reference.tiers)
    @rule(block_seconds=st.sampled_from((0.0, 0.1, 2.0, 100.0)), tier=st.integers(0, 1))
    def measure(self, block_seconds: float, tier: int) -> None:
        self.reference.measure(tier, block_seconds)

    @precondition(lambda self: self.reference.tiers and not self.reference.live)
    @rule()
    def restart(self) -> None:
        self.reference.restart()

    @precondition(lambda self: self.reference.now_s is not None)
    @rule(seconds=st.sampled_from((0.01, 0.5, 2.0, 30.0)))
    def wait(self, seconds: float) -> None:
        """Advance the time: costs follow the steps, and a delayed prefill pass is released."""
        self.reference.now_s += seconds

    @rule()
    def run_dry(self) -> None:
        self.reference.run_dry(lambda request: 2, max_steps=2000)

    @invariant()
    def invariants_hold(self) -> None:
        self.reference.scheduler.check()


SchedulerMachine.TestCase.settings = settings(max_examples=times(75, 300), stateful_step_count=40, deadline=None)
TestScheduler = SchedulerMachine.TestCase
