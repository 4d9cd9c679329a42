"""Calls as JSON between marks, as keys and values between marks, and in tags that contain a mark; well-formed and
malformed, in one chunk and in many."""

from __future__ import annotations

import itertools
import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast.families.marks import Mark
from ballast.text.calls.dsml_calls import DsmlCalls
from ballast.text.calls.invoke_calls import FUNCTION, INVOKE, InvokeCalls
from ballast.text.calls.json_calls import JsonCalls
from ballast.text.calls.keyed_calls import KeyedCalls
from ballast.text.calls.named_calls import NamedCalls
from ballast.text.calls.reader import ReadCalls
from ballast.text.calls.tagged_calls import TaggedCalls
from ballast.text.marks import Start
from ballast.text.output_parser import OutputParser
from ballast.text.reply_parts import Message
from devkit.long import times

C, END_C, T, END_T = Mark.CALL, Mark.END_CALL, Mark.THINK, Mark.END_THINK
K, END_K, V, END_V = Mark.KEY, Mark.END_KEY, Mark.VALUE, Mark.END_VALUE

PARAMETERS = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "sure": {"type": "boolean"},
        "name": {"type": ["string", "null"]},
        "list": {"type": "array"},
    },
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
KEYED: ReadCalls = partial(KeyedCalls, tools=TOOLS)
TAGGED: ReadCalls = partial(TaggedCalls, tools=TOOLS)
INVOKED: ReadCalls = partial(InvokeCalls, tools=TOOLS)
FUNCTIONS: ReadCalls = partial(InvokeCalls, tools=TOOLS, spelling=FUNCTION)


def parse(pieces: list[str], read: ReadCalls, start: Start = Start.CONTENT) -> Message:
    parser, message = OutputParser(start, read, new_id=lambda: "call_x"), Message()
    for piece in pieces:
        message.take(parser.push(piece))
    message.take(parser.finish())
    return message


def calls_of(message: Message) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in message.calls]


ONE = '{"name": "f", "arguments": {"a": "}{\\"", "b": [1]}}'
ARGUMENTS = '{"a": "}{\\"", "b": [1]}'


@pytest.mark.parametrize(
    ("reply", "content", "calls"),
    [
        (f"{C}\n{ONE}\n{END_C}", "", [("f", ARGUMENTS)]),
        (f"I look.\n\n{C}{ONE}{END_C}\n{C}\n{ONE}\n{END_C}\n", "I look.\n\n", [("f", ARGUMENTS)] * 2),
        (f'{C}{{"name":"f","arguments":{{}}}}{END_C}', "", [("f", "{}")]),
        (f'{C} {{ "name" : "f" , "arguments" :\n {{}} }} {END_C}', "", [("f", "{}")]),
        # Keys in another order, no arguments, arguments as text.
        (f'{C}{{"arguments": {{"a": 1}}, "name": "f"}}{END_C}', "", [("f", '{"a": 1}')]),
        (f'{C}{{"name": "f"}}{END_C}', "", [("f", "{}")]),
        (f'{C}{{"name": "f", "arguments": "{{}}"}}{END_C}', "", [("f", '"{}"')]),
        (f'{C}{{"name": "f", "arguments":}}{END_C}', "", [("f", "{}")]),
        # Truncated, and without an end.
        (f'{C}{{"name": "f", "arguments": {{"a": [1', "", [("f", '{"a": [1')]),
        (f'hm\n{C}{{"name": "f", "argu', 'hm\n{"name": "f", "argu', []),
        (f'{C}{ONE}\n{C}\n{{"na', '\n{"na', [("f", ARGUMENTS)]),
        (f"{C}{ONE}", "", [("f", ARGUMENTS)]),
        (f"{C}{ONE}{C}{ONE}", "", [("f", ARGUMENTS)] * 2),
        (f"{C}{ONE}\n{ONE}", ONE, [("f", ARGUMENTS)]),
        # Not a call: its text is content.
        (f"{C}not JSON{END_C}", "not JSON", []),
        (f'{C}{{"name": "a b", "arguments": {{}}}}{END_C}', '{"name": "a b", "arguments": {}}', []),
        (f'{C}{{"name": 7, "arguments": {{}}}}{END_C}', '{"name": 7, "arguments": {}}', []),
        (f"{C}[1]{END_C}", "[1]", []),
        (f"{C}{END_C}", "", []),
        (f"{C}{ONE} and more{END_C}done", "and moredone", [("f", ARGUMENTS)]),
        (f"{C}{'[' * 10_000}{END_C}", "[" * 10_000, []),
    ],
)
def test_calls_as_json(reply: str, content: str, calls: list[tuple[str, str]]) -> None:
    message = parse([reply], JsonCalls)
    assert (message.content, calls_of(message)) == (content, calls)
    assert parse(list(reply), JsonCalls) == message


def pair(key: str, value: str) -> str:
    return f"{K}{key}{END_K}{V}{value}{END_V}"


@pytest.mark.parametrize(
    ("reply", "content", "arguments"),
    [
        (f"{C}f{pair('text', 'a')}{END_C}", "", {"text": "a"}),
        (f"{C}f\n{pair('text', 'a')}\n{pair('count', '3')}\n{END_C}", "", {"text": "a", "count": 3}),
        (f"{C}f\n{K}text{END_K}\n{V}a{END_V}{END_C}", "", {"text": "a"}),
        (f"hm\n{C}f{END_C}", "hm\n", {}),
        # Only the schema decides: text that looks like JSON, and vice versa.
        (f"{C}f{pair('text', '3')}{pair('text', 'true')}{END_C}", "", {"text": "true"}),
        (f"{C}f{pair('text', '')}{pair('sure', 'true')}{pair('list', '[1, {}]')}{END_C}", "", None),
        (f"{C}f{pair('name', 'null')}{END_C}", "", {"name": None}),
        (f"{C}f{pair('name', '3')}{END_C}", "", {"name": "3"}),
        (f"{C}f{pair('count', 'three')}{END_C}", "", {"count": "three"}),
        (f"{C}f{pair('count', 'NaN')}{END_C}", "", {"count": "NaN"}),
        (f"{C}f{pair('unknown', '[1]')}{pair('other', 'a b')}{END_C}", "", {"unknown": [1], "other": "a b"}),
        # Text of several lines, quotes, other letters; marks that belong elsewhere.
        (f"{C}f{pair('text', chr(10) + 'a' + chr(34) + chr(92) + '中👍 ')}{END_C}", "", {"text": '\na"\\中👍 '}),
        (f"{C}f{pair('text', f'a{T}b')}{END_C}", "", {"text": "ab"}),
        # Missing end marks.
        (f"{C}f{K}text{V}a{K}count{V}3{END_C}", "", {"text": "a", "count": 3}),
        (f"{C}f{pair('text', 'a')}", "", {"text": "a"}),
        # Text between pairs is not an argument, and is kept.
        (f"{C}f{pair('text', 'a')}and{pair('count', '1')}{END_C}", "and", {"text": "a", "count": 1}),
    ],
)
def test_calls_as_keys_and_values(reply: str, content: str, arguments: dict[str, Any] | None) -> None:
    message = parse([reply], KEYED)
    assert message.content == content
    ((name, text),) = calls_of(message)
    assert name == "f"
    assert json.loads(text) == ({"text": "", "sure": True, "list": [1, {}]} if arguments is None else arguments)
    assert parse(list(reply), KEYED) == message


@pytest.mark.parametrize(
    ("reply", "content", "calls"),
    [
        (f"{C}f{END_C}\n{C}g{END_C}", "", [("f", "{}"), ("g", "{}")]),
        (f"{C}f{pair('text', 'a')}{C}g{END_C}done", "done", [("f", '{"text": "a"}'), ("g", "{}")]),
        (f"{C}a b{pair('text', 'c')}{END_C}{C}f{END_C}", "a btextc", [("f", "{}")]),
        (f"{C}{END_C}", "", []),
        (f"hm\n{C}na", "hm\nna", []),
        (f"{C}f{K}te", "te", [("f", "{}")]),
        (f"{C}f{K}a{K}b{END_K}{END_C}", "ab", [("f", "{}")]),
        (f"{C}f{K}a{pair('text', 'b')}{END_C}", "a", [("f", '{"text": "b"}')]),
        (f"{C}f{K}a{END_K} {pair('text', 'b')}so{K}text{END_K}{V}c", "aso", [("f", '{"text": "b", "text": "c')]),
        (f"{C}f{K}text{END_K}{V}ab", "", [("f", '{"text": "ab')]),
        (f"{C}f{K}count{END_K}{V}1", "", [("f", '{"count": 1')]),
        (f"a{K}b{END_V}c", "abc", []),
    ],
)
def test_truncated_or_invalid_calls_as_keys_and_values(reply: str, content: str, calls: list[tuple[str, str]]) -> None:
    message = parse([reply], KEYED)
    assert (message.content, calls_of(message)) == (content, calls)
    assert parse(list(reply), KEYED) == message


CS, END_CS, SEP = Mark.CALLS, Mark.END_CALLS, Mark.SEPARATOR


@pytest.mark.parametrize(
    ("reply", "content", "calls"),
    [
        (f"{CS}\n{C}f{SEP}\n{K}text{END_K}\n{V}a{END_V}\n{END_C}\n{END_CS}", "", [("f", '{"text": "a"}')]),
        (f"hm{CS}{C}f{SEP}{END_C}{C}g{SEP}\n{END_C}{END_CS}", "hm", [("f", "{}"), ("g", "{}")]),
        # Missing marks around all calls, or at the end of a call.
        (f"{C}f{SEP}\n{pair('count', '3')}\n{END_C}", "", [("f", '{"count": 3}')]),
        (f"{CS}\n{C}f{SEP}\n{pair('count', '3')}\n{END_CS}done", "done", [("f", '{"count": 3}')]),
        (f"{CS}\n{C}f{SEP}{C}g{SEP}{END_CS}", "", [("f", "{}"), ("g", "{}")]),
        (f"{CS}\n{C}f{pair('text', 'a')}{END_C}{END_CS}", "", [("f", '{"text": "a"}')]),
        # Not a call, and text outside of it.
        (f"{CS}no call{END_CS}", "no call", []),
        (f"{CS}{C}a b{SEP}c{END_C}{END_CS}", "a bc", []),
        (f"{CS}{C}f{SEP}so{END_C}{END_CS}", "so", [("f", "{}")]),
        (f"{CS}{C}f{SEP}{K}te", "te", [("f", "{}")]),
    ],
)
def test_calls_as_keys_and_values_after_a_separator(reply: str, content: str, calls: list[tuple[str, str]]) -> None:
    message = parse([reply], KEYED)
    assert (message.content, calls_of(message)) == (content, calls)
    assert parse(list(reply), KEYED) == message


def invoked(key: str, value: str) -> str:
    return f'<parameter name="{key}">{value}</parameter>\n'


F, END_F = '<invoke name="f">\n', "</invoke>\n"


@pytest.mark.parametrize(
    ("reply", "content", "calls"),
    [
        (f"{C}\n{F}{invoked('text', 'a')}{END_F}{END_C}", "", [("f", {"text": "a"})]),
        (f"hm\n{C}\n{F}{END_F}{END_C}", "hm", [("f", {})]),
        (f"{C}\n{F}{invoked('count', '3')}{END_F}{F}{END_F}{END_C}", "", [("f", {"count": 3}), ("f", {})]),
        (f"{C}{F}{END_F}{END_C}\n{C}{F}{END_F}{END_C}", "", [("f", {}), ("f", {})]),
        (f"{C}<invoke name='f' ><parameter  name = 'text'>a</parameter></invoke>{END_C}", "", [("f", {"text": "a"})]),
        # A value is the exact text between its tags.
        (f"{C}{F}{invoked('text', chr(10) + ' a ' + chr(10))}{END_F}{END_C}", "", [("f", {"text": "\n a \n"})]),
        (
            f"{C}{F}{invoked('text', '3')}{invoked('name', 'null')}{END_F}{END_C}",
            "",
            [("f", {"text": "3", "name": None})],
        ),
        (
            f"{C}{F}{invoked('text', '<b></parameter> </c>')}{END_F}{END_C}",
            "",
            [("f", {"text": "<b></parameter> </c>"})],
        ),
        (
            f"{C}{F}{invoked('list', '[' + chr(34) + '</parameter></invoke>' + chr(34) + ']')}{END_F}{END_C}",
            "",
            [("f", {"list": ["</parameter></invoke>"]})],
        ),
        # Missing end marks.
        (f"{C}{F}{invoked('text', 'a')}", "", [("f", {"text": "a"})]),
        (f"{C}{F}{invoked('text', 'a')}{END_C}", "", [("f", {"text": "a"})]),
        (f'{C}{F}<parameter name="text">a\n{END_F}{END_C}', "", [("f", {"text": "a"})]),
        (f'{C}{F}<parameter name="text">a{END_F}{F}{END_F}{END_C}', "", [("f", {"text": "a"}), ("f", {})]),
        (f"{C}{F}{invoked('text', 'a')}{F}{END_F}{END_C}", "", [("f", {"text": "a"}), ("f", {})]),
        # Not a call, and text outside of it.
        (f"{C}not a call{END_C}", "not a call", []),
        (f'{C}<invoke name="a b"></invoke>{END_C}', '<invoke name="a b"></invoke>', []),
        (f"{C}so {F}{END_F}{END_C}", "so", [("f", {})]),
        (f"{C}{F}and{invoked('text', 'a')}{END_F}{END_C}done", "anddone", [("f", {"text": "a"})]),
        (f"{C}<invo", "<invo", []),
    ],
)
def test_calls_in_invoke_tags(reply: str, content: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    message = parse([reply], INVOKED)
    assert message.content == content
    assert [(name, json.loads(text)) for name, text in calls_of(message)] == calls
    assert parse(list(reply), INVOKED) == message


def test_a_truncated_call_in_invoke_tags_returns_its_complete_part() -> None:
    for rest in ("", "</para", "</parameter>\n<param", "\n</inv"):
        parser, message = OutputParser(Start.CONTENT, INVOKED, new_id=lambda: "c"), Message()
        message.take(parser.push(f'{C}{F}<parameter name="text">ab{rest}'))
        message.take(parser.finish(is_cut=True))
        assert (message.content, calls_of(message)) == ("", [("f", '{"text": "ab')])


def exact(key: str, value: str) -> str:
    return f"<parameter={key}>{value}</parameter>\n"


G, END_G = "<function=f>\n", "</function>\n"


@pytest.mark.parametrize(
    ("reply", "content", "calls"),
    [
        (f"{C}\n{G}{exact('text', 'a')}{END_G}{END_C}", "", [("f", {"text": "a"})]),
        # The line break before a call belongs to the answer.
        (f"hm\n{C}\n{G}{END_G}{END_C}", "hm\n", [("f", {})]),
        (f"{C}\n{G}{END_G}{END_C}{C}\n{G}{exact('count', '3')}{END_G}{END_C}", "", [("f", {}), ("f", {"count": 3})]),
        (f"{C}<function=f><parameter=text>a</parameter></function>{END_C}", "", [("f", {"text": "a"})]),
        # A value is the exact text between its tags.
        (f"{C}{G}{exact('text', chr(10) + ' a ' + chr(10))}{END_G}{END_C}", "", [("f", {"text": "\n a \n"})]),
        (f"{C}{G}{exact('text', '3')}{exact('name', 'null')}{END_G}{END_C}", "", [("f", {"text": "3", "name": None})]),
        (f"{C}{G}{exact('text', '</parameter> </c>')}{END_G}{END_C}", "", [("f", {"text": "</parameter> </c>"})]),
        (f"{C}{G}{exact('a' + chr(34), 'b')}{END_G}{END_C}", "", [("f", {'a"': "b"})]),
        # Missing end marks.
        (f"{C}{G}{exact('text', 'a')}", "", [("f", {"text": "a"})]),
        (f"{C}{G}<parameter=text>a\n{END_G}{END_C}", "", [("f", {"text": "a"})]),
        (f"{C}{G}{exact('text', 'a')}{C}{G}{END_G}{END_C}", "", [("f", {"text": "a"}), ("f", {})]),
        # Not a call, and text outside of it.
        (f"{C}not a call{END_C}", "not a call", []),
        (f"{C}<function=a b></function>{END_C}", "<function=a b></function>", []),
        (f"{C}{G}and{exact('text', 'a')}{END_G}{END_C}done", "anddone", [("f", {"text": "a"})]),
        (f"{C}<func", "<func", []),
    ],
)
def test_calls_in_function_tags_with_exact_values(
    reply: str, content: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    message = parse([reply], FUNCTIONS)
    assert message.content == content
    assert [(name, json.loads(text)) for name, text in calls_of(message)] == calls
    assert parse(list(reply), FUNCTIONS) == message


def test_calls_end_reasoning() -> None:
    for reply, read in ((f"hm\n{C}\n{F}{END_F}{END_C}", INVOKED), (f"hm{CS}\n{C}f{SEP}\n{END_C}\n{END_CS}", KEYED)):
        message = parse(list(reply), read, Start.REASONING)
        assert (message.reasoning, message.content, calls_of(message)) == ("hm", "", [("f", "{}")])


def test_a_value_that_can_only_be_a_string_is_streamed() -> None:
    parser, seen = OutputParser(Start.CONTENT, KEYED), Message()
    for piece in (f"{C}f{K}text{END_K}{V}", "one ", 'two "'):
        seen.take(parser.push(piece))
        assert seen.calls[0].arguments.endswith(json.dumps(piece)[1:-1] if piece[0] != C else ': "')


def tagged(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


@pytest.mark.parametrize(
    ("reply", "content", "calls"),
    [
        (f"{C}\n<function=f>\n{tagged('text', 'a')}</function>\n{END_C}", "", [("f", {"text": "a"})]),
        (f"{C}<function=f></function>{END_C}{C}<function=g>\n</function>{END_C}", "", [("f", {}), ("g", {})]),
        (
            f"hm\n{C}<function=f>{tagged('text', 'a' + chr(10) + ' <b> ')}{tagged('count', '3')}</function>{END_C}\n",
            "hm\n",
            [("f", {"text": "a\n <b> ", "count": 3})],
        ),
        # At each end, at most one line break belongs to the tags.
        (f"{C}<function=f><parameter=text>\n\na\n\n</parameter></function>{END_C}", "", [("f", {"text": "\na\n"})]),
        (f"{C}<function=f><parameter=text>a</parameter></function>{END_C}", "", [("f", {"text": "a"})]),
        (f"{C}<function=f><parameter=text>\n\n</parameter></function>{END_C}", "", [("f", {"text": ""})]),
        (f"{C}<function=f>{tagged('text', '</param' + chr(10) + '</p')}</function>{END_C}", "", None),
        # Missing end marks.
        (f"{C}<function=f>{tagged('count', '3')}{END_C}", "", [("f", {"count": 3})]),
        (f"{C}<function=f>{tagged('text', 'a')}", "", [("f", {"text": "a"})]),
        (f"{C}<function=f><parameter=text>\na\n{END_C}", "", [("f", {"text": "a"})]),
        # Not a call, and text outside of it.
        (f"{C}not a call{END_C}", "not a call", []),
        (f"{C}<function=a b></function>{END_C}", "<function=a b></function>", []),
        (f"{C}<function=f>", "", [("f", {})]),
        (f"{C}<functi", "<functi", []),
        (f"{C}<function=f>and{tagged('text', 'a')}</function>{END_C}", "and", [("f", {"text": "a"})]),
    ],
)
def test_calls_in_tags(reply: str, content: str, calls: list[tuple[str, dict[str, Any]]] | None) -> None:
    message = parse([reply], TAGGED)
    expected = [("f", {"text": "</param\n</p"})] if calls is None else calls
    assert message.content == content
    assert [(name, json.loads(text)) for name, text in calls_of(message)] == expected
    assert parse(list(reply), TAGGED) == message


def test_a_truncated_call_in_tags_returns_its_complete_part() -> None:
    assert calls_of(parse([f"{C}<function=f><parameter=text>\nab\n</para"], TAGGED)) == [("f", '{"text": "ab\\n</para')]
    assert calls_of(parse([f"{C}<function=f><parameter=count>\n1"], TAGGED)) == [("f", '{"count": 1')]
    stray = parse([f"{C}<function=f>so<parameter=text>\nab"], TAGGED)
    assert (stray.content, calls_of(stray)) == ("so", [("f", '{"text": "ab')])
    nameless = parse([f"hm{C}\n<function=we"], TAGGED)
    assert (nameless.content, nameless.calls) == ("hm\n<function=we", [])


D = Mark.TAG
BEGIN, END = f"\n\n<{D}function_calls>\n", f"</{D}function_calls>"
INVOKE_F, END_INVOKE = f'<{D}invoke name="f">\n', f"</{D}invoke>\n"


def dsml(key: str, value: str, string: str = ' string="true"') -> str:
    return f'<{D}parameter name="{key}"{string}>{value}</{D}parameter>\n'


JSON = ' string="false"'


@pytest.mark.parametrize(
    ("reply", "content", "calls"),
    [
        (f"{BEGIN}{INVOKE_F}{dsml('text', 'a')}{END_INVOKE}{END}", "", [("f", {"text": "a"})]),
        # A call without arguments in the published form, and without the empty line.
        (f"hm{BEGIN}{INVOKE_F}\n{END_INVOKE}{INVOKE_F}{END_INVOKE}{END}", "hm", [("f", {}), ("f", {})]),
        # The tag decides, not the form of the content. Invalid JSON is text, and so is everything outside tags.
        (f"{BEGIN}{INVOKE_F}{dsml('a', '5')}{dsml('b', '5', JSON)}{END_INVOKE}{END}", "", [("f", {"a": "5", "b": 5})]),
        (f"{BEGIN}{INVOKE_F}{dsml('a', '[1, {}', JSON)}{dsml('b', '[1]', '')}{END_INVOKE}{END}", "", None),
        # A value is everything up to its closing tag: lines, quotes, other tags that are spelled out.
        (
            f"{BEGIN}{INVOKE_F}{dsml('a', ' <b>' + chr(10) + chr(34) + '</parameter> </')}{END_INVOKE}{END}",
            "",
            [("f", {"a": ' <b>\n"</parameter> </'})],
        ),
        # Text within a key that would end a tag.
        (
            f"{BEGIN}{INVOKE_F}{dsml('a>b', '5', JSON)}{dsml('<=', '')}{END_INVOKE}{END}",
            "",
            [("f", {"a>b": 5, "<=": ""})],
        ),
        # Deviating tags that a model may write.
        (
            f"{BEGIN}<{D} invoke name = 'f' >\n<{D}parameter string='false' name='a\"' >1</{D} parameter >\n"
            f'<{D}parameter name="b" string="True"\n>2</{D}parameter\n></{D}invoke ></{D} function_calls>',
            "",
            [("f", {'a"': 1, "b": "2"})],
        ),
        (
            f"{BEGIN}{INVOKE_F}{dsml('a', f'<b></{D}other></{D}parameter, </{D}<')}{END_INVOKE}{END}",
            "",
            [("f", {"a": "<b></other></parameter, </<"})],
        ),
        # A value with a missing end.
        (f'{BEGIN}{INVOKE_F}<{D}parameter name="a" string="true">1{END_INVOKE}{END}', "", [("f", {"a": "1"})]),
        (f'{BEGIN}{INVOKE_F}<{D}parameter name="a" string="false">1\n{END}so', "so", [("f", {"a": 1})]),
        # The second value of a name is dropped.
        (f"{BEGIN}{INVOKE_F}{dsml('a', '1')}{dsml('a', '2')}{END_INVOKE}{END}", "", [("f", {"a": "1"})]),
        # After all calls: nothing, content, other calls.
        (f"hm{BEGIN}{INVOKE_F}{END_INVOKE}{END}\n", "hm", [("f", {})]),
        (f"hm{BEGIN}{INVOKE_F}{END_INVOKE}{END}\n\na < b\n<", "hm\n\na < b\n<", [("f", {})]),
        (f"hm{f'{BEGIN}{INVOKE_F}{END_INVOKE}{END}' * 2}", "hm", [("f", {}), ("f", {})]),
        (f"hm{f'{BEGIN}{INVOKE_F}{END_INVOKE}{END}so' * 2}", "hmsoso", [("f", {}), ("f", {})]),
        # Missing tags.
        (f'hm\n\n<{D}invoke name="f">{dsml("a", "1")}</{D}invoke>', "hm", [("f", {"a": "1"})]),
        (f"{BEGIN}{INVOKE_F}{dsml('a', '1')}{INVOKE_F}{END_INVOKE}{END}", "", [("f", {"a": "1"}), ("f", {})]),
        (f"{BEGIN}{INVOKE_F}{dsml('a', '1')}{END}", "", [("f", {"a": "1"})]),
        (f"{BEGIN}{INVOKE_F}{dsml('a', '1')}", "", [("f", {"a": "1"})]),
        # Not a call, and text outside of it.
        ("a < b\n\n<", "a < b\n\n<", []),
        (f"a\n\n<{D}function_calls>words{END}more", "awordsmore", []),
        (f"a<{D}other>b", "aother>b", []),
        (f'{BEGIN}<{D}invoke name="a b">{END}', '\n<invoke name="a b">', []),
        (f"{BEGIN}{INVOKE_F}and{dsml('a', '1')}{END_INVOKE}{END}", "\nand", [("f", {"a": "1"})]),
        (f"{BEGIN}{INVOKE_F}{dsml('a' + chr(10) + 'b', 'x')}{END_INVOKE}{END}", None, [("f", {})]),
        (f'{BEGIN}<{D}invoke it <{D}invoke name="f">{END_INVOKE}{END}', "\n<invoke it", [("f", {})]),
        (f"{BEGIN}<{D}{' ' * 5000}>{END}", f"\n<{' ' * 5000}>", []),
        (f"hm{BEGIN}<{D}invoke na", "hm\n<invoke na", []),
    ],
)
def test_calls_in_tags_with_a_mark(
    reply: str, content: str | None, calls: list[tuple[str, dict[str, Any]]] | None
) -> None:
    message = parse([reply], DsmlCalls)
    lost = '\n<parameter name="a\nb" string="true">x</parameter>'
    assert message.content == (lost if content is None else content)
    expected = [("f", {"a": "[1, {}", "b": [1]})] if calls is None else calls
    assert [(name, json.loads(text)) for name, text in calls_of(message)] == expected
    assert parse(list(reply), DsmlCalls) == message


def test_a_truncated_call_in_tags_with_a_mark_returns_its_complete_part() -> None:
    begun = f'{BEGIN}{INVOKE_F}<{D}parameter name="a" string="true">x"'
    assert calls_of(parse([f"{begun}</{D}para"], DsmlCalls)) == [("f", '{"a": "x\\"</para')]
    assert calls_of(parse([f'{BEGIN}{INVOKE_F}<{D}parameter name="a" string="false">[1'], DsmlCalls)) == [
        ("f", '{"a": [1')
    ]
    stray = parse([f'{BEGIN}{INVOKE_F}so <{D}parameter name="a" string="true">x'], DsmlCalls)
    assert (stray.content.strip(), calls_of(stray)) == ("so", [("f", '{"a": "x')])
    parser, seen = OutputParser(Start.CONTENT, DsmlCalls), Message()
    for piece in (begun, " and ", "more"):
        seen.take(parser.push(piece))
    assert seen.calls[0].arguments == '{"a": "x\\" and more'


def test_calls_in_tags_with_a_mark_end_reasoning_without_their_first_characters() -> None:
    calls = f"{BEGIN}{INVOKE_F}{END_INVOKE}{END}"
    for reply in (f"hm{calls}", f"hm{END_T}{calls}", f"hm{END_T}So.{calls}"):
        message = parse(list(reply), DsmlCalls, Start.REASONING)
        assert (message.reasoning, message.content) == ("hm", "So." if "So." in reply else "")
        assert calls_of(message) == [("f", "{}")]
    assert parse(["hm\n<"], DsmlCalls, Start.REASONING).reasoning == "hm\n<"


@pytest.mark.parametrize("begin", [BEGIN, BEGIN + INVOKE_F])
def test_white_space_between_tags_takes_linear_time(begin: str) -> None:
    """Quadratic time would be many minutes."""
    assert parse([f"{begin}{' ' * 500_000}x{END}"], DsmlCalls).content.strip() == "x"
    blank = "\n" * 50_000
    assert parse([begin, *blank, "x", END], DsmlCalls) == parse([f"{begin}{blank}x{END}"], DsmlCalls)


@pytest.mark.parametrize("key", [" a", "a ", "", "a\nb", 'a"', "a>"])
def test_a_key_that_a_tag_cannot_hold_is_known(key: str) -> None:
    assert not INVOKE.is_key(key)
    assert FUNCTION.is_key(key) is ('"' in key)


@pytest.mark.parametrize("begin", [C, C + F])
def test_text_between_invoke_tags_takes_linear_time(begin: str) -> None:
    """Quadratic time would be many minutes."""
    text = "abc <" * 50_000
    assert parse([begin, *(["abc <"] * 50_000), END_C], InvokeCalls) == parse([f"{begin}{text}{END_C}"], InvokeCalls)


@pytest.mark.parametrize("begin", [C, f"{C}<function=f>", f"{C}<function=f>\n<parameter=list>\n1\n</parameter>\n"])
def test_stray_text_in_spelled_out_calls_takes_linear_time(begin: str) -> None:
    """Quadratic time would be many minutes."""
    text = "abc <" * 1_000_000
    assert parse([begin, *(["abc <"] * 1_000_000), END_C], TAGGED) == parse([f"{begin}{text}{END_C}"], TAGGED)


@pytest.mark.parametrize(
    ("begin", "read"),
    [
        (f"{C}<function=", FUNCTIONS),
        (f"{C}<function=f><", FUNCTIONS),
        (f"{C}<function=f><parameter=", FUNCTIONS),
        (f"{C}<function=f><parameter=", TAGGED),
        (f'{C}<invoke name="', INVOKED),
        (f"{C}{F}<parameter name='", INVOKED),
    ],
)
def test_a_tag_that_never_ends_is_text_in_linear_time(begin: str, read: ReadCalls) -> None:
    """Quadratic time would be minutes."""
    text = "a" * 50_000
    message = parse([begin, *text, ">", END_C], read)
    assert message == parse([f"{begin}{text}>{END_C}"], read)
    assert message.content == f"{begin[begin.rindex('<') :]}{text}>"


@pytest.mark.parametrize(
    ("begin", "end", "read"),
    [
        (f'{C}{F}<parameter name="list">', f"</parameter>{END_F}{END_C}", INVOKED),
        (f"{C}<function=f><parameter=list>", f"</parameter></function>{END_C}", FUNCTIONS),
        (f"{C}<function=f>\n<parameter=list>\n", f"\n</parameter>\n</function>{END_C}", TAGGED),
    ],
)
def test_tags_within_a_string_of_json_take_linear_time(begin: str, end: str, read: ReadCalls) -> None:
    """Scanning the quotation marks again for each tag would take minutes."""
    tags = ["</parameter><parameter name='text'></parameter><parameter=text>"] * 8000
    [call] = parse([begin, '["', '\\"' * 100_000, *tags, '"]', end], read).calls
    assert json.loads(call.arguments) == {"list": ['"' * 100_000 + "".join(tags)]}


def test_white_space_between_tags_is_held_up_to_a_limit() -> None:
    parser, seen = OutputParser(Start.CONTENT, DsmlCalls), Message()
    for piece in (BEGIN, *" " * 1000):
        seen.take(parser.push(piece))
    assert 900 <= len(seen.content) < 1000
    for piece in (INVOKE_F, END_INVOKE, END):
        seen.take(parser.push(piece))
    assert (len(seen.content.strip()), len(seen.calls)) == (0, 1)


words = st.text(alphabet='ab \n"{}[]:,\\中<1', max_size=8)
marks = st.sampled_from([str(mark) for mark in Mark])
json_call = st.sampled_from([ONE, '{"name": "f", "arguments": {}}', '{"arguments": 1, "name": "f"}', "{}"])
json_reply = st.lists(words | marks | json_call.map(lambda call: f"{C}{call}{END_C}"), max_size=8).map("".join)
keyed_call = st.lists(st.builds(pair, st.sampled_from([*PARAMETERS["properties"], "x"]), words), max_size=3)
keyed_reply = st.lists(words | marks | keyed_call.map(lambda pairs: f"{C}f{''.join(pairs)}{END_C}"), max_size=8)
tagged_call = st.lists(st.builds(tagged, st.sampled_from([*PARAMETERS["properties"], "x"]), words), max_size=3)
tagged_part = st.sampled_from(["<function=f>", "<parameter=text>", "</parameter>", "</function>", "<param"])
tagged_reply = st.lists(
    words | marks | tagged_part | tagged_call.map(lambda pairs: f"{C}<function=f>{''.join(pairs)}</function>{END_C}"),
    max_size=8,
)
invoked_call = st.lists(st.builds(invoked, st.sampled_from([*PARAMETERS["properties"], "x"]), words), max_size=3)
invoked_part = st.sampled_from(
    [F, END_F, '<parameter name="text">', '<parameter name="list">', "</parameter>", "</invoke>", "<para", "</", '["']
)
invoked_reply = st.lists(
    words | marks | invoked_part | invoked_call.map(lambda pairs: f"{C}{F}{''.join(pairs)}{END_F}{END_C}"), max_size=8
)
exact_call = st.lists(st.builds(exact, st.sampled_from([*PARAMETERS["properties"], "x"]), words), max_size=3)
exact_part = st.sampled_from(
    [G, END_G, "<parameter=text>", "<parameter=list>", "</parameter>", "</function>", "<para", "</", '["', "<function"]
)
exact_reply = st.lists(
    words | marks | exact_part | exact_call.map(lambda pairs: f"{C}{G}{''.join(pairs)}{END_G}{END_C}"), max_size=8
)
dsml_call = st.lists(
    st.builds(dsml, st.sampled_from(["a", "b", "a>b", "<", ">"]), words, st.sampled_from(["", JSON])), max_size=3
)
dsml_part = st.sampled_from(
    [BEGIN, END, INVOKE_F, END_INVOKE, "<", "</", "\n\n<", f'<{D}parameter name="a">', f"</{D}parameter", " >"]
)
dsml_reply = st.lists(
    words | marks | dsml_part | dsml_call.map(lambda pairs: f"{BEGIN}{INVOKE_F}{''.join(pairs)}{END_INVOKE}{END}"),
    max_size=8,
)
cuts = st.lists(st.integers(0, 300), max_size=8)


def divided(text: str, at: list[int]) -> list[str]:
    bounds = [0, *sorted(min(position, len(text)) for position in at), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(bounds)]


@given(json_reply, cuts, st.sampled_from(Start))
def test_every_division_of_json_calls_reads_the_same(text: str, at: list[int], start: Start) -> None:
    assert parse(divided(text, at), JsonCalls, start) == parse([text], JsonCalls, start)


@given(keyed_reply.map("".join), cuts, st.sampled_from(Start))
def test_every_division_of_keyed_calls_reads_the_same(text: str, at: list[int], start: Start) -> None:
    whole = parse([text], KEYED, start)
    assert parse(divided(text, at), KEYED, start) == whole
    for call in whole.calls[:-1]:
        assert isinstance(json.loads(call.arguments), dict)


@given(tagged_reply.map("".join), cuts, st.sampled_from(Start))
def test_every_division_of_calls_in_tags_reads_the_same(text: str, at: list[int], start: Start) -> None:
    assert parse(divided(text, at), TAGGED, start) == parse([text], TAGGED, start)


@given(invoked_reply.map("".join), cuts, st.sampled_from(Start))
def test_every_division_of_calls_in_invoke_tags_reads_the_same(text: str, at: list[int], start: Start) -> None:
    assert parse(divided(text, at), INVOKED, start) == parse([text], INVOKED, start)


@given(exact_reply.map("".join), cuts, st.sampled_from(Start))
def test_every_division_of_calls_in_function_tags_reads_the_same(text: str, at: list[int], start: Start) -> None:
    assert parse(divided(text, at), FUNCTIONS, start) == parse([text], FUNCTIONS, start)


@given(dsml_reply.map("".join), cuts, st.sampled_from(Start))
def test_calls_in_tags_with_a_mark_are_parsed_equally_for_any_chunks(text: str, at: list[int], start: Start) -> None:
    whole = parse([text], DsmlCalls, start)
    assert parse(divided(text, at), DsmlCalls, start) == whole
    for call in whole.calls[:-1]:
        assert isinstance(json.loads(call.arguments), dict)


PARTS: dict[str, tuple[ReadCalls, list[str]]] = {
    "JSON": (
        JsonCalls,
        [f"{C}{ONE}", C, END_C, ONE, '{"name": "f", "arguments": ', '{"name": "WORD"', "{", '"}', "\n"],
    ),
    "keys and values": (KEYED, [f"{C}f", C, END_C, K, END_K, V, END_V, "f", "text", "\n"]),
    "tags": (
        TAGGED,
        [
            f"{C}<function=f>",
            C,
            END_C,
            "<function=f>",
            "</function>",
            "<parameter=text>",
            "<parameter=WORD>",
            "</parameter>",
            "\n",
        ],
    ),
    "invoke tags": (
        INVOKED,
        [f"{C}{F}", C, END_C, F, END_F, '<parameter name="text">', '<parameter name="WORD">', "</parameter>", "\n"],
    ),
    "function tags": (
        FUNCTIONS,
        [f"{C}{G}", C, END_C, G, END_G, "<parameter=text>", "<parameter=WORD>", "</parameter>", "\n"],
    ),
    "keys and values after a separator": (KEYED, [f"{CS}{C}f", CS, END_CS, C, END_C, SEP, K, END_K, V, END_V, "f"]),
    "tags with a mark": (
        DsmlCalls,
        [
            BEGIN + INVOKE_F,
            END,
            INVOKE_F,
            END_INVOKE,
            f'<{D}parameter name="WORD" string="true">',
            f"</{D}parameter>",
            D,
            "<",
        ],
    ),
}


@pytest.mark.parametrize("form", PARTS)
@settings(max_examples=times(100, 500))
@given(data=st.data())
def test_no_word_of_a_reply_is_lost(form: str, data: st.DataObject) -> None:
    read, parts = PARTS[form]
    drawn = ["hm", *parts[:1], *data.draw(st.lists(st.sampled_from([*map(str, parts), "WORD", "WORD"]), max_size=6))]
    message = parse([part.replace("WORD", f"w{n}q") for n, part in enumerate(drawn)], read)
    seen = [message.content, *itertools.chain.from_iterable(calls_of(message))]
    for n, part in enumerate(drawn):
        assert "WORD" not in part or any(f"w{n}q" in text for text in seen)


S = Mark.SEPARATOR


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"{C}f{S}{ARGUMENTS}", "", [("f", ARGUMENTS)]),
        (f"I look.{C}f{S}{{}}{C}g{S} {ARGUMENTS}\n", "I look.", [("f", "{}"), ("g", ARGUMENTS)]),
        (f"{C} f\n{S}\n{{}}", "", [("f", "{}")]),
        (f"{C}f{ARGUMENTS}", "", [("f", ARGUMENTS)]),  # no separator
        (f"{C}f{S}{C}g{S}", "", [("f", "{}"), ("g", "{}")]),
        (f"{C}f{S}{{}} and so on", " and so on", [("f", "{}")]),
        (f"{C}f{S}{{}}\ntext {C}g{S}{{}}", "\ntext", [("f", "{}"), ("g", "{}")]),
        (f'{C}f{S}{{"a": ', "", [("f", '{"a": ')]),
        # No calls.
        (f"{C}f", "f", []),
        (f"{C}{S}{ARGUMENTS}", ARGUMENTS, []),
        (f"{C}two words{S}{{}}", "two words{}", []),
        (f"{C}two words {{}} then", "two words {} then", []),
        (f'{C}[{{"name": "f", "arguments": {{}}}}]', '[{"name": "f", "arguments": {}}]', []),
        (f"{C}f{S} no JSON", "f no JSON", []),
        (f"{C}{'a' * 2000}", "a" * 2000, []),
        (f"{C}f{' ' * 2000}{S}{{}}", "", [("f", "{}")]),
        (f"{C}f{S}[1]{C}g{S}{{}}", "f[1]", [("g", "{}")]),
        (f"{C}f{S}{S}{{}}", "", [("f", "{}")]),
        (f"{S}{{}}", "{}", []),
    ],
)
def test_calls_without_an_end_mark(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    message = parse([text], NamedCalls)
    assert (message.content, calls_of(message)) == (content, calls)
    for size in (1, 2, 3):
        assert parse([text[at : at + size] for at in range(0, len(text), size)], NamedCalls) == message
    for at in range(len(text)):
        assert parse([text[:at], text[at:]], NamedCalls) == message


def test_a_call_without_an_end_mark_ends_reasoning() -> None:
    message = parse(list(f"{T}hm{C}f{S}{ARGUMENTS}"), NamedCalls, Start.EITHER)
    assert (message.reasoning, message.content, calls_of(message)) == ("hm", "", [("f", ARGUMENTS)])
