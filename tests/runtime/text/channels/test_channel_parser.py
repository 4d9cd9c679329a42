"""Replies on channels: reasoning, preambles, calls and answers, well-formed and malformed, in one chunk and in many."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast.families.marks import Mark
from ballast.text.channels.count import ChannelReasoningCount
from ballast.text.channels.parser import ChannelParser
from ballast.text.channels.tracker import LONGEST_HEADER, ChannelTracker, Section
from ballast.text.detokenizer import Detokenizer
from ballast.text.reply_parts import Message
from ballast.text.think_tags import ThinkTags
from devkit.long import times
from devkit.models.vocabulary import byte_tokenizer

S, C, K, M, E = Mark.START, Mark.CHANNEL, Mark.CONSTRAIN, Mark.MESSAGE, Mark.END
FUNCTIONS = frozenset({"f", "get-it"})
SPELLINGS = {S: "<|start|>", C: "<|channel|>", K: "<|constrain|>", M: "<|message|>", E: "<|end|>"}
TAGS = ThinkTags("<|channel|>analysis<|message|>", "<|end|>")
THOUGHT = f"{C}analysis{M}Hm.{E}{S}assistant"


def parse(
    pieces: list[str],
    *,
    section: Section = Section.HEADER,
    functions: frozenset[str] | None = FUNCTIONS,
    tags: ThinkTags | None = None,
    is_cut: bool = False,
) -> tuple[str, str, list[tuple[str, str]]]:
    parser, message = ChannelParser(section, functions, tags=tags, new_id=lambda: "call_x"), Message()
    for piece in pieces:
        message.take(parser.push(piece))
    message.take(parser.finish(is_cut=is_cut))
    calls = [(call.name, call.arguments) for call in message.calls]
    assert parser.num_calls == len(calls)
    return message.reasoning, message.content, calls


CASES = [
    (f"{THOUGHT}{C}final{M}Four.", ("Hm.", "Four.", [])),
    (f"{C}final {K}json{M}{{}}", ("", "{}", [])),
    (f"{THOUGHT}{C}commentary to=functions.f {K}json{M}" + '{"a": 1}', ("Hm.", "", [("f", '{"a": 1}')])),
    (f"{THOUGHT} to=functions.f{C}commentary json{M}" + '{"a": "}{"}', ("Hm.", "", [("f", '{"a": "}{"}')])),
    (f" to=functions.get-it{C}analysis{M}" + "{}", ("", "", [("get-it", "{}")])),
    (f"{C}commentary to=functions.other{M} \n" + '{"a":1} \n', ("", "", [("other", '{"a":1}')])),
    (f"{C}commentary to=f{M}" + "{}", ("", "", [("f", "{}")])),
    (f"{C}commentary to=functions.f{M}", ("", "", [("f", "{}")])),
    (
        f"{THOUGHT}{C}commentary{M}I look.{E}{S}assistant{C}commentary to=functions.f{M}" + "{}",
        ("Hm.", "I look.", [("f", "{}")]),
    ),
    (f"{THOUGHT}{C}analysis{M}So.{E}{S}assistant{C}final{M}Four.", ("Hm.\n\nSo.", "Four.", [])),
    # Deviations that the smaller model sometimes writes.
    (f"{C}commentary{C}analysis{M}Hm.{E}{S}assistant{C}final{M}Four.", ("Hm.", "Four.", [])),
    (f"{C}analysis{M}Hm.{C}final{M}Four.", ("Hm.", "Four.", [])),
    (f"{C}analysis{M}Hm.{E}assistant{C}final{M}Four.", ("Hm.", "Four.", [])),
    (f"assistant{C}final{M}Four.", ("", "Four.", [])),
    (f"{M}Four.", ("", "Four.", [])),
    ("Four.", ("", "Four.", [])),
    ("assistance", ("", "assistance", [])),
    ("to", ("", "to", [])),
    # Text that is not a call.
    (f"{C}commentary to=functions.f{M}not {{}} json", ("", "not {} json", [])),
    (f"{C}commentary to=functions.f{M}[1]", ("", "[1]", [])),
    (f"{C}commentary to=functions.f{M}" + '{"a":1} and more', ("", "and more", [("f", '{"a":1}')])),
    (f"{C}commentary to=functions.f g(){M}" + "{}", ("", "", [("f", "{}")])),
    (f"{C}commentary to=functions.%{M}" + "{}", ("", "{}", [])),
    (f"{C}commentary to=functions.f", ("", "commentary to=functions.f", [])),
    (f"{C}commentary to=browser.search{M}" + '{"query": "x"}', ("", '{"query": "x"}', [])),
    (f"{C}analysis to=python code{M}print(1)", ("print(1)", "", [])),
    (f"{C}final" + "x" * LONGEST_HEADER, ("", "final" + "x" * LONGEST_HEADER, [])),
    (f"{C}analysis", ("", "", [])),
]


@pytest.mark.parametrize(("reply", "expected"), CASES)
def test_a_reply_is_parsed_equally_in_one_piece_and_in_many(reply: str, expected: object) -> None:
    assert parse([reply]) == expected
    assert parse(list(reply)) == expected
    for at in range(len(reply) if len(reply) < 200 else 0):
        assert parse([reply[:at], reply[at:]]) == expected


PIECES = st.sampled_from(
    [
        S,
        C,
        K,
        M,
        E,
        "assistant",
        "analysis",
        "commentary",
        "final",
        " to=functions.",
        "f",
        " to=",
        "{",
        '"a": 1}',
        "}",
        "x",
        " ",
        "\n",
        "json",
        '"',
    ]
)


@settings(deadline=None, max_examples=times(100, 300))
@given(st.lists(PIECES, max_size=16), st.data())
def test_no_reply_depends_on_how_it_is_cut(pieces: list[str], data: st.DataObject) -> None:
    reply = "".join(pieces)
    at = sorted(data.draw(st.lists(st.integers(0, len(reply)), max_size=4)))
    is_cut, functions = data.draw(st.booleans()), data.draw(st.sampled_from([None, FUNCTIONS]))
    tags = data.draw(st.sampled_from([None, TAGS]))
    cut = [reply[begin:end] for begin, end in itertools.pairwise([0, *at, len(reply)])]
    whole = parse([reply], functions=functions, tags=tags, is_cut=is_cut)
    assert parse(cut, functions=functions, tags=tags, is_cut=is_cut) == whole
    assert not set(Mark) & set(f"{whole}")


def test_without_tools_a_call_is_text() -> None:
    assert parse([f"{C}commentary to=functions.f{M}" + '{"a": 1}'], functions=None) == ("", '{"a": 1}', [])


def test_a_truncated_reply_shows_no_partial_header_and_no_empty_call() -> None:
    assert parse([f"{THOUGHT}{C}comm"], is_cut=True) == ("Hm.", "", [])
    assert parse([f"{C}commentary to=functions.f"], is_cut=True) == ("", "", [])
    assert parse([f"{C}commentary to=functions.f{M}"], is_cut=True) == ("", "", [])
    assert parse([f"{C}commentary to=functions.f{M}" + '{"a'], is_cut=True) == ("", "", [("f", '{"a')])


def test_a_reply_may_begin_within_a_message() -> None:
    assert parse([f"Hm.{E}{S}assistant{C}final{M}Four."], section=Section.REASONING) == ("Hm.", "Four.", [])
    assert parse(["Four."], section=Section.CONTENT) == ("", "Four.", [])


def test_reasoning_stays_in_the_content_between_its_tags_if_it_is_not_split() -> None:
    reply = f"{THOUGHT}{C}final{M}Four."
    assert parse(list(reply), tags=TAGS) == ("", f"{TAGS.begin}Hm.{TAGS.end}Four.", [])


TOKENIZER = byte_tokenizer(user_defined=tuple(SPELLINGS.values()))
IDS = {TOKENIZER.id_of(text): mark for mark, text in SPELLINGS.items()}
MARKS = {token_id: mark for token_id, mark in IDS.items() if token_id is not None}


def ids(reply: str) -> list[int]:
    for mark, spelling in SPELLINGS.items():
        reply = reply.replace(mark, spelling)
    return TOKENIZER.encode(reply)


def test_reasoning_tokens_are_identified_and_counted() -> None:
    reply = f"{THOUGHT}{C}final{M}Four."
    count = ChannelReasoningCount(TOKENIZER, MARKS, ChannelTracker(functions=FUNCTIONS))
    decisions = [each for token_id in ids(reply) for each in count.take(token_id)] + count.finish()
    reasoning = len(f"{C}analysis{M}Hm.{E}")
    assert decisions == [True] * reasoning + [False] * (len(reply) - reasoning)
    assert count.num_tokens == len("Hm.")
    open_header = ChannelReasoningCount(TOKENIZER, MARKS, ChannelTracker())
    assert [open_header.take(token_id) for token_id in ids(f"{C}anal")] == [[]] * 5
    assert open_header.finish() == [False] * 5


@pytest.mark.parametrize(
    ("reply", "stop", "expected"),
    [
        (f"{THOUGHT}{C}final{M}a final word", "final", f"{THOUGHT}{C}final{M}a "),
        (f"{THOUGHT}{C}final{M}Four.", "assistant", None),
        (f"{C}commentary to=functions.f{M}" + '{"a": "STOP"}', "STOP", None),
        (f"{C}analysis{M}a STOP", "STOP", f"{C}analysis{M}a "),
        (f"{C}analysis{M}ST{E}{S}assistant{C}final{M}OP", "STOP", None),
        ("plain STOP", "STOP", "plain "),
    ],
)
def test_stop_strings_match_only_in_texts(reply: str, stop: str, expected: str | None) -> None:
    for size in (1, 3, 1000):
        tracker = ChannelTracker(functions=FUNCTIONS)
        detokenizer = Detokenizer(TOKENIZER, [stop], marks=MARKS, tracker=tracker)
        tokens = ids(reply)
        text = "".join(detokenizer.push(tokens[at : at + size]).text for at in range(0, len(tokens), size))
        assert text + detokenizer.finish().text == (reply if expected is None else expected)
