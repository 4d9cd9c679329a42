"""The joined parts of a stream equal those of the whole reply, however the tokens are split into steps."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from ballast.families.marks import Mark
from ballast.families.registry import DEFAULT_FORM
from ballast.text.detokenizer import Detokenizer
from ballast.text.marks import Start, marks_of
from ballast.text.output_parser import OutputParser
from ballast.text.reply_parts import CallArguments, CallBegin, Content, Message, Part, Reasoning
from devkit.long import times
from devkit.models.vocabulary import byte_tokenizer

TOKENIZER = byte_tokenizer(
    merges=[("中".encode()[:1], "中".encode()[1:2]), (b"`", b"`"), (b"\n", b"\n")],
    user_defined=tuple(DEFAULT_FORM.spellings.values()),
)
MARKS = marks_of(TOKENIZER, DEFAULT_FORM.spellings)
IDS = {mark: token_id for token_id, mark in MARKS.items()}


def encoded(text: str) -> list[int]:
    """The tokens of a text that contains marks instead of control tokens."""
    ids: list[int] = []
    for run in text:
        ids += [IDS[Mark(run)]] if run in IDS else TOKENIZER.encode(run, parse_special=False)
    return ids


C, E, S = Mark.CALL, Mark.END_CALL, Mark.SEPARATOR
words = st.text("ab \n`{}中👍<\ufde0", max_size=6)
marks = st.sampled_from(list(Mark)).map(str)
json_text = st.sampled_from(['{"a": 1}', '{"b": "```"}', "{}", '{\n "c": "中\\n"\n}', "", "not json"])
names = st.sampled_from(["f", "get_weather", "functions.f:0", "a b", ""])
v3_call = st.builds(
    lambda n, a, tail: f"{C}function{S}{n}\n```json\n{a}\n```{tail}", names, json_text, st.sampled_from([E, ""])
)
v31_call = st.builds(lambda n, a, tail: f"{C}{n}{S}{a}{tail}", names, json_text, st.sampled_from([E, ""]))
frame = st.lists(v3_call | v31_call | words, max_size=3).map(lambda c: Mark.CALLS + "\n".join(c) + Mark.END_CALLS)
thought = st.builds(lambda t: f"{Mark.THINK}{t}{Mark.END_THINK}", words)
replies = st.lists(words | marks | thought | frame | v3_call, max_size=6).map("".join)
starts = st.sampled_from(Start)
cuts = st.lists(st.integers(0, 10**6), max_size=8)
stops = st.lists(st.text("ab`\n{中", min_size=1, max_size=3), max_size=2)


def parts_of(pieces: list[list[int]], start: Start, stop: list[str]) -> list[Part]:
    """The parts of a stream whose tokens arrive in these chunks."""
    detokenizer = Detokenizer(TOKENIZER, stop, marks=MARKS)
    parser = OutputParser(start, new_id=lambda: "call_x")
    parts = [part for piece in pieces for part in parser.push(detokenizer.push(piece).text)]
    return [*parts, *parser.push(detokenizer.finish().text), *parser.finish()]


def whole(parts: list[Part]) -> Message:
    message = Message()
    message.take(parts)
    return message


def cut(ids: list[int], at: list[int]) -> list[list[int]]:
    bounds = [0, *sorted(position % (len(ids) + 1) for position in at), len(ids)]
    return [ids[start:end] for start, end in itertools.pairwise(bounds)]


@given(replies, starts, stops, cuts)
@settings(max_examples=times(120, 600), deadline=None)
def test_a_stream_has_the_same_content_as_the_whole_reply(
    text: str, start: Start, stop: list[str], at: list[int]
) -> None:
    ids = encoded(text)
    at_once = parts_of([ids], start, stop)
    assert whole(parts_of(cut(ids, at), start, stop)) == whole(at_once)
    assert whole(parts_of([[token_id] for token_id in ids], start, stop)) == whole(at_once)


@given(replies, starts, cuts)
@settings(max_examples=times(80, 300), deadline=None)
def test_the_order_of_parts_does_not_depend_on_chunking(text: str, start: Start, at: list[int]) -> None:
    ids = encoded(text)
    assert merged(parts_of(cut(ids, at), start, [])) == merged(parts_of([ids], start, []))


def merged(parts: list[Part]) -> list[tuple[object, str]]:
    """Parts, with adjacent ones of the same kind joined."""
    kinds = [(type(part), getattr(part, "index", None), getattr(part, "name", part)) for part in parts]
    keys = [kind if kind[0] is CallBegin else kind[:2] for kind in kinds]
    out: list[tuple[object, str]] = []
    for key, part in zip(keys, parts, strict=True):
        text = "" if isinstance(part, CallBegin) else part.text
        if out and out[-1][0] == key and not isinstance(part, CallBegin):
            out[-1] = (key, out[-1][1] + text)
        else:
            out.append((key, text))
    return out


@given(replies, starts)
@settings(deadline=None)
def test_nothing_is_repeated_and_every_call_is_announced_first(text: str, start: Start) -> None:
    begun: list[int] = []
    for part in parts_of([[token_id] for token_id in encoded(text)], start, []):
        match part:
            case CallBegin():
                assert part.index == len(begun)
                assert part.name
                begun.append(part.index)
            case CallArguments():
                assert part.index == begun[-1]
                assert part.text
            case Content() | Reasoning():
                assert part.text
                assert not any(text in part.text for text in (*Mark, *DEFAULT_FORM.spellings.values()))


@given(st.text("ab <`{\n中", max_size=20), st.sampled_from([Start.CONTENT, Start.EITHER]))
@settings(deadline=None)
def test_text_without_marks_is_content_letter_by_letter(text: str, start: Start) -> None:
    assert whole(parts_of([encoded(text)], start, [])) == Message(content=text)


@given(replies.filter(lambda text: Mark.END_CALLS not in text), starts)
@settings(max_examples=times(60, 200), deadline=None)
def test_words_are_never_lost(text: str, start: Start) -> None:
    """Except for the text of a last call whose name is not complete when the reply ends."""
    text += E
    message = whole(parts_of([encoded(text)], start, []))
    calls = "".join(call.name + call.arguments for call in message.calls)
    shown = message.reasoning + message.content + calls
    assert sum(map(shown.count, "ab中👍")) >= sum(map(text.count, "ab中👍"))
