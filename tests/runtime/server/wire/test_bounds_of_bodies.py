"""Limits on request bodies that are checked before objects are built: while a body is built and validated, no other
thread runs, including the event loop's."""

import json

import orjson
import pytest
from pydantic import ValidationError

from ballast.errors import ContextLengthError, RequestError
from ballast.grammar import source
from ballast.server.routes.tokens import DetokenizeRequest, TokenizeRequest
from ballast.wire import parsing
from ballast.wire.anthropic.request import MessagesRequest, parse_messages
from ballast.wire.ignored_fields import MAX_NAMED, IgnoredFields
from ballast.wire.openai.request import ChatCompletionRequest, CompletionRequest, parse_body
from ballast.wire.parsing import MAX_ITEMS, MAX_NODES, MAX_TURNS, parse_json
from ballast.wire.responses.request import ResponsesRequest, parse_responses

CONTEXT = 262_144
MESSAGE = {"role": "user", "content": "a"}


def chat(**fields):
    return parse_body(
        ChatCompletionRequest, json.dumps({"messages": [MESSAGE]} | fields).encode(), CONTEXT, IgnoredFields()
    )


@pytest.mark.parametrize("node", ["[]", "{}", '{"a":1}', '[["x"]]'])
def test_a_body_has_a_bounded_number_of_objects_arrays_and_fields(node):
    each = sum(map(node.count, "[{:"))
    most = (MAX_NODES - 3) // each
    parse_json(('{"a":[' + ",".join([node] * most) + "]}").encode())
    with pytest.raises(RequestError, match=f"the body has more than {MAX_NODES} objects, arrays and fields"):
        parse_json(('{"a":[' + ",".join([node] * (most + 1)) + "]}").encode())


def test_a_body_has_a_bounded_number_of_items():
    parse_json(b'{"prompt":[' + b",".join([b"5"] * MAX_ITEMS) + b"]}")
    with pytest.raises(RequestError, match=f"the body has more than {MAX_ITEMS} items"):
        parse_json(b'{"prompt":[' + b",".join([b"5"] * (MAX_ITEMS + 2)) + b"]}")
    assert parse_json(orjson.dumps({"prompt": "," * 2 * MAX_ITEMS}))["prompt"][-1] == ","


def test_a_body_with_too_many_is_refused_before_it_is_built(monkeypatch):
    monkeypatch.setattr(parsing.orjson, "loads", lambda _: pytest.fail("it was built"))
    properties = {f"p{n}": {"type": "string"} for n in range(MAX_NODES)}
    for body in ({"messages": [MESSAGE] * 100_000}, {"response_format": {"json_schema": {"schema": properties}}}):
        with pytest.raises(RequestError, match="the body has more than"):
            parse_json(json.dumps(body).encode())


@pytest.mark.parametrize("text", ["{" * 2 * MAX_NODES, '\\"[:' * MAX_NODES, "\\\\" * 9 + '"' + ":" * 2 * MAX_NODES])
def test_brackets_inside_strings_do_not_count(text):
    assert parse_json(orjson.dumps({"prompt": text, ":": text})) == {"prompt": text, ":": text}


PARTS = [{"type": "text", "text": ""}] * 10
CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}] * 10


@pytest.mark.parametrize(
    "turn", [MESSAGE, 1, {"role": "user", "content": PARTS}, {"role": "assistant", "tool_calls": CALLS}]
)
def test_a_conversation_has_a_limited_length_for_any_context(turn):
    num_turns = MAX_TURNS // (11 if isinstance(turn, dict) and turn != MESSAGE else 1)
    fitting, longer = ([turn] * number for number in (num_turns, num_turns + 1))
    for name, parse in (
        ("messages", lambda data: parse_body(ChatCompletionRequest, data, CONTEXT, IgnoredFields())),
        ("messages", lambda data: parse_messages(data, CONTEXT, IgnoredFields())),
        ("input", lambda data: parse_responses(data, CONTEXT, IgnoredFields())),
    ):
        with pytest.raises(
            RequestError, match=f"{name}: has more than {MAX_TURNS} messages, parts and calls"
        ) as refused:
            parse(json.dumps({"model": "m", name: longer}).encode())
        assert refused.value.param == name
        if turn != 1:
            parse(json.dumps({"model": "m", name: fitting}).encode())
    with pytest.raises(ContextLengthError):
        parse_body(ChatCompletionRequest, json.dumps({"messages": longer}).encode(), 100, IgnoredFields())


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (ChatCompletionRequest, "messages"),
        (ChatCompletionRequest, "tools"),
        (ChatCompletionRequest, "stop"),
        (ChatCompletionRequest, "stop_token_ids"),
        (ChatCompletionRequest, "structured_outputs.choice"),
        (ChatCompletionRequest, "tool_choice.allowed_tools.tools"),
        (CompletionRequest, "prompt"),
        (MessagesRequest, "messages"),
        (MessagesRequest, "system"),
        (MessagesRequest, "stop_sequences"),
        (MessagesRequest, "tools"),
        (ResponsesRequest, "input"),
        (ResponsesRequest, "tools"),
        (ResponsesRequest, "include"),
        (TokenizeRequest, "messages"),
        (TokenizeRequest, "tools"),
        (DetokenizeRequest, "tokens"),
    ],
)
def test_a_list_is_checked_up_to_its_first_wrong_item(kind, path):
    """A list of errors costs ten times as much as the list."""
    *outer, name = path.split(".")
    value = {name: [None] * 1000}
    for field in reversed(outer):
        value = {field: {"type": "allowed_tools", "mode": "auto", **value}}
    if outer[:1] == ["structured_outputs"]:
        value = {"structured_outputs": {name: [None] * 1000}}
    with pytest.raises(ValidationError) as refused:
        kind.model_validate(value)
    of_field = [problem for problem in refused.value.errors() if name in problem["loc"]]
    assert 1 <= len(of_field) <= 2, "one error, or one per type that the field may have"


def test_any_number_of_unknown_fields_is_ignored_and_counted():
    many = {f"x{n}": 1 for n in range(10_000)}
    schema = {"name": "x", "schema": {"type": "object"}}
    ignored = IgnoredFields()
    data = {
        "messages": [MESSAGE],
        "temperature": 0.5,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    plain = parse_body(ChatCompletionRequest, json.dumps(data).encode(), CONTEXT, IgnoredFields())
    data |= many
    data["response_format"]["json_schema"] |= many
    assert parse_body(ChatCompletionRequest, json.dumps(data).encode(), CONTEXT, ignored) == plain
    assert (len(ignored.names), ignored.count) == (MAX_NAMED, 20_000)
    with pytest.raises(RequestError, match=r"x0: this server does not know this field; leave it out"):
        parse_body(ChatCompletionRequest, json.dumps(data).encode(), CONTEXT, IgnoredFields(refuse_unknown=True))
    with pytest.raises(ValidationError, match="has 10000 fields; an object may have at most 256"):
        ChatCompletionRequest.model_validate(many)


def test_maps_that_clients_fill_have_a_bounded_number_of_entries():
    many = {f"x{n}": 1 for n in range(10_000)}
    assert chat(chat_template_kwargs=many).chat_template_kwargs == many
    with pytest.raises(RequestError, match=r"^logit_bias: must have at most 1024 entries"):
        chat(logit_bias={str(n): "x" for n in range(10_000)})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"properties": {f"p{n}": {} for n in range(10_000)}}, "has 10000 properties; at most 1000 are allowed"),
        ({"enum": [1] * 1_000_000}, "lists 1000000 values; at most 5000 are allowed"),
        ({"examples": [1] * 1_000_000}, "has 2000000 bytes; at most 131072 are allowed"),
        ({"anyOf": [{"enum": [1] * 3000}] * 1000}, "lists 6000 values; at most 5000 are allowed"),
    ],
)
def test_a_schema_is_looked_at_until_it_is_too_large(schema, reason):
    with pytest.raises(RequestError, match=reason):
        source.json_schema(schema, "schema", strict=True)


def test_a_schema_given_as_text_has_the_limits_of_a_body():
    requested = chat(structured_outputs={"json": json.dumps({"enum": [[]] * MAX_NODES})}).structured_outputs
    with pytest.raises(RequestError, match=r"^structured_outputs.json: the schema has more than"):
        requested.source()
    requested = chat(structured_outputs={"choice": ["a" * 10_000, "b" * 10_000]}).structured_outputs
    with pytest.raises(RequestError, match=r"^structured_outputs.choice: the texts have more than 16384 characters"):
        requested.source()
