"""Readers and constraints of a request's replies on channels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ballast.engine.sampling.constraint import Constraint
from ballast.families.family import REASONING_CHANNEL
from ballast.families.marks import Mark
from ballast.generation.chat_prompt import thinking_enabled
from ballast.generation.tool_use import ToolUse
from ballast.grammar.channels.lazy_calls import LazyChannelCalls
from ballast.grammar.channels.prefix import channel_grammar
from ballast.grammar.constraint import Grammar
from ballast.grammar.token_rules import ChannelThinkingBudget, NoWords
from ballast.text.marks import ChannelRules, Layout, Start, channel_start, ids_of_marks, marks_of
from ballast.text.think_tags import tags_of
from ballast.text.tokenizer import Tokenizer
from ballast.wire.openai.request import ChatCompletionRequest, GenerationRequest


def channels_of(prompt_ids: Iterable[int], tokenizer: Tokenizer) -> Start:
    """The beginning of a reply. `prompt_ids` are in reverse order."""
    return channel_start(prompt_ids, marks_of(tokenizer, tokenizer.reply.spellings), tokenizer)


def channel_layout(tokenizer: Tokenizer, start: Start, use: ToolUse | None, *, splits_reasoning: bool) -> Layout:
    """How a reply is divided. Reasoning that is not split off is in the content, between its tags."""
    functions = None if use is None else frozenset(tool["function"]["name"] for tool in use.tools)
    tags = None if splits_reasoning else tags_of(tokenizer.reply)
    marks = marks_of(tokenizer, tokenizer.reply.spellings)
    return Layout(marks, start, channels=ChannelRules(functions, tags))


def free_calls(calls: Grammar, start: Start, tokenizer: Tokenizer) -> Constraint:
    """The constraint of a reply that may call."""
    marks = marks_of(tokenizer, tokenizer.reply.spellings)
    return LazyChannelCalls(calls, marks, tokenizer.token_bytes, begins_in_header=start is Start.HEADER)


def last_message(
    grammar: Grammar, *, start: Start, tokenizer: Tokenizer, body: ChatCompletionRequest, is_answer: bool
) -> Constraint:
    """The constraint of a reply whose last message follows `grammar`."""
    may_reason = thinking_enabled(body) is not False
    return channel_grammar(grammar, start, tokenizer, may_reason=may_reason, is_answer=is_answer)


def channel_rules(body: GenerationRequest, tokenizer: Tokenizer, start: Start) -> Iterator[tuple[str, Constraint]]:
    """The rules about reasoning, by their field: none at all if thinking is off, and at most its budget."""
    if not isinstance(body, ChatCompletionRequest) or start is Start.CONTENT:
        return
    ids = ids_of_marks(tokenizer)
    header = (ids[Mark.CHANNEL], *tokenizer.encode(REASONING_CHANNEL, parse_special=False), ids[Mark.MESSAGE])
    if thinking_enabled(body) is False:
        yield "thinking", NoWords([header[:2]], tokenizer.vocab_size)
    elif body.thinking_budget is not None:
        inside = start is Start.REASONING
        yield (
            "thinking_token_budget",
            ChannelThinkingBudget(body.thinking_budget, header, ids[Mark.END], inside, tokenizer.vocab_size),
        )
