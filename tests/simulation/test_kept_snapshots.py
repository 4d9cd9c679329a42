"""Conversations with a model that has recurrent state find their snapshots again. The slots do not suffice for all that
requests leave, so the scheduler must keep those at which conversations continue."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from ballast._core import sched
from ballast.model.kv_pool import GPU_SNAPSHOTS

REPLY, QUESTION, RESULT = 60, 60, 40
BEGINS_REPLY, CALLS = 5, 7
"""Tokens that begin a reply in the prompt, and a call in a reply."""
CAPACITY, BATCH_SIZE, BLOCK_TOKENS = 65_536, 4, 32


@dataclass
class Conversation:
    """Prompts of a conversation whose template repeats replies, or writes them differently in later prompts. An agent's
    turn takes `steps` requests, and later prompts have no reasoning of earlier turns."""

    rng: random.Random
    said: list[int]
    rewrites: bool = False
    steps: int = 1
    num_done: int = 0
    num_asked: int = 0
    prompt: list[int] = field(default_factory=list)

    def next_prompt(self) -> list[int]:
        """The prompt of the next request, which is the last one again until `reply` is called."""
        if not self.prompt:
            if self.num_done % self.steps == 0:
                self.said = self.said + self._tokens(QUESTION)
                self.num_asked = len(self.said)
            self.prompt = self.said + [BEGINS_REPLY] * 6
        return self.prompt

    @property
    def calls(self) -> bool:
        return (self.num_done + 1) % self.steps != 0

    def reply(self, reply: list[int]) -> None:
        self.num_done += 1
        self.said, self.prompt = self.prompt + reply, []
        if self.num_done % self.steps:
            self.said += self._tokens(RESULT)
        elif self.rewrites:
            self.said = self.said[: self.num_asked] + self._tokens(REPLY // 2)

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(10, 9_000) for _ in range(count)]


class Server:
    """A scheduler with a GPU's default number of slots, and the rate of cached tokens in prompts of conversations that
    continue. `has_disk`: with a tier as the disk is, which writes one state at a time, in one step."""

    def __init__(self, seed: int, *, has_disk: bool = False, num_snapshots: int | None = None) -> None:
        self.rng = random.Random(seed)
        slots = sched.num_state_slots(
            capacity_tokens=CAPACITY,
            max_batch_size=BATCH_SIZE,
            least_snapshots=GPU_SNAPSHOTS,
            num_snapshots=num_snapshots,
        )
        num_blocks = CAPACITY // BLOCK_TOKENS
        config = sched.SchedulerConfig(
            num_blocks=num_blocks,
            block_tokens=BLOCK_TOKENS,
            max_batch_size=BATCH_SIZE,
            chunk_size=64,
            prefill_chunk_size=512,
            state_slots=slots,
            tiers=[(8 * num_blocks, 8 * num_blocks)] if has_disk else [],
            state_tiers=[(500, 1, True, 1)] if has_disk else [],
        )
        self.scheduler = sched.Scheduler(config)
        self.num_prompt = self.num_cached = self.num_states_written = 0
        self._seq = 0

    @property
    def rate(self) -> float:
        """Percentage of cached tokens."""
        return 100 * self.num_cached / self.num_prompt

    def serve(self, conversations: list[Conversation], *, aborts: float = 0.0) -> None:
        """One request of each conversation, run together; `aborts`: the fraction that is aborted."""
        live = {self._add(conversation): (conversation, list[int]()) for conversation in conversations}
        ends_after = {seq: self.rng.randrange(1, REPLY) for seq in live if self.rng.random() < aborts}
        found = dict.fromkeys(live, 0)
        for step in range(10_000):
            plan = self.scheduler.plan()
            num_fetched = self._transfer()
            if not plan.num_requests:
                if num_fetched:
                    continue
                break
            found |= {seq: self.scheduler.cached_tokens(seq) for seq in plan.seqs.tolist()}
            sampling = [seq for seq, count in zip(plan.seqs.tolist(), plan.samples.tolist(), strict=True) if count]
            tokens = [self._next_token(*live[seq]) for seq in sampling]
            self.scheduler.commit(np.array(tokens, np.int32))
            for seq, token in zip(sampling, tokens, strict=True):
                live[seq][1].append(token)
            for seq in [seq for seq, count in ends_after.items() if count == step]:
                self.scheduler.abort(seq)
        self.scheduler.check()
        for seq, (conversation, reply) in live.items():
            if conversation.num_done:
                self.num_prompt += len(conversation.prompt)
                self.num_cached += found[seq]
            if len(reply) == REPLY:
                conversation.reply(reply)

    def _transfer(self) -> int:
        """Complete all transfers; returns how many requests fetched blocks."""
        stores, fetches = [], Counter[int]()
        for each in self.scheduler.take_transfers():
            if each.move == sched.Move.FETCH:
                fetches[each.seq] += 1
            elif each.move != sched.Move.DROP:
                stores.append(each)
        for each in stores:
            if each.move == sched.Move.STORE:
                self.scheduler.stored(each.tier, is_whole=True)
            else:
                self.num_states_written += 1
                self.scheduler.stored_state(each.tier, is_whole=True)
        for seq, num_blocks in fetches.items():
            self.scheduler.fetched(seq, num_blocks)
        return len(fetches)

    def _add(self, conversation: Conversation) -> int:
        self._seq += 1
        prompt = conversation.next_prompt()
        at = sorted({conversation.num_asked, len(prompt) - 6})
        ids, none = np.array(prompt, np.int32), np.array([], np.int32)
        self.scheduler.add(self._seq, ids, REPLY, none, snapshots_at=at, snapshot_before=[CALLS])
        return self._seq

    def _next_token(self, conversation: Conversation, reply: list[int]) -> int:
        return CALLS if conversation.calls and len(reply) == REPLY // 2 else self.rng.randrange(10, 9_000)


@dataclass(frozen=True)
class Case:
    """Conversations, and the least percentage of cached tokens."""

    name: str
    num_conversations: int
    rate: int
    rewrites: bool = False
    steps: int = 1
    turns: int = 8
    is_concurrent: bool = False
    whole_turns: bool = False
    aborts: float = 0.0


CASES = [
    Case("few conversations", 4, 92),
    Case("eight conversations", 8, 91),
    Case("twelve conversations", 12, 91),
    Case("more conversations than slots", 16, 39),
    Case("replies rewritten", 8, 86, rewrites=True),
    Case("six concurrent conversations", 6, 85, is_concurrent=True),
    Case("eight concurrent conversations", 8, 72, is_concurrent=True),
    Case("aborted and tried again", 8, 91, aborts=0.3),
    Case("rewritten, aborted and tried again", 8, 88, rewrites=True, aborts=0.3),
    Case("two agents", 2, 91, rewrites=True, steps=5, turns=4, whole_turns=True),
    Case("four agents, step by step", 4, 91, rewrites=True, steps=5, turns=4),
    Case("four agents whose reasoning is kept", 4, 95, steps=5, turns=4, whole_turns=True),
    Case(
        "four concurrent agents, aborted and tried again",
        4,
        89,
        rewrites=True,
        steps=5,
        turns=4,
        is_concurrent=True,
        aborts=0.3,
    ),
]


def run(case: Case, server: Server) -> float:
    system = [server.rng.randrange(10, 9_000) for _ in range(400)]
    all_of_them = [
        Conversation(server.rng, list(system), case.rewrites, case.steps) for _ in range(case.num_conversations)
    ]
    groups = [all_of_them] if case.is_concurrent else [[conversation] for conversation in all_of_them]
    in_a_row = case.steps if case.whole_turns else 1
    for _ in range(case.turns * case.steps // in_a_row):
        for group in groups:
            for _ in range(in_a_row):
                server.serve(group, aborts=case.aborts)
    return server.rate


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conversations_continue_at_their_snapshots(case: Case) -> None:
    assert run(case, Server(1)) >= case.rate


@pytest.mark.parametrize(
    "case",
    [
        Case("conversations", 24, 91),
        Case("replies rewritten", 24, 86, rewrites=True),
        Case("agents", 24, 91, rewrites=True, steps=5, turns=4),
    ],
    ids=lambda case: case.name,
)
def test_more_conversations_than_slots_continue_from_the_disk(case: Case) -> None:
    """A state is on the disk before requests that run need its slot."""
    assert run(case, Server(1, has_disk=True)) >= case.rate


def test_more_snapshots_serve_more_conversations() -> None:
    assert run(Case("conversations", 24, 91), Server(1, num_snapshots=40)) >= 91


def test_states_of_conversations_that_continue_are_not_written() -> None:
    server = Server(1, has_disk=True)
    assert run(Case("two conversations", 2, 91), server) >= 91
    assert server.num_states_written == 0
