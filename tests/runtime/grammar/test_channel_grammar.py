"""Constraints on replies on channels: calls and answers with a required form, with and without preceding reasoning."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ballast.engine.sampling.constraint import Constraint, ConstraintState
from ballast.errors import RequestError
from ballast.families.marks import Mark
from ballast.families.registry import FAMILIES
from ballast.grammar import source
from ballast.grammar.calls.tools import tool_calls
from ballast.grammar.channels.lazy_calls import LazyChannelCalls
from ballast.grammar.channels.prefix import channel_grammar
from ballast.grammar.compiler import GrammarCompiler
from ballast.grammar.constraint import Grammar
from ballast.grammar.token_rules import ChannelThinkingBudget
from ballast.text.channels.parser import ChannelParser
from ballast.text.marks import Start, marks_of
from ballast.text.reply_parts import Message
from devkit.models.vocabulary import byte_tokenizer

FAMILY = FAMILIES["gpt_oss"]
S, C, K, M, E = Mark.START, Mark.CHANNEL, Mark.CONSTRAIN, Mark.MESSAGE, Mark.END
TOKENIZER = byte_tokenizer(user_defined=(*FAMILY.reply.spellings.values(), *FAMILY.ends))
COMPILER = GrammarCompiler(TOKENIZER)
MARKS = marks_of(TOKENIZER, FAMILY.reply.spellings)
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"enum": [1, 22]}, "b": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "parameters": PARAMETERS, "strict": True}},
    {"type": "function", "function": {"name": "f_more"}},
]
THOUGHT = f"{C}analysis{M}Any text.{E}{S}assistant"
CALL = f"{C}commentary to=functions.f {K}json{M}" + '{"a":22}'


def ids(text: str) -> list[int]:
    for mark, spelling in FAMILY.reply.spellings.items():
        text = text.replace(mark, spelling)
    return TOKENIZER.encode(text)


def allowed_by(state: ConstraintState) -> np.ndarray:
    mask = state.allowed()
    if mask is None:
        return np.ones(TOKENIZER.vocab_size, np.bool_)
    return np.unpackbits(mask, count=TOKENIZER.vocab_size, bitorder="little").view(np.bool_)


def refused_at(constraint: Constraint, reply: str) -> str | None:
    """The part of the reply that the constraint allows; None if it allows all of it."""
    state, tokens = constraint.start(), ids(reply)
    for taken, token in enumerate((*tokens, TOKENIZER.id_of("<|call|>") or 0)):
        if not allowed_by(state)[token]:
            return TOKENIZER.decode(tokens[:taken], skip_control=False)
        state.accept(token)
    return None


def calls(**options: Any) -> Grammar:
    return COMPILER.compile(tool_calls(TOOLS, TOKENIZER, "channels", **options))


def forced(grammar: Grammar, start: Start = Start.HEADER, *, thinks: bool = True, answer: bool = False) -> Constraint:
    return channel_grammar(grammar, start, TOKENIZER, may_reason=thinks, is_answer=answer)


@pytest.mark.parametrize(
    "call",
    [
        CALL,
        f" to=functions.f{C}commentary json{M}" + '{"a": 1, "b": true}',
        f" to=functions.f{C}commentary {K}json{M}" + '{"a":1}',
        f"{C}analysis to=functions.f{M}" + '{"a":1}',
        f"{C}commentary to=functions.f_more json{M}" + '{"any": [1]}',
    ],
)
@pytest.mark.parametrize("thought", ["", THOUGHT])
def test_a_forced_call_may_have_every_form_and_follow_reasoning(call: str, thought: str) -> None:
    assert refused_at(forced(calls()), thought + call) is None


def test_arguments_are_an_object_whatever_else_the_schema_allows() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": ["null", "object"]}}}]
    grammar = COMPILER.compile(tool_calls(tools, TOKENIZER, "channels"))
    assert refused_at(forced(grammar), CALL) is None
    assert refused_at(forced(grammar), CALL.replace('{"a":22}', "null")) == TOKENIZER.decode(
        ids(CALL.removesuffix('{"a":22}')), skip_control=False
    )


@pytest.mark.parametrize(
    ("reply", "allowed"),
    [
        (f"{C}final{M}x", "<|channel|>"),
        ("x", ""),
        (f"{THOUGHT}{C}final{M}x", None),
        (f"{C}commentary{M}x", "<|channel|>commentary"),
        (f"{C}commentary to=python{M}x", "<|channel|>commentary to="),
        (f"{C}commentary to=functions.g{M}", "<|channel|>commentary to=functions."),
        (f"{C}commentary to=functions.f{M}" + '{"a":3', '<|channel|>commentary to=functions.f<|message|>{"a":'),
        (f" to=functions.f{C}analysis{M}", " to=functions.f<|channel|>"),
        (f"{THOUGHT}{THOUGHT}{CALL}", None),
    ],
)
def test_only_declared_calls_are_allowed(reply: str, allowed: str | None) -> None:
    after_thought = TOKENIZER.decode(ids(f"{THOUGHT}{C}"), skip_control=False)
    found = refused_at(forced(calls()), reply)
    if allowed is not None:
        assert found == allowed
    else:
        assert found is not None
        assert found.startswith(after_thought)
        assert len(found) < len(after_thought) + len("analysis to")


def test_reasoning_cannot_end_the_reply_or_leave_its_message() -> None:
    state = forced(calls()).start()
    for token in ids(f"{C}analysis{M}Hm"):
        assert allowed_by(state)[token]
        state.accept(token)
    allowed = allowed_by(state)
    outside = [*TOKENIZER.eos_ids, *(token for token, mark in MARKS.items() if mark is not E)]
    assert not allowed[outside].any()
    assert int(allowed.sum()) == TOKENIZER.vocab_size - len(outside)
    state.accept(ids(E)[0])
    for token in ids(f"{S}assistant"):
        assert np.flatnonzero(allowed_by(state)).tolist() == [token]
        state.accept(token)


def test_without_reasoning_the_call_is_first_and_an_open_thought_must_end() -> None:
    assert refused_at(forced(calls(), thinks=False), CALL) is None
    assert refused_at(forced(calls(), thinks=False), THOUGHT) == "<|channel|>analysis"
    assert refused_at(forced(calls(), Start.REASONING), f"more.{E}{S}assistant{CALL}") is None
    assert refused_at(forced(calls(), Start.REASONING), f"more.{E}{C}") == "more.<|end|>"


def test_a_forced_call_ends_the_answer_that_a_reply_continues() -> None:
    assert refused_at(forced(calls(), Start.CONTENT), f"{E}{S}assistant{CALL}") is None
    assert refused_at(forced(calls(), Start.CONTENT), " to=functions.f") == ""


def test_a_single_function_can_be_forced() -> None:
    constraint = forced(calls(only={"f_more"}))
    assert refused_at(constraint, CALL) == "<|channel|>commentary to=functions.f"
    with pytest.raises(RequestError, match="no tool is named 'g'"):
        calls(only={"g"})


@pytest.mark.parametrize("seed", range(8))
def test_random_output_is_a_declared_call(seed: int) -> None:
    rng, state, message = np.random.default_rng(seed), forced(calls(only={"f"})).start(), Message()
    parser = ChannelParser(functions={"f", "f_more"})
    end = ids(E)[0]
    for n in range(400):
        choices = np.flatnonzero(allowed_by(state))
        token = end if n > 40 and end in choices else int(rng.choice(choices))
        if token in TOKENIZER.eos_ids:
            break
        state.accept(token)
        text = TOKENIZER.decode([token], skip_control=False)
        message.take(parser.push(MARKS[token] if token in MARKS else text.replace("\ufffd", "?")))
    else:
        pytest.fail("the reply has no end")
    message.take(parser.finish())
    (call,) = message.calls
    assert call.name == "f"
    assert json.loads(call.arguments)["a"] in (1, 22)
    assert message.content == ""


def test_a_structured_answer_is_on_its_channel_and_may_follow_reasoning() -> None:
    schema = COMPILER.compile(source.json_schema(PARAMETERS, "p", strict=True))
    constraint = forced(schema, answer=True)
    answer = f"{C}final{M}" + '{"a":22}'
    assert refused_at(constraint, answer) is None
    assert refused_at(constraint, THOUGHT + answer) is None
    assert refused_at(constraint, f"{C}final{M}" + '{"a":3}') == '<|channel|>final<|message|>{"a":'
    assert refused_at(constraint, CALL) == "<|channel|>"
    assert refused_at(forced(schema, thinks=False, answer=True), THOUGHT) == "<|channel|>"
    assert forced(schema, Start.CONTENT, answer=True) is schema
    pattern = COMPILER.compile(source.regex("[ab]{2}", "p"))
    assert refused_at(forced(pattern, answer=True), f"{THOUGHT}{C}final{M}ab") is None


def test_a_call_or_an_answer_of_a_form() -> None:
    constraint = forced(calls(or_else=source.embedded_schema(PARAMETERS, "p", strict=True)))
    for reply in (CALL, f"{C}final{M}" + '{"a":22}', f"{THOUGHT}{C}final{M}" + '{"a":1}'):
        assert refused_at(constraint, reply) is None
    assert refused_at(constraint, f"{C}final{M}x") == "<|channel|>final<|message|>"


def free(start: Start = Start.HEADER) -> Constraint:
    return LazyChannelCalls(calls(), MARKS, TOKENIZER.token_bytes, begins_in_header=start is Start.HEADER)


@pytest.mark.parametrize(
    ("reply", "allowed"),
    [
        (CALL, None),
        (THOUGHT + CALL, None),
        (f"{THOUGHT}{C}commentary{M}I look.{E}{S}assistant{CALL}", None),
        (f"{THOUGHT} to=functions.f{C}commentary json{M}" + '{"a":1}', None),
        (f"{THOUGHT}{C}final{M}Go to=python and to=functions.f.", None),
        ("anything at all", None),
        (f"{C}analysis{M}x{CALL}", None),
        (f"{C}commentary to=python{M}", "<|channel|>commentary to="),
        (f"{C}commentary to=functions.f{M}" + '{"a":3', '<|channel|>commentary to=functions.f<|message|>{"a":'),
        (f"{C}final{M}x{C}commentary to=g", "<|channel|>final<|message|>x<|channel|>commentary to="),
    ],
)
def test_a_free_reply_with_a_recipient_must_call_a_declared_function(reply: str, allowed: str | None) -> None:
    assert refused_at(free(), reply) == allowed


def test_a_reply_that_continues_a_message_is_no_header() -> None:
    assert refused_at(free(Start.CONTENT), " to=python is a text") is None


def test_the_reasoning_budget_ends_its_message_and_begins_no_other() -> None:
    header = tuple(ids(f"{C}analysis{M}"))
    (end,) = ids(E)
    state = ChannelThinkingBudget(3, header, end, begins_inside=False, vocab_size=TOKENIZER.vocab_size).start()
    for token in ids(f"{C}analysis{M}abc"):
        assert state.allowed() is None
        state.accept(token)
    assert np.flatnonzero(allowed_by(state)).tolist() == [end]
    for token in ids(f"{E}{S}assistant"):
        state.accept(token)
        assert state.allowed() is None
    state.accept(header[0])
    assert np.flatnonzero(~allowed_by(state)).tolist() == [header[1]]
    state.accept(ids("f")[0])
    assert state.allowed() is None
