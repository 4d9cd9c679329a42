"""Undeclared request fields are ignored and reported, have no effect, or are rejected by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast.errors import RequestError
from ballast.server.routes.tokens import DetokenizeRequest, TokenizeRequest
from ballast.wire.anthropic.request import MessagesRequest, parse_messages
from ballast.wire.field_rules import Alias, NoEffect, Refused
from ballast.wire.ignored_fields import MAX_NAME_CHARS, MAX_NAMED, IgnoredFields
from ballast.wire.ignored_log import INTERVAL_S, IgnoredFieldsLog
from ballast.wire.known_fields import read_fields, shape_of
from ballast.wire.openai.request import ChatCompletionRequest, CompletionRequest, parse_body
from ballast.wire.responses.request import ResponsesRequest, parse_responses

USER = {"role": "user", "content": "hi"}
FUNCTION = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
# Fields that OpenAI's Node client adds to replies and sends back with them.
CALLED = {"name": "f", "arguments": "{}", "parsed_arguments": None}
PARSED_CALL = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": CALLED}]}
PARSED_TEXT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "", "parsed": None}]}
BODIES = {
    ChatCompletionRequest: {"messages": [USER]},
    CompletionRequest: {"prompt": "hi"},
    MessagesRequest: {"model": "m", "messages": [USER]},
    ResponsesRequest: {"input": "hi"},
}


def parsed(kind, ignored, **fields):
    data = json.dumps(BODIES[kind] | fields).encode()
    if kind is MessagesRequest:
        return parse_messages(data, 100, ignored)
    if kind is ResponsesRequest:
        return parse_responses(data, 100, ignored)
    return parse_body(kind, data, 100, ignored)


@pytest.mark.parametrize(
    ("kind", "fields", "names"),
    [
        (ChatCompletionRequest, {"magic": 1}, ["magic"]),
        (CompletionRequest, {"magic": None}, ["magic"]),
        (CompletionRequest, {"structured_outputs": {"regex": "a", "x": 1}}, ["structured_outputs.x"]),
        (ChatCompletionRequest, {"stream": True, "stream_options": {"x": 1}}, ["stream_options.x"]),
        (ChatCompletionRequest, {"response_format": {**SCHEMA, "x": 1}}, ["response_format.x"]),
        (
            ChatCompletionRequest,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "y": {"z": 1}}}},
            ["response_format.json_schema.y"],
        ),
        (ChatCompletionRequest, {"tools": [FUNCTION, FUNCTION | {"x": 1}]}, ["tools.1.x"]),
        (
            ChatCompletionRequest,
            {"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]},
            ["tools.0.function.x"],
        ),
        (
            ChatCompletionRequest,
            {"messages": [USER, USER | {"x": 1}, USER | {"x": 2, "y": 3}]},
            ["messages.1.x", "messages.2.y"],
        ),
        (
            ChatCompletionRequest,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]},
            ["messages.0.content.0.x"],
        ),
        (ChatCompletionRequest, {"tool_choice": "auto", "thinking": {"type": "enabled", "x": 1}}, ["thinking.x"]),
        (ChatCompletionRequest, {"chat_template_kwargs": {"x": 1}, "logit_bias": {}}, []),
        (MessagesRequest, {"thread": {}, "context_management": {"edits": []}}, ["thread"]),
        (MessagesRequest, {"thinking": {"type": "adaptive", "x": 1}}, ["thinking.x"]),
        (MessagesRequest, {"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}, []),
        (MessagesRequest, {"tools": [{"name": "f", "input_schema": {"x": 1}, "x": 1}]}, ["tools.0.x"]),
        (ChatCompletionRequest, {"messages": [{"role": "assistant", "content": "{}", "parsed": {}}, PARSED_CALL]}, []),
        (
            ResponsesRequest,
            {"input": [PARSED_TEXT, {"type": "function_call", "name": "f", "parsed_arguments": {}}]},
            [],
        ),
        (ResponsesRequest, {"client_metadata": {}, "x": 1}, ["x"]),
        (ResponsesRequest, {"input": [{"type": "message", "role": "user", "content": "a", "x": 1}]}, ["input.0.x"]),
        (ResponsesRequest, {"text": {"format": {"type": "text", "x": 1}, "y": 1}}, ["text.format.x", "text.y"]),
    ],
)
def test_unknown_fields_are_reported_or_rejected_by_their_path(kind, fields, names):
    ignored = IgnoredFields()
    parsed(kind, ignored, **fields)
    assert (sorted(ignored.names), ignored.count, bool(ignored)) == (sorted(names), len(names), bool(names))
    if names:
        with pytest.raises(RequestError, match="this server does not know this field") as refused:
            parsed(kind, IgnoredFields(refuse_unknown=True), **fields)
        assert refused.value.param in names


def test_ignored_fields_change_nothing():
    with_more = parsed(ChatCompletionRequest, IgnoredFields(), magic=1, messages=[USER | {"magic": {"a": 1}}])
    assert with_more == parsed(ChatCompletionRequest, IgnoredFields())
    assert with_more.messages == [USER], "a template would read additional fields"


RULES = [
    (kind, name, rule)
    for kind in (ChatCompletionRequest, CompletionRequest, MessagesRequest, ResponsesRequest)
    for name, rule in kind.other_fields.items()
    if not isinstance(rule, Alias)
]
ALIASES = [
    (kind, name, rule.field) for kind in BODIES for name, rule in kind.other_fields.items() if isinstance(rule, Alias)
]


@pytest.mark.parametrize(("kind", "name", "rule"), RULES, ids=lambda each: getattr(each, "__name__", None))
def test_each_rule_is_kept(kind, name, rule):
    plain = parsed(kind, IgnoredFields())
    harmless = (None, *rule.harmless) if isinstance(rule, Refused) else (None, 5, "x", {"a": 1}, [])
    for value in harmless:
        ignored = IgnoredFields(refuse_unknown=True)
        assert parsed(kind, ignored, **{name: value}) == plain
        assert not ignored
    if isinstance(rule, Refused):
        with pytest.raises(RequestError) as refused:
            parsed(kind, IgnoredFields(), **{name: {"made": "up"}})
        assert (refused.value.status, refused.value.param) == (400, name)
        assert refused.value.message.startswith(f"{name}: {rule.why}; leave it out or send ")


def outcome(kind, name, value):
    """The parsed body, or the field that is rejected."""
    try:
        return parsed(kind, IgnoredFields(), **{name: value})
    except RequestError as refused:
        return refused.param


@pytest.mark.parametrize(("kind", "name", "field"), ALIASES)
def test_an_alias_is_read_as_the_field_and_rejected_under_its_own_name(kind, name, field):
    for value in (2, "a", True):
        reported = [outcome(kind, each, value) for each in (name, field)]
        assert reported[0] == (reported[1].replace(field, name) if isinstance(reported[1], str) else reported[1])
    with pytest.raises(RequestError, match=f"{name}: differs from {field}"):
        parsed(kind, IgnoredFields(), **{name: 2, field: 3})


@pytest.mark.parametrize("kind", [*BODIES, TokenizeRequest, DetokenizeRequest])
def test_no_field_is_both_honoured_and_ruled_out(kind):
    def shapes(shape):
        yield shape
        for inner in shape.known.values():
            if inner is not None:
                yield from shapes(inner)

    for shape in shapes(shape_of(kind)):
        assert not shape.known.keys() & shape.rules.keys()


def test_true_is_not_one():
    assert Refused("", (1,)).objection(True)
    assert Refused("", (False,)).objection(0)


@given(st.dictionaries(st.text(), st.integers(), min_size=1, max_size=40))
def test_reported_field_names_are_safe_and_limited_for_any_input(fields):
    ignored = IgnoredFields()
    more = {f"{name}x": value for name, value in fields.items()}
    read_fields(CompletionRequest, {"prompt": "a", **more}, ignored)
    assert len(ignored.names) <= MAX_NAMED
    assert len(ignored.names) <= ignored.count <= len(fields)
    assert len(str(ignored)) <= MAX_NAMED * (MAX_NAME_CHARS + 2) + 20
    assert set(str(ignored)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-?, ")


def test_names_beyond_the_bound_are_counted():
    ignored = IgnoredFields()
    for n in range(MAX_NAMED + 3):
        ignored.add(f"field{n}")
    assert str(ignored).endswith(f"field{MAX_NAMED - 1}, 3 more")


def test_ignored_fields_are_logged_once_per_minute(caplog):
    now = 0.0
    log = IgnoredFieldsLog(lambda: now)
    for name, at in (("a", 0.0), ("b", 1.0), ("c", INTERVAL_S - 1), ("d", INTERVAL_S)):
        now = at
        ignored = IgnoredFields()
        ignored.add(name)
        log.note(ignored)
    assert [(each.fields, each.requests) for each in caplog.records] == [("a", 1), ("b, c, d", 3)]


def test_every_rule_has_a_reason():
    for _, _, rule in RULES:
        assert isinstance(rule, NoEffect | Refused)
        assert rule.why[0].islower() or rule.why.startswith(("JSON", "vLLM"))
        assert not rule.why.endswith(".")
