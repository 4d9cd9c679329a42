"""Constraints on single tokens from request fields: allowed_token_ids, bad_words, reasoning budgets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ballast.engine.sampling.constraint import Constraint
from ballast.families.marks import Mark
from ballast.generation.channels import channel_rules
from ballast.generation.job import Job
from ballast.grammar.token_rules import AllOf, NoWords, OnlyTokens, ThinkingBudget, bits_of
from ballast.text.marks import Start
from ballast.text.tokenizer import Tokenizer
from ballast.wire.openai.request import ChatCompletionRequest, GenerationRequest
from ballast.wire.parsing import refuse


def with_token_rules(job: Job, body: GenerationRequest, tokenizer: Tokenizer, start: Start = Start.CONTENT) -> Job:
    """The job with the rules of `body` added to its constraint. `start`: how its reply begins. Raises RequestError."""
    rules = dict(_rules(body, tokenizer, start))
    if not rules:
        return job
    constraint = job.sampling.constraint
    form = () if constraint is None else (constraint,)
    fields = (*rules, *(("the form of the text",) if form else ()))
    both = AllOf((*form, *rules.values()), fields, tokenizer.vocab_size)
    return replace(job, sampling=replace(job.sampling, constraint=both))


def _rules(body: GenerationRequest, tokenizer: Tokenizer, start: Start) -> Iterator[tuple[str, Constraint]]:
    if body.allowed_token_ids is not None:
        yield "allowed_token_ids", OnlyTokens(bits_of(body.allowed_token_ids, tokenizer.vocab_size))
    if body.bad_words:
        yield "bad_words", NoWords(_spelled(body.bad_words, tokenizer), tokenizer.vocab_size)
    budget = body.thinking_budget if isinstance(body, ChatCompletionRequest) else None
    if tokenizer.reply.has_channels:
        yield from channel_rules(body, tokenizer, start)
        return
    begin_id, end_id = (tokenizer.id_of(tokenizer.reply.spellings[mark]) for mark in (Mark.THINK, Mark.END_THINK))
    if budget is not None and start is not Start.CONTENT and begin_id is not None and end_id is not None:
        begins_inside = start is not Start.EITHER
        yield (
            "thinking_token_budget",
            ThinkingBudget(budget, begin_id, end_id, begins_inside, tokenizer.vocab_size),
        )


def _spelled(words: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The tokens of each word as vLLM encodes them: at the beginning of a text, and after a space if that gives other
    tokens of the same number."""
    spelled: list[tuple[int, ...]] = []
    for n, word in enumerate(words):
        plain, spaced = (tuple(tokenizer.encode(before + word.lstrip(), parse_special=False)) for before in ("", " "))
        if not plain:
            refuse(f"bad_words.{n}", "contains only white space")
        spelled.append(plain)
        if spaced[0] != plain[0] and len(spaced) == len(plain):
            spelled.append(spaced)
    return spelled
