"""Calls that deviate from the template: tags that are missing or not on separate lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ballast.families.marks import Mark
from ballast.text.calls.separated import SeparatedCalls
from ballast.text.marks import Start
from ballast.text.output_parser import OutputParser
from ballast.text.reply_parts import Message
from devkit.models.call_forms import FORMS, tool

C, END_C = Mark.CALL, Mark.END_CALL
READ = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "start_line": {"type": "integer"},
        "end_line": {"type": "integer"},
        "mode": {"enum": ["fast", "slow"]},
    },
    "required": ["path"],
}
CODER, TOOLS = FORMS["Qwen3-Coder"], tool(READ, name="read")


def tag(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


def written(tags: str, end: str = "</function>\n") -> str:
    return f"{C}\n<function=read>\n{tags}{end}{END_C}"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        # Closing tags within values.
        (written(tag("path", "a</parameter>b")), {"path": "a</parameter>b"}),
        (written(tag("path", "a\n</parameter> b")), {"path": "a\n</parameter> b"}),
        (written(tag("path", "</parameter>")), {"path": "</parameter>"}),
        (written(tag("path", "</function>\n")), {"path": "</function>\n"}),
        (written(tag("path", "a</parameter>\n</function>")), {"path": "a</parameter>\n</function>"}),
        (written(tag("path", "a\n<parameter=other>\nb")), {"path": "a\n<parameter=other>\nb"}),
        (written(tag("path", "a<parameter=mode>")), {"path": "a<parameter=mode>"}),
        (written(tag("path", "a\n<parameter=path>\nb")), {"path": "a\n<parameter=path>\nb"}),
        (written(tag("path", "\n\na\n\n")), {"path": "\n\na\n\n"}),
        (written(tag("path", "")), {"path": ""}),
        # The closing tag is on the line of the value, or directly after the opening tag.
        (written("<parameter=path>\nfoo</parameter>\n"), {"path": "foo"}),
        (written("<parameter=path>foo</parameter>\n"), {"path": "foo"}),
        (written("<parameter=path>foo</parameter>", "</function>"), {"path": "foo"}),
        (written("<parameter=path>\nfoo\n</parameter>", "</function>"), {"path": "foo"}),
        (written("<parameter=path>\n</parameter>\n"), {"path": ""}),
        (written("<parameter=path></parameter>\n"), {"path": ""}),
        (written("<parameter=path>\n</parameter>\n" + tag("end_line", "3")), {"path": "", "end_line": 3}),
        (written("<parameter=path>a</parameter><parameter=end_line>3</parameter>"), {"path": "a", "end_line": 3}),
        (written("<parameter=end_line>3</parameter> <parameter=path>a</parameter>"), {"end_line": 3, "path": "a"}),
        (written("<parameter=mode>fast</parameter>\n<parameter=path>a</parameter>"), {"mode": "fast", "path": "a"}),
        # The closing tag is missing.
        (written("<parameter=path>\nfoo\n"), {"path": "foo"}),
        (written("<parameter=path>foo"), {"path": "foo"}),
        (written("<parameter=path>\nfoo\n<parameter=end_line>\n3\n"), {"path": "foo", "end_line": 3}),
        (written("<parameter=end_line>\n3\n<parameter=path>\nfoo\n"), {"end_line": 3, "path": "foo"}),
        (written("<parameter=mode>\nslow\n<parameter=path>\nfoo\n", ""), {"mode": "slow", "path": "foo"}),
        # White space between tags.
        (
            f"{C}\n\n<function=read>\n\n{tag('path', 'foo')}\n\n{tag('end_line', '3')}\n</function>\n\n{END_C}",
            {"path": "foo", "end_line": 3},
        ),
        # The function's closing tag is missing.
        (written(tag("path", "foo"), ""), {"path": "foo"}),
        (written("<parameter=path>\nfoo", ""), {"path": "foo"}),
        (written(tag("path", "foo") + "<parameter=end_line>3", ""), {"path": "foo", "end_line": 3}),
    ],
)
def test_loose_tags_are_allowed_and_read(text: str, values: dict[str, Any]) -> None:
    assert CODER.refused_at(TOOLS, text) is None
    message = CODER.read(TOOLS, [text])
    assert (message.content, [json.loads(call.arguments) for call in message.calls]) == ("", [values])
    assert CODER.read(TOOLS, list(text)) == message


def test_after_a_closing_tag_on_its_own_line_only_tags_follow() -> None:
    begun = f"{C}\n<function=read>\n{tag('path', 'a')}"
    assert CODER.refused_at(TOOLS, f"{begun}more\n</parameter>\n</function>\n{END_C}") is not None
    assert CODER.refused_at(TOOLS, f"{begun}</function>\n{END_C}") is None


def test_a_restricted_string_has_no_line_that_would_open_the_next_argument() -> None:
    schema = {"type": "object", "properties": {"s": {"type": "string", "minLength": 2}, "t": {"type": "string"}}}
    tools = tool(schema, name="read", strict=True)
    for value in ("<parameter=t>\nb", "a\n<parameter=t>\nb"):
        assert CODER.refused_at(tools, written(tag("s", value))) is not None
    inside = written(tag("s", "a <parameter=t> b"))
    assert CODER.refused_at(tools, inside) is None
    assert json.loads(CODER.read(tools, [inside]).calls[0].arguments) == {"s": "a <parameter=t> b"}


def test_a_key_that_does_not_fit_a_tag_is_omitted_if_optional() -> None:
    tools = tool({"type": "object", "properties": {"a>b": {"type": "string"}, "c": {"type": "string"}}})
    assert (
        CODER.refused_at(tools, f"{C}\n<function=f>\n{tag('c', 'x')}</function>\n{END_C}", any_arguments=True) is None
    )


CALL = f"<function=read>\n{tag('path', 'a')}</function>\n"


@pytest.mark.parametrize(
    ("text", "content", "paths"),
    [
        (f"{CALL}{END_C}", "", ["a"]),
        (f"I look.\n{CALL}{END_C}", "I look.\n", ["a"]),
        (f"I look.{CALL}{END_C}\n{CALL}{END_C}", "I look.", ["a", "a"]),
        (f"{C}\n{CALL}{END_C}\n{CALL}{END_C}\n", "", ["a", "a"]),
        (f"{C}\n{CALL}{END_C}\n{CALL}{END_C}{C}\n{CALL}{END_C}", "", ["a", "a", "a"]),
        (CALL, "", ["a"]),
        (f"<function=read><parameter=path>a</parameter>{END_C}", "", ["a"]),
        # Text about calls, and functions that are not declared.
        ("Use <function=read> to read", "Use <function=read> to read", []),
        ("a < b, <funct", "a < b, <funct", []),
        (f"```\n{CALL}```\nThis is how.", f"```\n{CALL}```\nThis is how.", []),
        (CALL.replace("read", "other"), CALL.replace("read", "other"), []),
        (f"{CALL.replace('read', 'other')}{END_C}", CALL.replace("read", "other"), []),
    ],
)
def test_a_call_of_a_declared_function_may_lack_its_opening_tag(text: str, content: str, paths: list[str]) -> None:
    message = CODER.read(TOOLS, [text])
    assert (message.content, [json.loads(call.arguments)["path"] for call in message.calls]) == (content, paths)
    assert CODER.read(TOOLS, list(text)) == message


JSON_CALL = '{"name": "read", "arguments": {"path": "a"}}'


@pytest.mark.parametrize(
    ("text", "content", "num_calls"),
    [
        (f"{JSON_CALL}\n{END_C}", "", 1),
        (f"I look.\n{JSON_CALL}{END_C}\n{JSON_CALL}{END_C}", "I look.\n", 2),
        (f"{C}\n{JSON_CALL}\n{END_C}\n{JSON_CALL}\n{END_C}", "", 2),
        (JSON_CALL, JSON_CALL, 0),
        (f"{JSON_CALL.replace('read', 'other')}{END_C}", JSON_CALL.replace("read", "other"), 0),
        ('{"name": "Ada"}', '{"name": "Ada"}', 0),
        ('a {"na', 'a {"na', 0),
    ],
)
def test_a_json_call_with_only_a_closing_tag_is_accepted(text: str, content: str, num_calls: int) -> None:
    message = FORMS["Qwen3"].read(TOOLS, [text])
    assert (message.content, [call.arguments for call in message.calls]) == (content, ['{"path": "a"}'] * num_calls)
    assert FORMS["Qwen3"].read(TOOLS, list(text)) == message


def test_without_tools_the_tags_of_a_call_are_content() -> None:
    message = CODER.read((), list(CALL))
    assert (message.content, message.calls) == (CALL, [])


def test_reasoning_ends_where_a_call_without_its_opening_tag_begins() -> None:
    parser, message = OutputParser(Start.REASONING, CODER.reader(TOOLS), new_id=lambda: "c"), Message()
    for piece in f"Hm.\n{CALL}{END_C}":
        message.take(parser.push(piece))
    message.take(parser.finish())
    assert (message.reasoning, message.content, len(message.calls)) == ("Hm.", "", 1)


@pytest.mark.parametrize(
    ("form", "begun"),
    [
        ("Qwen3-Coder", "<function=read>\n<parameter=path> is how."),
        ("Step", "<function=read>"),
        ("Step", f"{CALL}"),
        ("Step", "Write <func"),
        ("Qwen3", JSON_CALL),
    ],
)
@pytest.mark.parametrize("after", ["END_THINK", "CALL"])
def test_text_about_calls_stays_in_front_of_a_tag(form: str, begun: str, after: str) -> None:
    """The text stays in the reasoning, or in the content if the reasoning is part of it."""
    call = JSON_CALL if form == "Qwen3" else CALL
    text = f"Hm.\n{begun}" + (f"{Mark.END_THINK}Yes" if after == "END_THINK" else "") + f"{C}\n{call}{END_C}"
    for start in (Start.REASONING, Start.CONTENT):
        for pieces in ([text], list(text)):
            parser, message = OutputParser(start, FORMS[form].reader(TOOLS), new_id=lambda: "c"), Message()
            for piece in pieces:
                message.take(parser.push(piece))
            message.take(parser.finish())
            shown = (message.reasoning, message.content)
            rest = "Yes" if after == "END_THINK" else ""
            kept = f"Hm.\n{begun}"
            if start is Start.REASONING:
                assert shown == (kept.rstrip("\n"), rest)
            else:
                assert shown[1].replace("\n", "") == f"{kept}{rest}".replace("\n", "")
            assert [json.loads(each.arguments) for each in message.calls] == [{"path": "a"}]


KIMI = f"{C}functions.f:0{Mark.SEPARATOR}{{}}{END_C}"


@pytest.mark.parametrize("name", ["tool_call_section", "tool_calls_section"])
@pytest.mark.parametrize("blank", ["", "\n"])
def test_a_spelled_tag_around_kimis_calls_is_no_content(name: str, blank: str) -> None:
    text = f"I look.<|{name}_begin|>{blank}{KIMI}{blank}{KIMI.replace(':0', ':1')}{blank}<|{name}_end|>"
    for pieces in ([text], list(text)):
        message = FORMS["Kimi"].read((), pieces)
        assert (message.content.strip(), [call.id for call in message.calls]) == (
            "I look.",
            ["functions.f:0", "functions.f:1"],
        )


@pytest.mark.parametrize(
    "text", ["a <|tool_call_section_begin|> b", "a <|tool_call", "a <", "<|tool_call_section_begin|>"]
)
def test_a_spelled_tag_without_a_call_stays(text: str) -> None:
    for pieces in ([text], list(text)):
        assert FORMS["Kimi"].read((), pieces).content == text


def test_words_after_kimis_calls_stay() -> None:
    for rest in ("done <", "done <|tool_x"):
        parser, message = OutputParser(Start.CONTENT, SeparatedCalls, new_id=lambda: "c"), Message()
        for piece in f"{KIMI}{rest}":
            message.take(parser.push(piece))
        message.take(parser.finish())
        assert (message.content, len(message.calls)) == (rest, 1)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("Qwen3-Coder", f"{C}\n<func"),
        ("Qwen3-Coder", f"{C}\n<function=re"),
        ("Qwen3", f'{C}\n{{"name": "re'),
        ("GLM", f"{C}re"),
        ("Hunyuan 3", f"{Mark.CALLS}\n{C}re"),
        ("MiniMax-M2", f"{C}\n<inv"),
        ("MiniMax-M2", f'{C}\n<invoke name="re'),
        ("MiMo-V2", f"{C}\n<function=re"),
        ("Mistral", f"{C}re"),
        ("Mistral", f"{C}read{Mark.SEPARATOR}"),
        ("Kimi", f"{Mark.CALLS}{C}functions.re"),
        ("DeepSeek V3", f"{Mark.CALLS}{C}function{Mark.SEPARATOR}re"),
        ("DeepSeek V3.1", f"{Mark.CALLS}{C}re"),
        ("DeepSeek V3.2", f'\n\n<{Mark.TAG}function_calls>\n<{Mark.TAG}invoke name="re'),
    ],
)
def test_a_call_truncated_within_its_name_is_not_shown(form: str, text: str) -> None:
    message = FORMS[form].read(TOOLS, [f"hm{text}"], is_cut=True)
    assert (message.content.strip(), message.calls) == ("hm", [])


def test_a_call_that_the_token_limit_cuts_does_not_look_complete() -> None:
    begun = f"{C}\n<function=read>\n{tag('path', 'a')}"
    for text in (begun, f"{begun}<param", f"{begun}<parameter=end_line>"):
        (call,) = CODER.read(TOOLS, [text], is_cut=True).calls
        assert call.arguments.startswith('{"path": "a"')
        with pytest.raises(ValueError, match=r"delimiter|value"):
            json.loads(call.arguments)
