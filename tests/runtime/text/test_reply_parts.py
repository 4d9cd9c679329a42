"""Reasoning and tool calls in replies, well-formed and malformed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast.families.marks import Mark
from ballast.families.registry import DEFAULT_FORM, FAMILIES
from ballast.text.detokenizer import Detokenizer
from ballast.text.marks import Layout, ReasoningCount, Start, marks_of, start_of
from ballast.text.output_parser import OutputParser
from ballast.text.reply_parts import CallArguments, CallBegin, Message
from devkit.models.vocabulary import byte_tokenizer

TOKENIZER = byte_tokenizer(user_defined=tuple(DEFAULT_FORM.spellings.values()))
MARKS = marks_of(TOKENIZER, DEFAULT_FORM.spellings)

T, END_T, CC, END_CC = Mark.THINK, Mark.END_THINK, Mark.CALLS, Mark.END_CALLS
C, END_C, S = Mark.CALL, Mark.END_CALL, Mark.SEPARATOR


def parse(text: str, start: Start = Start.CONTENT) -> Message:
    parser, message = OutputParser(start), Message()
    message.take(parser.push(text))
    message.take(parser.finish())
    return message


R, EITHER, R_EITHER = Start.REASONING, Start.EITHER, Start.EITHER_REASONING


@pytest.mark.parametrize(
    ("start", "reply", "reasoning", "content"),
    [
        (R, f"hm\n{END_T}\n\nyes", "hm", "yes"),
        (R, f"\nhm\n\nhm{END_T}yes\n", "hm\n\nhm", "yes\n"),
        (R, f"{T}\nhm{END_T}yes", "hm", "yes"),
        (R, f"{END_T}yes", "", "yes"),
        (R, "hm", "hm", ""),
        (R, "hm\n", "hm\n", ""),
        (R, f"a{T}b{END_T}c", "ab", "c"),
        (Start.CONTENT, "\n\nyes", "", "\n\nyes"),
        (Start.CONTENT, f"yes{END_T}no", "", "yesno"),
        (EITHER, f" \n{T}\nhm\n{END_T}\n\nyes", "hm", "yes"),
        (EITHER, " yes", "", " yes"),
        (EITHER, f"{END_T}yes", "", "yes"),
        (EITHER, f"yes{T}", "", "yes"),
        (EITHER, " \n", "", " \n"),
        (R_EITHER, f"hm{END_T}yes", "hm", "yes"),
        (R_EITHER, f"{T}hm{END_T}yes", "hm", "yes"),
        (R_EITHER, "hm", "hm", ""),
        (R, "a</think>b", "a</think>b", ""),
    ],
)
def test_reasoning_and_content(start: Start, reply: str, reasoning: str, content: str) -> None:
    assert parse(reply, start) == Message(reasoning, content)


def test_tool_calls_end_the_enclosing_reasoning() -> None:
    message = parse(f"hm\n{CC}{C}f{S}{{}}{END_C}{END_CC}", Start.REASONING)
    assert (message.reasoning, message.content, message.calls[0].name) == ("hm", "", "f")


V3_CALL = f'{C}function{S}f\n```json\n{{"a": 1}}\n```{END_C}'
V31_CALL = f'{C}f{S}{{"a": 1}}{END_C}'


@pytest.mark.parametrize(
    ("reply", "content", "calls"),
    [
        (CC + V3_CALL + END_CC, "", [("f", '{"a": 1}')]),
        (CC + V31_CALL + END_CC, "", [("f", '{"a": 1}')]),
        (f"I look.\n\n{CC}{V3_CALL}\n{V3_CALL}{END_CC}", "I look.\n\n", [("f", '{"a": 1}')] * 2),
        (CC + V31_CALL + V31_CALL + END_CC, "", [("f", '{"a": 1}')] * 2),
        # Missing end of the frame, the fence or the call; missing start of the frame.
        (CC + V3_CALL, "", [("f", '{"a": 1}')]),
        (f"{CC}{C}function{S}f\n```json\n{{}}{END_C}{END_CC}", "", [("f", "{}")]),
        (f"{CC}{C}function{S}f\n```json\n{{}}\n```{END_CC}", "", [("f", "{}")]),
        (f"{CC}{C}f{S}{{}}{C}g{S}{{}}", "", [("f", "{}"), ("g", "{}")]),
        (V31_CALL, "", [("f", '{"a": 1}')]),
        # Spaces, and a fence without its word.
        (f"{CC}\n {C} function {S} f \n\n```\n{{}}\n\n``` \n{END_C} {END_CC}", "", [("f", "{}")]),
        (f"{CC}{C}function{S}f\n{{}}{END_C}{END_CC}", "", [("f", "{}")]),
        (f"{CC}{C}{S}f\n```json\n{{}}\n```{END_C}{END_CC}", "", [("f", "{}")]),
        (f"{CC}{C}function{S}f\n```json{{}}```{END_C}{END_CC}", "", [("f", "{}")]),
        # Arguments over several lines, with backticks, not JSON, none.
        (f'{CC}{C}function{S}f\n```json\n{{\n "a": "```\n"\n}}\n```{END_C}', "", [("f", '{\n "a": "```\n"\n}')]),
        (f"{CC}{C}f{S}not json{END_C}{END_CC}", "", [("f", "not json")]),
        (f"{CC}{C}f{S}{END_C}{END_CC}", "", [("f", "{}")]),
        (f"{CC}{C}function{S}f{END_C}{END_CC}", "", [("f", "{}")]),
        (f"{CC}{C}function{S}f\n```json\n```{END_C}{END_CC}", "", [("f", "{}")]),
        (f"{CC}{C}f{S}{{{T}}}{END_C}", "", [("f", "{}")]),
        # Text between and after calls is content, and so is the text of malformed calls; marks never are.
        (f"{CC}{V31_CALL}and{V31_CALL}{END_CC}done", "anddone", [("f", '{"a": 1}')] * 2),
        (f"{CC}oh{END_CC}", "oh", []),
        (f"{CC}\n{END_CC}", "", []),
        (f"{CC}{C}\n{END_C}{END_CC}", "", []),
        (f"{CC}{C}a b{S}{{}}{END_C}{V31_CALL}{END_CC}", "a b{}", [("f", '{"a": 1}')]),
        (f"x{END_C}y{S}z{END_CC}", "xyz", []),
        # A call that is truncated before its name is known is content.
        (f"I look.{CC}", "I look.", []),
        (f"I look.{CC}{C}half", "I look.half", []),
        (f"{CC}{C}function{S}na", "functionna", []),
        (f"{CC}{V31_CALL}{C}function{S}na", "functionna", [("f", '{"a": 1}')]),
    ],
)
def test_tool_calls(reply: str, content: str, calls: list[tuple[str, str]]) -> None:
    message = parse(reply)
    assert (message.content, [(call.name, call.arguments) for call in message.calls]) == (content, calls)
    assert len({call.id for call in message.calls}) == len(calls)


def test_a_call_that_the_model_numbers_keeps_its_number_as_id() -> None:
    first, again = f'{C}functions.f:3{S}{{"a": 1}}{END_C}', f"{C} functions.f:3 {S}{{}}{END_C}"
    message = parse(f"hm{CC}{first}{again}{C}functions.a b:4{S}{{}}{END_C}{END_CC}")
    assert [(call.name, call.arguments) for call in message.calls] == [("f", '{"a": 1}'), ("f", "{}")]
    assert message.calls[0].id == "functions.f:3"
    assert message.calls[1].id.startswith("call_")
    assert message.content == "hmfunctions.a b:4{}"


@pytest.mark.parametrize("head", ["functions.f", "f:0", "f"])
def test_a_call_without_the_full_function_name_is_matched(head: str) -> None:
    (call,) = parse(f"{CC}{C}{head}{S}{{}}{END_C}{END_CC}").calls
    assert (call.name, call.id.startswith("call_")) == ("f", True)


def test_the_vocabulary_determines_the_reply_format() -> None:
    kimi = FAMILIES["kimi"]
    tokenizer = byte_tokenizer(user_defined=(*kimi.reply.spellings.values(), *kimi.vocabulary[1:]))
    assert tokenizer.reply is kimi.reply
    text = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    detokenizer = Detokenizer(tokenizer, marks=marks_of(tokenizer, tokenizer.reply.calling))
    assert parse(detokenizer.push(tokenizer.encode(text)).text).calls[0].id == "functions.f:0"
    assert TOKENIZER.reply is FAMILIES["deepseek"].reply


def test_arguments_are_streamed_as_they_are_written() -> None:
    parser = OutputParser()
    seen: list[Any] = []
    for char in CC + V3_CALL + END_CC:
        seen += parser.push(char)
    assert isinstance(seen[0], CallBegin)
    assert [part.text for part in seen[1:] if isinstance(part, CallArguments)] == [*'{"a":', " 1", "}"]


def test_only_tokens_are_marks() -> None:
    """A tag spelled with several tokens, or a mark's character in a token's text, is ordinary text."""
    detokenizer = Detokenizer(TOKENIZER, marks=MARKS)
    spelled = TOKENIZER.encode(f"{T}</think>", parse_special=False)
    assert detokenizer.push(spelled).text == "\ufffd</think>"
    assert detokenizer.push([TOKENIZER.id_of("</think>") or 0]).text == END_T


def test_a_mark_ends_an_unfinished_character() -> None:
    detokenizer = Detokenizer(TOKENIZER, marks=MARKS)
    first = TOKENIZER.encode("中")[:1]
    assert detokenizer.push([*first, TOKENIZER.id_of("<think>") or 0, *TOKENIZER.encode("a")]).text == f"\ufffd{T}a"


@pytest.mark.parametrize(
    ("prompt", "thinks", "start"),
    [
        ("<think>\n", False, Start.REASONING),
        ("<think>\nOnce upon", True, Start.REASONING),
        ("</think>", True, Start.CONTENT),
        ("</think>\n\nOnce", False, Start.CONTENT),
        ("x", False, Start.EITHER),
        ("x", True, Start.EITHER_REASONING),
        ("<think>a</think>b<｜end▁of▁sentence｜>x", False, Start.EITHER),
        ("<think><｜end▁of▁sentence｜>x", True, Start.EITHER_REASONING),
    ],
)
def test_the_prompts_end_determines_how_the_reply_begins(prompt: str, thinks: bool, start: Start) -> None:
    ids = TOKENIZER.encode(prompt)
    assert start_of(reversed(ids), MARKS, TOKENIZER.eos_ids, thinks=thinks) is start


def test_a_vocabulary_without_the_tokens_has_no_marks() -> None:
    bare = byte_tokenizer(user_defined=("<think>",))
    assert marks_of(bare, DEFAULT_FORM.thinking) == {}
    assert start_of([bare.id_of("<think>") or 0], {}, frozenset(), thinks=True) is Start.CONTENT


@pytest.mark.parametrize(
    ("start", "reply", "num_tokens"),
    [
        (Start.REASONING, "abc</think>defg", 3),
        (Start.REASONING, "abc", 3),
        (Start.REASONING, "ab<｜tool▁calls▁begin｜>c", 2),
        (Start.REASONING, "ab<｜tool▁sep｜>c", 3),
        (Start.CONTENT, "abc</think>d", 0),
        (Start.EITHER, "\n<think>abc</think>d", 3),
        (Start.EITHER, "abc", 0),
        (Start.EITHER_REASONING, "\n\nabc</think>d", 5),
        (Start.EITHER_REASONING, "\n<think>ab</think>d", 2),
    ],
)
def test_reasoning_tokens_are_counted(start: Start, reply: str, num_tokens: int) -> None:
    count = ReasoningCount(TOKENIZER, Layout(MARKS, start))
    for token_id in TOKENIZER.encode(reply):
        count.take(token_id)
    assert count.num_tokens == num_tokens


def divided(start: Start, reply: str) -> tuple[str, str]:
    """The reply's tokens as text: those of the reasoning, and the others."""
    count, ids = ReasoningCount(TOKENIZER, Layout(MARKS, start)), TOKENIZER.encode(reply)
    decisions = [decision for token_id in ids for decision in count.take(token_id)] + count.finish()
    assert count.finish() == []
    kinds = list(zip(ids, decisions, strict=True))
    return (
        TOKENIZER.decode([token_id for token_id, kind in kinds if kind], skip_control=False),
        TOKENIZER.decode([token_id for token_id, kind in kinds if not kind], skip_control=False),
    )


@pytest.mark.parametrize(
    ("start", "reasoning", "rest"),
    [
        (Start.REASONING, "abc</think>\n\n", "d\n"),
        (Start.REASONING, "abc</think>", " \nd"),
        (Start.REASONING, "ab", "<｜tool▁calls▁begin｜>c"),
        (Start.REASONING, "a</think>\n", "<｜tool▁calls▁begin｜>\n"),
        (Start.REASONING, "a<｜tool▁sep｜>b", ""),
        (Start.EITHER, "<think>abc</think>", "d"),
        (Start.EITHER, "\n<think>abc</think>", "d"),
        (Start.EITHER, "", "\nabc"),
        (Start.EITHER, "", "\n"),
        (Start.EITHER, "", "\n<｜tool▁sep｜>a"),
        (Start.EITHER_REASONING, "\n\nabc</think>", "d"),
        (Start.EITHER_REASONING, "\n<think>ab</think>\n", "d"),
        (Start.EITHER_REASONING, "\n", ""),
        (Start.EITHER_REASONING, "", "\n<｜tool▁calls▁begin｜>c"),
    ],
)
def test_each_token_is_the_reasonings_or_not(start: Start, reasoning: str, rest: str) -> None:
    assert divided(start, reasoning + rest) == (reasoning, rest)


def test_a_tag_in_the_content_is_never_one_of_its_tokens() -> None:
    assert divided(Start.CONTENT, "<think>abc</think>d") == ("<think></think>", "abcd")
    assert divided(Start.REASONING, "abc</think>def</think>g") == ("abc</think></think>", "defg")


@given(
    st.sampled_from([Start.REASONING, Start.CONTENT, Start.EITHER, Start.EITHER_REASONING]),
    st.lists(st.sampled_from(["a", " ", "\n", "<think>", "</think>"]), max_size=8).map("".join),
)
def test_the_tokens_outside_the_reasoning_spell_the_content(start: Start, reply: str) -> None:
    detokenizer, parser = Detokenizer(TOKENIZER, marks=MARKS), OutputParser(start)
    parts = parser.push(detokenizer.push(TOKENIZER.encode(reply)).text + detokenizer.finish().text) + parser.finish()
    assert divided(start, reply)[1] == Message.of(parts).content
