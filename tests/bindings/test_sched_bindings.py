"""The compiled scheduler's Python interface: views, ownership, exceptions, the interpreter lock."""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast._core import InvariantError, sched

PLAN_ARRAYS = {
    "seqs": np.int64,
    "query_indptr": np.int32,
    "token_ids": np.int32,
    "positions": np.int32,
    "slots": np.int32,
    "kv_indptr": np.int32,
    "kv_indices": np.int32,
    "window_slots": np.int32,
    "window_indices": np.int32,
    "kv_lens": np.int32,
    "samples": np.int32,
    "logits_at": np.int64,
    "preempted": np.int64,
}
COMMITTED_ARRAYS = {"seqs": np.int64, "tokens": np.int32, "finish": np.uint8}
LIMITS: dict[str, Any] = {
    "num_blocks": 64,
    "block_tokens": 4,
    "max_batch_size": 4,
    "chunk_size": 64,
    "prefill_chunk_size": 64,
}


NO_SALT = (0, 0)


def salts(*words: tuple[int, int]) -> NDArray[np.uint64]:
    return np.array(words, np.uint64).reshape(-1, 2)


def ids(*tokens: int) -> NDArray[np.int32]:
    return np.array(tokens, dtype=np.int32)


def new_scheduler(**limits: Any) -> sched.Scheduler:
    return sched.Scheduler(sched.SchedulerConfig(**{**LIMITS, **limits}))


@pytest.fixture
def scheduler() -> sched.Scheduler:
    """A scheduler with two requests of 5 and 9 prompt tokens waiting."""
    scheduler = new_scheduler()
    scheduler.add(1, ids(*range(5)), 3, ids())
    scheduler.add(2, ids(*range(100, 109)), 3, ids())
    return scheduler


def test_a_plan_describes_the_rows_of_a_step(scheduler: sched.Scheduler) -> None:
    plan = scheduler.plan()
    assert (plan.num_requests, plan.num_tokens, plan.num_decode) == (2, 14, 0)
    assert plan.seqs.tolist() == [1, 2]
    assert plan.query_indptr.tolist() == [0, 5, 14]
    assert plan.token_ids.tolist() == [*range(5), *range(100, 109)]
    assert plan.positions.tolist() == [*range(5), *range(9)]
    assert plan.slots.tolist() == [*range(4, 9), *range(12, 21)]
    assert plan.kv_indptr.tolist() == [0, 2, 5]
    assert plan.kv_indices.tolist() == [1, 2, 3, 4, 5]
    assert plan.kv_lens.tolist() == [5, 9]
    assert plan.samples.tolist() == [1, 1]
    assert plan.logits_at.tolist() == [4, 13]
    assert plan.preempted.tolist() == []


def test_a_commit_reports_sampled_tokens_and_ended_sequences(scheduler: sched.Scheduler) -> None:
    scheduler.add(3, ids(7), 1, ids())
    scheduler.add(4, ids(8), 9, ids(70, 71))
    scheduler.plan()
    committed = scheduler.commit(ids(50, 60, 70, 71))
    assert committed.seqs.tolist() == [1, 2, 3, 4]
    assert committed.tokens.tolist() == [50, 60, 70, 71]
    assert committed.finish.tolist() == [0, 0, sched.Finish.LENGTH, sched.Finish.STOP]
    assert (sched.Finish.NONE, sched.Finish.STOP, sched.Finish.LENGTH) == (0, 1, 2)


def test_draft_tokens_are_computed_in_one_row_and_kept_while_correct(scheduler: sched.Scheduler) -> None:
    scheduler.plan()
    scheduler.commit(ids(50, 60))
    scheduler.propose(1, ids(51, 52, 53))
    plan = scheduler.plan()
    assert plan.token_ids.tolist() == [50, 51, 60], "max_tokens leaves room for one draft token"
    assert plan.samples.tolist() == [2, 1]
    assert plan.logits_at.tolist() == [0, 1, 2]
    committed = scheduler.commit(ids(51, 52, 61))
    assert committed.seqs.tolist() == [1, 1, 2]
    assert committed.tokens.tolist() == [51, 52, 61]
    assert committed.finish.tolist() == [sched.Finish.NONE, sched.Finish.LENGTH, sched.Finish.NONE]


def test_draft_tokens_of_a_sequence_that_does_not_decode_next_are_a_value_error(scheduler: sched.Scheduler) -> None:
    for seq in (1, 9):
        with pytest.raises(ValueError, match=f"sequence {seq} does not decode in the next step"):
            scheduler.propose(seq, ids(51))


def arrays_of(scheduler: sched.Scheduler) -> Iterator[tuple[Any, str, Any]]:
    plan = scheduler.plan()
    for name, dtype in PLAN_ARRAYS.items():
        yield plan, name, dtype
    committed = scheduler.commit(ids(1, 1))
    for name, dtype in COMMITTED_ARRAYS.items():
        yield committed, name, dtype


def test_arrays_are_views_of_the_same_memory_with_the_documented_types(scheduler: sched.Scheduler) -> None:
    for owner, name, dtype in arrays_of(scheduler):
        array = getattr(owner, name)
        assert array.dtype == dtype, name
        assert array.ndim == 1, name
        if array.size:
            assert not array.flags.owndata, name
            assert array.base is owner, name
            again = getattr(owner, name)
            assert array.__array_interface__["data"][0] == again.__array_interface__["data"][0], name


def test_arrays_cannot_be_written_to(scheduler: sched.Scheduler) -> None:
    for owner, name, _ in arrays_of(scheduler):
        array = getattr(owner, name)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        if array.size:
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.flags.writeable = True


def test_arrays_keep_their_memory_alive_and_unchanged(scheduler: sched.Scheduler) -> None:
    """The contract promises less: views are valid until the next plan. Reading freed memory would be worse than
    stale."""
    token_ids = scheduler.plan().token_ids
    before = token_ids.tolist()
    seqs = scheduler.commit(ids(1, 1)).seqs
    scheduler.plan()
    scheduler.commit(ids(2, 2))
    del scheduler
    gc.collect()
    assert token_ids.tolist() == before
    assert seqs.tolist() == [1, 2]


def test_stats_and_descriptions_follow_a_request(scheduler: sched.Scheduler) -> None:
    assert scheduler.describe() == [(1, "waiting", 5, 0, 0), (2, "waiting", 9, 0, 0)]
    scheduler.plan()
    scheduler.commit(ids(1, 1))
    assert scheduler.describe() == [(1, "decode", 6, 5, 2), (2, "decode", 10, 9, 3)]
    stats = scheduler.stats()
    assert (stats.waiting, stats.running) == (0, 2)
    assert (stats.capacity_tokens, stats.used_tokens, stats.cached_tokens) == (256, 20, 0)
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens, stats.preemptions) == (14, 0, 0)
    assert scheduler.abort(1)
    assert not scheduler.abort(1)
    assert scheduler.describe() == [(2, "decode", 10, 9, 3)]
    assert scheduler.stats().cached_tokens == 4
    scheduler.check()


def test_a_description_can_omit_waiting_requests() -> None:
    scheduler = new_scheduler(max_batch_size=1)
    for seq in range(4):
        scheduler.add(seq, ids(seq), 3, ids())
    scheduler.plan()
    assert [seq for seq, *_ in scheduler.describe(2)] == [0, 1, 2]
    assert [seq for seq, *_ in scheduler.describe(max_waiting=0)] == [0]
    assert len(scheduler.describe(None)) == len(scheduler.describe()) == 4


@pytest.mark.parametrize("forget", [True, False])
def test_a_failed_row_is_excluded_from_the_commit_and_the_cache(scheduler: sched.Scheduler, forget: bool) -> None:
    with pytest.raises(ValueError, match="sequence 1 is no row of an outstanding plan"):
        scheduler.fail(1, forget=forget)
    scheduler.plan()
    scheduler.fail(1, forget=forget)
    assert scheduler.commit(ids(50, 60)).seqs.tolist() == [2]
    stats = scheduler.stats()
    assert (stats.running, stats.used_tokens, stats.cached_tokens) == (1, 12, 0)
    scheduler.check()


def test_a_follower_of_a_smaller_priority_number_is_a_value_error(scheduler: sched.Scheduler) -> None:
    with pytest.raises(ValueError, match="sequence 3 follows sequence 1 of priority 0 with priority -1"):
        scheduler.add(3, ids(*range(5)), 3, ids(), priority=-1, leader=1)


def test_the_prefix_cache_reports_its_hits() -> None:
    scheduler = new_scheduler()
    for seq in (1, 2):
        scheduler.add(seq, ids(*range(10)), 1, ids())
        plan = scheduler.plan()
        assert plan.num_tokens == (10 if seq == 1 else 2)
        assert scheduler.cached_tokens(seq) == (0 if seq == 1 else 8)
        scheduler.commit(ids(5))
    assert scheduler.stats().prefix_hit_tokens == 8


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_blocks", 0),
        ("num_blocks", 2**31 - 1),
        ("num_blocks", 2**40),
        ("block_tokens", 0),
        ("max_batch_size", 0),
        ("prefill_chunk_size", 0),
    ],
)
def test_an_impossible_limit_is_rejected_by_name(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field}={value}"):
        new_scheduler(**{field: value})


def test_a_chunk_smaller_than_the_batch_is_rejected_with_both_values() -> None:
    with pytest.raises(ValueError, match=r"chunk_size=3: .*max_batch_size=4"):
        new_scheduler(chunk_size=3)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"window": (-1, 9)}, "window=-1: "),
        ({"window": (9, 31)}, "window blocks=31: expected 32 to num_blocks=64; take .* steps of 64 tokens"),
        ({"window": (9, 65)}, "window blocks=65: "),
        ({"window": (9, 47), "tiers": [(9, 1)]}, "window blocks=47: expected 48 .* steps of 64 tokens and tiers"),
        ({"window": (9, 47), "prefill_costs": [(1, 1.0)]}, "window blocks=47: expected 48 .* steps of 128 tokens"),
    ],
)
def test_a_window_that_cannot_work_is_named(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        new_scheduler(**changes)


@pytest.mark.parametrize("name", ["window", "num_blocks", "block_tokens", "max_batch_size", "step_tokens"])
def test_window_blocks_are_not_counted_for_nothing(name: str) -> None:
    numbers = dict.fromkeys(("window", "num_blocks", "block_tokens", "max_batch_size", "step_tokens"), 4)
    with pytest.raises(ValueError, match=f"{name}=0; expected 1 or more"):
        sched.num_window_blocks(**numbers | {name: 0})


@pytest.mark.parametrize("name", ["capacity_tokens", "max_batch_size", "least_snapshots", "num_snapshots"])
def test_state_slots_are_counted_and_negative_numbers_rejected(name: str) -> None:
    numbers = {"capacity_tokens": 81_920, "max_batch_size": 4, "least_snapshots": 6}
    assert sched.num_state_slots(**numbers) == 8 + 10
    assert sched.num_state_slots(**numbers | {"capacity_tokens": 0}) == 8 + 8
    assert sched.num_state_slots(**numbers | {"least_snapshots": 32}) == 8 + 32
    assert sched.num_state_slots(**numbers, num_snapshots=3) == 8 + 3
    with pytest.raises(ValueError, match=rf"^{name}=-1; expected 0 or more$"):
        sched.num_state_slots(**numbers | {name: -1})


def test_layers_with_a_window_read_and_write_blocks_of_their_own() -> None:
    scheduler = new_scheduler(window=(6, 32), chunk_size=8, prefill_chunk_size=8)
    scheduler.add(1, ids(*range(17)), 3, ids())
    plan = scheduler.plan()
    assert plan.window_slots.tolist() == plan.slots.tolist() == [*range(4, 12)]
    scheduler.commit(ids())
    plan = scheduler.plan()
    assert plan.kv_indices.tolist() == [1, 2, 3, 4]
    assert plan.window_indices.tolist() == [1, 2, 3, 4], "position 8 sees 3 to 8"
    scheduler.commit(ids())
    plan = scheduler.plan()
    assert plan.window_indices.tolist() == [0, 0, 3, 4, 5], "position 16 sees 11 to 16"
    assert scheduler.stats().window_used_tokens == 12
    scheduler.commit(ids(50))
    scheduler.check()


def test_the_configuration_can_be_read_and_not_changed() -> None:
    config = sched.SchedulerConfig(**LIMITS)
    assert {field: getattr(config, field) for field in LIMITS} == LIMITS
    assert config.prefix_cache
    with pytest.raises(AttributeError):
        config.num_blocks = 1


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "problem"),
    [
        (ids(), 1, "empty prompt"),
        (ids(1), 0, "max_tokens=0"),
        (ids(1), 257, "never fits: 1 prompt tokens and max_tokens=257"),
        (np.zeros((2, 2), np.int32), 1, "prompt has 2 dimensions"),
    ],
)
def test_an_invalid_request_is_a_value_error(prompt: NDArray[np.int32], max_tokens: int, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        new_scheduler().add(1, prompt, max_tokens, ids())


def test_the_id_of_a_live_sequence_is_a_value_error(scheduler: sched.Scheduler) -> None:
    with pytest.raises(ValueError, match="sequence 1 is live already"):
        scheduler.add(1, ids(1), 1, ids())


def test_the_cache_hit_of_an_unknown_sequence_is_a_value_error(scheduler: sched.Scheduler) -> None:
    with pytest.raises(ValueError, match="sequence 9 is not live"):
        scheduler.cached_tokens(9)


@pytest.mark.parametrize("tokens", [np.array([1], np.int64), np.array([1.0]), np.arange(4, dtype=np.int32)[::2]])
def test_arrays_of_another_type_or_layout_are_rejected_not_converted(tokens: NDArray[Any]) -> None:
    scheduler = new_scheduler()
    with pytest.raises(TypeError):
        scheduler.add(1, tokens, 1, ids())
    with pytest.raises(TypeError):
        scheduler.propose(1, tokens)


def test_plan_and_commit_in_the_wrong_order_are_errors(scheduler: sched.Scheduler) -> None:
    with pytest.raises(RuntimeError, match="without a plan"):
        scheduler.commit(ids())
    scheduler.plan()
    with pytest.raises(RuntimeError, match="before commit"):
        scheduler.plan()
    with pytest.raises(ValueError, match="1 tokens for a plan that samples 2"):
        scheduler.commit(ids(1))
    scheduler.commit(ids(1, 1))
    assert issubclass(InvariantError, RuntimeError)


def add_what_never_fits(scheduler: sched.Scheduler) -> None:
    with pytest.raises(ValueError, match="never fits"):
        scheduler.add(99, ids(1), 1000, ids())


def commit_out_of_turn(scheduler: sched.Scheduler) -> None:
    with pytest.raises(RuntimeError):
        scheduler.commit(ids())


def plan_nothing(scheduler: sched.Scheduler) -> None:
    scheduler.plan()


@pytest.mark.parametrize("call", [add_what_never_fits, commit_out_of_turn, plan_nothing])
def test_other_threads_run_while_the_scheduler_works(call: Callable[[sched.Scheduler], None]) -> None:
    """With a switch interval of an hour, a thread runs only if another one releases the interpreter lock."""
    scheduler = new_scheduler()
    gate = threading.Lock()
    reached: list[bool] = []

    def other_thread() -> None:
        with gate:
            reached.append(True)

    interval = sys.getswitchinterval()
    gate.acquire()
    thread = threading.Thread(target=other_thread)
    thread.start()
    try:
        sys.setswitchinterval(3600)
        gate.release()
        for _ in range(200_000):
            call(scheduler)
            if reached:
                break
        ran = bool(reached)
    finally:
        sys.setswitchinterval(interval)
        thread.join(timeout=60)
    assert ran


def test_tier_operations_are_returned_as_transfers() -> None:
    scheduler = new_scheduler(num_blocks=4, tiers=[(8, 8)])
    scheduler.add(1, ids(*range(9)), 1, ids())
    scheduler.plan()
    assert scheduler.take_transfers() == []
    scheduler.commit(ids(7))
    first, second = scheduler.take_transfers()
    assert (first.move, first.tier, first.parent, first.tokens.tolist()) == (sched.Move.STORE, 0, 0, [0, 1, 2, 3])
    assert (second.parent, second.tokens.tolist()) == (first.tier_block, [4, 5, 6, 7])
    assert first.block != second.block
    assert scheduler.take_transfers() == []
    for _ in range(2):
        scheduler.stored(0, is_whole=True)
    scheduler.add(2, ids(*range(50, 65)), 1, ids())  # uses the whole cache
    scheduler.plan()
    scheduler.commit(ids(7))
    scheduler.take_transfers()

    scheduler.add(3, ids(*range(9)), 1, ids())
    assert scheduler.plan().num_requests == 0
    fetches = scheduler.take_transfers()
    assert [(each.move, each.seq, each.tier_block) for each in fetches] == [
        (sched.Move.FETCH, 3, first.tier_block),
        (sched.Move.FETCH, 3, second.tier_block),
    ]
    assert scheduler.describe() == [(3, "fetching", 9, 0, 3)]
    assert scheduler.stats().fetching == 1
    scheduler.fetched(3, 1, is_damaged=True)
    assert scheduler.plan().positions.tolist() == [4, 5, 6, 7, 8]
    assert scheduler.cached_tokens(3) == 4
    (tier,) = scheduler.stats().tiers
    assert (tier.capacity_tokens, tier.fetched_tokens) == (32, 4)
    scheduler.check()


def step(scheduler: sched.Scheduler) -> list[int]:
    """Run one step and return the ids of its rows; all sample 7."""
    plan = scheduler.plan()
    scheduler.commit(ids(*[7] * int(plan.samples.sum())))
    scheduler.check()
    return plan.seqs.tolist()


def evicted(seq: int = 1, **changes: Any) -> sched.Scheduler:
    """A scheduler that has tokens 0…8 only in its tier; request `seq` with the same tokens is fetching them."""
    scheduler = new_scheduler(**{"num_blocks": 8, "tiers": [(16, 16)], **changes})
    for prompt in (range(9), range(50, 81)):  # the second prompt uses the whole cache
        scheduler.add(seq, ids(*prompt), 1, ids())
        while step(scheduler):
            pass
        while any(each.move == sched.Move.STORE for each in scheduler.take_transfers()):
            for _ in range(len(prompt) // 4):
                scheduler.stored(0, is_whole=True)
    scheduler.add(seq, ids(*range(9)), 2, ids())
    assert step(scheduler) == []
    assert scheduler.describe() == [(seq, "fetching", 9, 0, 3)]
    return scheduler


def test_a_fetching_request_holds_no_slot_and_gets_the_next_free_one() -> None:
    scheduler = evicted(max_batch_size=1)
    scheduler.add(2, ids(90, 91), 2, ids())
    scheduler.add(3, ids(92, 93), 1, ids())
    assert step(scheduler) == [2]
    assert (scheduler.stats().running, scheduler.stats().waiting, scheduler.stats().fetching) == (1, 2, 1)
    scheduler.fetched(1, 2)
    assert [line[1] for line in scheduler.describe()] == ["fetched", "decode", "waiting"]
    assert [step(scheduler) for _ in range(5)] == [[2], [1], [1], [3], []]
    assert scheduler.stats().used_tokens == 0


def test_a_request_that_waits_to_fetch_delays_no_other_request() -> None:
    scheduler = evicted(max_batch_size=1)
    scheduler.add(2, ids(*range(9)), 1, ids())  # the maximum number of requests is fetching
    scheduler.add(3, ids(90, 91), 1, ids())
    assert step(scheduler) == [3]
    scheduler.fetched(1, 2)
    assert [step(scheduler) for _ in range(4)] == [[1], [1], [2], []]


def test_a_request_that_waits_for_a_fetching_leader_delays_no_other_request() -> None:
    scheduler = evicted(max_batch_size=1)
    scheduler.add(2, ids(*range(9)), 1, ids(), leader=1)
    scheduler.add(3, ids(90, 91), 1, ids())
    assert step(scheduler) == [3]
    scheduler.abort(2)
    scheduler.fetched(1, 2)
    assert step(scheduler) == [1]


def test_a_preempted_requests_slot_goes_to_a_request_that_has_fetched() -> None:
    scheduler = evicted(max_batch_size=1)
    scheduler.add(2, ids(90, 91), 30, ids())
    while len(scheduler.describe()) == 2 and scheduler.describe()[1][4] < 5:
        assert step(scheduler) == [2]
    scheduler.fetched(1, 2)
    assert [step(scheduler) for _ in range(6)] == [[2], [2], [2], [1], [1], [2]]
    assert scheduler.stats().preemptions == 1


def test_damaged_blocks_are_sent_again_by_requests_with_intact_copies() -> None:
    scheduler = evicted(max_batch_size=2)
    scheduler.add(2, ids(*range(9)), 1, ids())
    assert step(scheduler) == []
    first, damaged = (each.tier_block for each in scheduler.take_transfers() if each.seq == 1)
    scheduler.fetched(1, 2)
    scheduler.fetched(2, 1, is_damaged=True)
    (drop,) = scheduler.take_transfers()
    assert (drop.move, drop.tier_block) == (sched.Move.DROP, damaged)
    assert scheduler.abort(2)
    assert step(scheduler) == [1]
    (store,) = scheduler.take_transfers()
    assert (store.move, store.parent, store.tokens.tolist()) == (sched.Move.STORE, first, [4, 5, 6, 7])


def test_blocks_not_fetched_stay_in_the_tier_unless_damaged() -> None:
    scheduler = evicted(max_batch_size=1)
    scheduler.take_transfers()
    scheduler.abort(1)
    scheduler.fetched(1, 1)
    assert scheduler.take_transfers() == []
    scheduler.add(2, ids(*range(9)), 1, ids())
    assert step(scheduler) == []
    assert [(each.move, each.seq) for each in scheduler.take_transfers()] == [(sched.Move.FETCH, 2)] * 2
    with pytest.raises(ValueError, match="sequence 2 fetched 2 blocks before a damaged one of 2 blocks"):
        scheduler.fetched(2, 2, is_damaged=True)


def test_blocks_that_are_faster_to_compute_are_not_fetched() -> None:
    costs = {"decode_costs": [(1, 1.0), (16, 16.0)]}  # one token per second
    scheduler = evicted(max_batch_size=1, **costs)
    scheduler.take_transfers()
    assert scheduler.is_worth_fetching(1)
    scheduler.measured(0, 5.0)
    assert not scheduler.is_worth_fetching(1), "a running fetch is reconsidered"
    scheduler.fetched(1, 1)
    assert scheduler.plan().positions.tolist() == [4, 5, 6, 7, 8]
    scheduler.commit(ids(7))
    for seconds, fetches in ((5.0, 0), (3.9, 1)):
        scheduler = evicted(max_batch_size=1, **costs)
        scheduler.abort(1)
        scheduler.fetched(1, 0)
        scheduler.measured(0, seconds)
        scheduler.add(2, ids(*range(9)), 1, ids())
        step(scheduler)
        assert scheduler.stats().fetching == fetches
    with pytest.raises(ValueError, match="sequence 5 fetches nothing"):
        scheduler.is_worth_fetching(5)
    with pytest.raises(ValueError, match="tier 1 of 1"):
        scheduler.measured(1, 1.0)


def test_earlier_queued_fetches_count_when_a_fetch_is_reconsidered() -> None:
    scheduler = evicted(decode_costs=[(1, 1.0), (16, 16.0)])  # one token per second
    scheduler.add(2, ids(*range(9)), 1, ids())
    step(scheduler)
    assert scheduler.stats().fetching == 2
    scheduler.measured(0, 2.5)
    assert [scheduler.is_worth_fetching(seq) for seq in (1, 2)] == [True, False]
    scheduler.coming(1, 0, 1)
    assert [scheduler.is_worth_fetching(seq) for seq in (1, 2)] == [True, True]
    with pytest.raises(ValueError, match="sequence 1: 2 blocks to come of 1"):
        scheduler.coming(1, 0, 2)
    with pytest.raises(ValueError, match="tier 1 of 1"):
        scheduler.coming(1, 1, 0)
    with pytest.raises(ValueError, match="sequence 5 fetches nothing"):
        scheduler.coming(5, 0, 0)
    scheduler.check()
    scheduler.fetched(1, 2)
    scheduler.measured(0, 3.9)
    assert scheduler.is_worth_fetching(2), "it is now first in the queue"
    scheduler.check()


def with_request(seq: int, num_tokens: int, **changes: Any) -> sched.Scheduler:
    """A scheduler that has processed a prompt of this many tokens and one reply token. Two blocks are being stored in
    its tier."""
    scheduler = new_scheduler(**{"chunk_size": 64, "prefill_chunk_size": 64, "tiers": [(64, 2)], **changes})
    scheduler.add(seq, ids(*range(num_tokens)), 1, ids())
    step(scheduler)
    assert scheduler.stats().running == 0
    return scheduler


def test_blocks_without_room_in_a_tier_are_sent_after_the_request_ends() -> None:
    scheduler = with_request(1, 42)
    sent = []
    while transfers := scheduler.take_transfers():
        sent += [each.tokens.tolist() for each in transfers]
        scheduler.stored(0, is_whole=True)
        scheduler.check()
    scheduler.stored(0, is_whole=True)
    assert sent == [list(range(begin, begin + 4)) for begin in range(0, 40, 4)]
    assert scheduler.stats().unsent == 0
    (tier,) = scheduler.stats().tiers
    assert (tier.cached_tokens, tier.dropped_tokens) == (40, 0)


def test_blocks_evicted_before_they_were_sent_are_counted() -> None:
    scheduler = with_request(1, 42, num_blocks=16)
    scheduler.add(2, ids(*range(100, 140)), 1, ids())  # leaves six of the blocks in the cache
    step(scheduler)
    while scheduler.take_transfers():
        for _ in range(2):
            scheduler.stored(0, is_whole=True)
            scheduler.check()
    (tier,) = scheduler.stats().tiers
    assert (tier.cached_tokens, tier.dropped_tokens) == (64, 16)


def test_shared_blocks_are_counted_once_when_evicted() -> None:
    scheduler = with_request(1, 42, num_blocks=16)
    for _ in range(2):
        scheduler.stored(0, is_whole=False)  # no more blocks are stored
    for seq in range(2, 6):
        scheduler.add(seq, ids(*range(40), seq), 1, ids())
        step(scheduler)
    assert scheduler.stats().unsent == 0
    assert scheduler.stats().tiers[0].dropped_tokens == 0, "the cache still has these tokens"
    scheduler.add(6, ids(*range(100, 164)), 1, ids())  # uses the whole cache
    step(scheduler)
    assert scheduler.stats().tiers[0].dropped_tokens == 32, "all except the two blocks that were sent"


def test_few_requests_wait_for_a_tier_without_progress() -> None:
    scheduler = with_request(1, 42, num_blocks=2000)
    for seq in range(2, 100):
        scheduler.add(seq, ids(*range(1000 * seq, 1000 * seq + 9)), 1, ids())
        step(scheduler)
    assert scheduler.stats().unsent == 64


def test_a_tier_holds_arrived_blocks() -> None:
    scheduler = with_request(1, 42)
    assert scheduler.stats().tiers[0].cached_tokens == 0
    scheduler.stored(0, is_whole=True)
    assert scheduler.stats().tiers[0].cached_tokens == 4


def test_wrong_use_of_tiers_is_refused() -> None:
    scheduler = new_scheduler(tiers=[(8, 8)])
    scheduler.add(1, ids(1, 2), 1, ids())
    with pytest.raises(ValueError, match="sequence 1 fetches nothing"):
        scheduler.fetched(1, 0)
    with pytest.raises(RuntimeError, match="has no pending store"):
        scheduler.stored(0, is_whole=True)
    with pytest.raises(ValueError, match="tier 1 of 1"):
        scheduler.stored(1, is_whole=True)
    with pytest.raises(ValueError, match="restored block 9: ids are unique and run from 1 to 8"):
        scheduler.restore(0, ids(9), ids(0), ids(1, 2, 3, 4), salts(NO_SALT))
    with pytest.raises(ValueError, match="differ in number"):
        scheduler.restore(0, ids(1), ids(0), ids(1, 2, 3), salts(NO_SALT))
    with pytest.raises(ValueError, match="differ in number"):
        scheduler.restore(0, ids(1), ids(0), ids(1, 2, 3, 4), salts())
    with pytest.raises(ValueError, match="its parent has another salt"):
        scheduler.restore(0, ids(2, 1), ids(1, 0), ids(*range(8)), salts((1, 2), NO_SALT))
    scheduler.restore(0, ids(2, 1), ids(1, 0), ids(*range(8)), salts(NO_SALT, NO_SALT))
    with pytest.raises(ValueError, match="knows blocks already"):
        scheduler.restore(0, ids(3), ids(0), ids(1, 2, 3, 4), salts(NO_SALT))
    for tiers in ([(0, 1)], [(1, 0)]):
        with pytest.raises(ValueError, match="tiers=0"):
            new_scheduler(tiers=tiers)
    with pytest.raises(ValueError, match="tiers mirror the prefix cache"):
        new_scheduler(tiers=[(1, 1)], prefix_cache=False)


def test_only_equal_salts_share_blocks() -> None:
    scheduler = new_scheduler(tiers=[(8, 8)])
    cached = {}
    stored = []
    for seq, salt in enumerate([NO_SALT, (1, 2), (1, 3), (1, 2), NO_SALT]):
        scheduler.add(seq, ids(1, 2, 3, 4, 5), 1, ids(), salt=salt)
        scheduler.plan()
        stored += [each.salt for each in scheduler.take_transfers() if each.move == sched.Move.STORE]
        cached[seq] = scheduler.cached_tokens(seq)
        scheduler.commit(ids(9))
        stored += [each.salt for each in scheduler.take_transfers() if each.move == sched.Move.STORE]
    assert cached == {0: 0, 1: 0, 2: 0, 3: 4, 4: 4}
    assert stored == [NO_SALT, (1, 2), (1, 3)], "one block per salt is stored in the tier"


def test_a_leader_with_another_salt_is_refused() -> None:
    scheduler = new_scheduler()
    scheduler.add(1, ids(1, 2), 1, ids(), salt=(1, 2))
    with pytest.raises(ValueError, match="follows sequence 1, which has another salt"):
        scheduler.add(2, ids(1, 2), 1, ids(), leader=1)
