"""Conversations of random tokens with an engine; each turn repeats the text so far."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings
from devkit.generate import Generated, generate

SETTINGS = EngineSettings(
    cache_lens=1024,
    max_batch_size=3,
    max_new_tokens=40,
    chunk_size=24,
    prefill_chunk_size=48,
    max_queue=32,
    block_tokens=4,
)
"""A cache for a few conversations, with steps that divide their prompts."""


def random_tokens(rng: random.Random, count: int) -> list[int]:
    """Random tokens of the small models' vocabulary."""
    return [rng.randrange(300) for _ in range(count)]


def greedy(prompt: Sequence[int], max_tokens: int = 12) -> Request:
    """A request with greedy sampling."""
    return Request("test", tuple(prompt), SamplingParams(max_tokens=max_tokens, temperature=0.0))


def converse(
    core: EngineCore,
    *,
    num_conversations: int = 6,
    num_turns: int = 3,
    num_common: int = 90,
    longest: int = 60,
    max_tokens: int = 12,
    num_added: int = 15,
    after_turn: Callable[[], None] = lambda: None,
) -> list[Generated]:
    """The replies of all conversations, in order of turns. First prompts start with `num_common` equal tokens, followed
    by 5 to `longest` - 1 others; each later turn adds `num_added`."""
    rng = random.Random(5)
    common = random_tokens(rng, num_common)
    said = [common + random_tokens(rng, rng.randrange(5, longest)) for _ in range(num_conversations)]
    replies = []
    for _ in range(num_turns):
        turn = generate(core, [greedy(text, max_tokens) for text in said])
        replies += turn
        after_turn()
        for text, reply in zip(said, turn, strict=True):
            text += [*reply.token_ids, *random_tokens(rng, num_added)]
    return replies


def texts(replies: Sequence[Generated]) -> list[tuple[int, ...]]:
    """The tokens of each reply."""
    return [reply.token_ids for reply in replies]


def cached(replies: Sequence[Generated]) -> int:
    """Total number of cached prompt tokens."""
    return sum(reply.cached_tokens for reply in replies)
