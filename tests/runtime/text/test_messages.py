"""All valid messages are passed to a template in one form."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from ballast.errors import RequestError
from ballast.text.messages import (
    has_late_instructions,
    normalize_messages,
    normalize_tools,
    with_late_instructions,
)
from ballast.text.think_tags import ThinkTags


def one(message: Mapping[str, Any]) -> dict[str, Any]:
    return normalize_messages([message])[0]


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_a_plain_message_stays_as_it_is(role: str) -> None:
    assert one({"role": role, "content": "x"}) == {"role": role, "content": "x"}


def test_a_developer_speaks_as_the_system() -> None:
    assert one({"role": "developer", "content": "x"}) == {"role": "system", "content": "x"}


def test_functions_of_the_older_api_are_tools() -> None:
    requested = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert one(requested) == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert one({"role": "function", "name": "f", "content": "2"}) == {"role": "tool", "name": "f", "content": "2"}
    with pytest.raises(RequestError, match=r"messages\.0\.function_call\.name must be a string"):
        one({"role": "assistant", "function_call": {}})


def requested_of(*ids: str) -> dict[str, Any]:
    calls = [{"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["b", "a"], ["a", "b"]),
        (["c", "a"], ["a", "c"]),
        (["b", "a", "b"], ["a", "b", "b"]),
        (["b", "elsewhere", "a"], ["b", "elsewhere", "a"]),
        (["b", None, "a"], ["b", None, "a"]),
    ],
)
def test_results_of_tools_are_in_the_order_of_their_calls(given: list[str | None], read: list[str | None]) -> None:
    results = [{"role": "tool", "tool_call_id": each, "content": f"{n}"} for n, each in enumerate(given)]
    user = {"role": "user", "content": "x"}
    chat = normalize_messages([user, requested_of("z"), user, requested_of("a", "b", "c"), *results, user, *results])
    first, second = chat[4 : 4 + len(given)], chat[5 + len(given) :]
    assert [result.get("tool_call_id") for result in first] == read
    assert [result.get("tool_call_id") for result in second] == given  # no calls directly before these
    assert chat[3]["tool_calls"] == requested_of("a", "b", "c")["tool_calls"]


def test_text_parts_become_lines() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "text", "text": "c"}]
    assert one({"role": "user", "content": parts})["content"] == "a\nb\nc"


@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant"}])
def test_no_content_is_empty_content(message: Mapping[str, Any]) -> None:
    assert one(message) == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("empty", [None, []])
def test_no_tool_calls_is_no_key(empty: object) -> None:
    assert "tool_calls" not in one({"role": "assistant", "content": "x", "tool_calls": empty})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"a": 1}', '{"a": 1}'), ({"a": "é"}, '{"a": "é"}'), (None, "{}"), ({}, "{}"), ("", "{}"), (" \n", "{}")],
)
def test_arguments_of_a_tool_call_are_a_string(arguments: object, expected: str) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    out = one({"role": "assistant", "content": "x", "tool_calls": [call]})
    assert out["tool_calls"] == [{"id": "c", "type": "function", "function": {"name": "f", "arguments": expected}}]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_of_earlier_turns_is_accepted_under_both_names(key: str) -> None:
    message = one({"role": "assistant", "content": "x", key: "hm"})
    assert message == {"role": "assistant", "content": "x", "reasoning_content": "hm"}


@pytest.mark.parametrize("divides_content", [False, True])
def test_reasoning_inside_the_content_is_divided_by_the_tags_of_the_family(divides_content: bool) -> None:
    tags = ThinkTags("<think:a>", "</think:a>")
    turn = [{"role": "assistant", "content": content} for content in ("<think:a>hm</think:a>So.", "<think:a>hm")]
    divided = normalize_messages(turn, divides_content=divides_content, tags=tags)
    assert [(message["reasoning_content"], message["content"]) for message in divided] == [("hm", "So."), ("hm", "")]


def test_the_callers_messages_are_not_touched() -> None:
    call = {"type": None, "function": {"name": "f", "arguments": {"a": [1]}}}
    messages = [{"role": "developer", "content": None, "tool_calls": [call], "name": None}]
    before = copy.deepcopy(messages)
    normalize_messages(messages)
    assert messages == before


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages.1.role"),
        ({"content": "x"}, "messages.1.role"),
        ({"role": "user", "content": 5}, "messages.1.content"),
        ({"role": "user", "content": {"type": "text", "text": "x"}}, "messages.1.content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages.1.content.0.type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.1.content.0.text"),
        ({"role": "user", "content": [7]}, "messages.1.content.0.type"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, "messages.1.content.0.type"),
        ({"role": "assistant", "content": [{"type": "refusal"}]}, "messages.1.content.0.refusal"),
        ({"role": "assistant", "content": [{"type": ["text"], "text": "x"}]}, "messages.1.content.0.type"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages.1.tool_calls.0.function.name"),
        ({"role": "assistant", "tool_calls": "f"}, "messages.1.tool_calls"),
        ({"role": "assistant", "tool_calls": 3}, "messages.1.tool_calls"),
    ],
)
def test_unusable_fields_are_rejected_by_path(message: Mapping[str, Any], param: str) -> None:
    with pytest.raises(RequestError, match=param.replace(".", r"\.")) as refused:
        normalize_messages([{"role": "user", "content": "x"}, message])
    assert (refused.value.status, refused.value.param) == (400, param)


def test_a_refusal_part_is_read_as_assistant_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "I cannot."}]
    assert one({"role": "assistant", "content": parts})["content"] == "a\nI cannot."


def test_no_messages_at_all_are_refused() -> None:
    with pytest.raises(RequestError, match="at least one message"):
        normalize_messages([])


def test_late_instructions_are_merged_into_the_adjacent_user_turn() -> None:
    def turn(role: str, content: str) -> dict[str, Any]:
        return {"role": role, "content": content}

    def mark(text: str) -> str:
        return f"<system-reminder>\n{text}\n</system-reminder>"

    chat = [
        *(
            turn("system", "S1"),
            turn("system", "S2"),
            turn("user", "U1"),
            turn("system", "L1"),
            turn("assistant", "A1"),
        ),
        *(
            turn("tool", "R1"),
            turn("system", "L2"),
            turn("tool", "R2"),
            turn("assistant", "A2"),
            turn("system", " "),
        ),
        *(
            turn("user", "U2"),
            turn("user", "U3"),
            turn("assistant", "A3"),
            turn("system", mark("L3")),
        ),
    ]
    assert has_late_instructions(chat)
    assert not has_late_instructions(chat[:3])
    assert with_late_instructions(chat) == [
        *(
            turn("system", "S1"),
            turn("system", "S2"),
            turn("user", f"U1\n\n{mark('L1')}"),
            turn("assistant", "A1"),
        ),
        *(
            turn("tool", "R1"),
            turn("tool", "R2"),
            turn("user", mark("L2")),
            turn("assistant", "A2"),
        ),
        *(
            turn("user", "U2"),
            turn("user", "U3"),
            turn("assistant", "A3"),
            turn("user", mark("L3")),
        ),
    ]
    assert chat[2] == turn("user", "U1"), "the input messages must not change"


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        OBJECT,
        {"type": ["null", "object"]},
        {"type": None, "properties": {}},
        {"properties": {}},
        {"anyOf": [OBJECT, {"type": "null"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": OBJECT}},
        {"$ref": "#"},
        {"enum": [{"a": "x"}]},
        {"$ref": "#/$defs/none"},
    ],
    ids=str,
)
def test_a_schema_that_allows_an_object_is_passed_on(parameters: dict[str, Any]) -> None:
    assert normalize_tools([tool(parameters=parameters)]) == [tool(parameters=parameters)]


def test_a_tool_needs_no_schema() -> None:
    assert normalize_tools([tool(parameters=None)]) == [tool()]
    assert normalize_tools([tool(parameters=True)]) == [tool(parameters={})]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"type": "string"}, r"\.type is 'string'; arguments are an object, so the type must be 'object'"),
        ({"type": "banana"}, r"\.type is 'banana'"),
        ({"type": ["string", "null"]}, r"\.type is \['string', 'null'\]"),
        ({"type": {"type": "object"}}, r"\.type is {"),
        ({"type": "x" * 1000}, r"\.type is 'x{,80}…; arguments"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "number"}}}, " refers to a schema of type 'number'"),
        ({"anyOf": [{"type": "string"}]}, " allows values of type string only; arguments are an object"),
        ({"allOf": [{"type": "string"}]}, " allows values of type string only"),
        ({"enum": ["a", None]}, " allows values of type null and string only"),
        ({"const": 5}, " allows values of type integer and number only"),
    ],
    ids=["string", "unknown type", "types", "object", "long", "reference", "anyOf", "allOf", "enum", "const"],
)
def test_a_schema_of_another_type_is_refused_by_name(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=rf"^tools\.1\.function\.parameters{message}") as refused:
        normalize_tools([{"type": "function", "function": {"name": "g"}}, tool(parameters=parameters)])
    assert refused.value.message.startswith(f"{refused.value.param} ")
