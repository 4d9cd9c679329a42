"""Grammar and parser of each tool call form agree: a call that the grammar allows is parsed to the same call, in one
chunk, in many, and truncated anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ballast.families.marks import Mark
from ballast.families.registry import RELEASES, source_of
from ballast.text.calls.dsml_calls import BLOCKS
from ballast.text.chat_template import ChatTemplate
from devkit.long import times
from devkit.models.call_forms import FORMS, tool

STRING = {"type": "string"}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": STRING,
        "start": {"type": "integer"},
        "note": {"anyOf": [STRING, {"type": "null"}]},
        "unit": {"enum": ["c", "f", None]},
        "tree": {"$ref": "#/$defs/node"},
        "again": {"$ref": "#/properties/rows/items"},
        "sure": {"type": "boolean"},
        "rows": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    },
    "required": ["path", "sure"],
    "additionalProperties": False,
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"a": STRING, "b": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["a"],
            "additionalProperties": False,
        }
    },
}
MARKUP = (
    *("</parameter>", "\n</parameter>", "</parameter>\n", "<parameter=path>", "<parameter=zzz>", "</function>"),
    *("<tool_call>", "</tool_call>", "<function=f>", "<arg_key>", "</arg_value>", "</arg_key>", "<arg_value>"),
    *("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_begin|>", "<｜tool▁call▁end｜>"),
    *("</｜DSML｜parameter>", "</", "<", "```", "\n```", '"', "'", "\\", "{", "}", '{"a": 1}', "null", "12", "true"),
    *("\n", "\n\n", " ", "\t", "", "é", "👩‍🚀", "中", "a", "b"),
)
strings = st.lists(st.sampled_from(MARKUP), max_size=5).map("".join)
nodes = st.recursive(
    st.fixed_dictionaries({"a": strings}),
    lambda inner: st.fixed_dictionaries({"a": strings, "b": st.lists(inner, max_size=2)}),
    max_leaves=3,
)
rows = st.lists(st.integers(-3, 10**9), max_size=3)
values = st.fixed_dictionaries(
    {"path": strings, "sure": st.booleans()},
    optional={
        "start": st.integers(-5, 10**6),
        "note": st.none() | strings,
        "unit": st.sampled_from(["c", "f", None]),
        "tree": nodes,
        "again": rows,
        "rows": st.lists(rows, max_size=2),
    },
).flatmap(lambda drawn: st.permutations(sorted(drawn)).map(lambda keys: {key: drawn[key] for key in keys}))


def can_be_written(form: str, call: dict[str, Any]) -> bool:
    """Whether the form can represent all values. Bare text cannot distinguish null from "null". Values of Qwen3-Coder
    and Step end at a closing tag on its own line, or at a tag that opens an argument that the call does not have yet;
    values of MiniMax-M2 and MiMo-V2 end at a closing tag before another tag."""
    is_bare = FORMS[form].style in ("keyed", "tagged", "invoke", "function")
    if is_bare and isinstance(call.get("note"), str) and call["note"].strip() == "null":
        return False
    bare = [value for value in call.values() if isinstance(value, str)]
    if form in ("MiniMax-M2", "MiMo-V2") and any(re.search(r"</parameter>\s*(<|\Z)", text) for text in bare):
        return False
    ends = ("\n</parameter>\n", "\n<parameter=path>", "</parameter><parameter=path>")
    is_next = any("<parameter=path>" in json.dumps(value) for value in call.values())
    return form not in ("Qwen3-Coder", "Step") or not (
        is_next or any(end in f"{text}\n" for text in bare for end in ends)
    )


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=times(12, 40), deadline=None)
@given(call=values, strict=st.booleans())
def test_a_call_with_keys_in_any_order_is_allowed_and_read(form: str, call: dict[str, Any], strict: bool) -> None:
    assume(can_be_written(form, call))
    one, tools = FORMS[form], tool(PARAMETERS, strict=strict)
    text = one.write("f", call)
    assert one.refused_at(tools, text) is None
    message = one.read(tools, [text])
    assert (message.content, [each.name for each in message.calls]) == ("", ["f"])
    assert list(json.loads(message.calls[0].arguments).items()) == list(call.items())
    assert one.read(tools, list(text)) == message


TEMPLATES = {
    **dict.fromkeys(("qwen3-coder", "qwen3-coder-next", "qwen3.5", "qwen3.6", "qwen3.8"), "Qwen3-Coder"),
    **dict.fromkeys(("qwen3", "qwen3-next-instruct"), "Qwen3"),
    "mimo-v2.5": "MiMo-V2",
    "glm-4.7": "GLM",  # GLM-5.3-Flash writes calls in the same form
    "deepseek-v4": "DeepSeek V4",
}
"""Templates that write calls as text, and the form of their calls."""
CALLS = {"deepseek-v4": ("\n\n<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")}
"""The text before and after the calls of a message, for templates in which single tokens do not mark them."""


def rendered(name: str, calls: Sequence[dict[str, Any]]) -> str:
    """A message with calls of `f` as rendered by a template, with marks instead of tokens."""
    family, release = RELEASES[name]
    template = ChatTemplate(source_of(release), bos_token="", eos_token="", release=release)
    requested = [
        {"id": str(n), "type": "function", "function": {"name": "f", "arguments": json.dumps(each)}}
        for n, each in enumerate(calls)
    ]
    chat = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "", "tool_calls": requested}]
    text = template.render(chat, add_generation_prompt=False)
    begin, end = CALLS.get(name, ("<tool_call>", "</tool_call>"))
    pattern = "|".join(re.escape(spelling) for spelling in family.reply.calling.values())
    marks = {spelling: str(mark) for mark, spelling in family.reply.calling.items()}
    return re.sub(pattern, lambda found: marks[found[0]], text[text.index(begin) : text.rindex(end) + len(end)])


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=times(8, 40), deadline=None)
@given(calls=st.lists(values, min_size=1, max_size=2))
def test_calls_that_a_template_writes_are_read_as_the_same_at_every_split(
    name: str, calls: list[dict[str, Any]]
) -> None:
    """Bare values cannot distinguish null from text: this is a property of the form, not of the parser."""
    form, tools = TEMPLATES[name], tool(PARAMETERS)
    calls = [{key: value for key, value in each.items() if key not in ("note", "unit")} for each in calls]
    assume(all(can_be_written(form, each) for each in calls))
    spelled = RELEASES[name][0].reply.calling.values()
    assume(not any(spelling in json.dumps(calls, ensure_ascii=False) for spelling in spelled))
    one, text = FORMS[form], rendered(name, calls)
    message = one.read(tools, [text])
    assert [(each.name, json.loads(each.arguments)) for each in message.calls] == [("f", each) for each in calls]
    assert message.content == ""
    assert one.read(tools, list(text)) == message
    for cut in range(1, len(text)):
        assert one.read(tools, [text[:cut], text[cut:]]) == message


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=times(5, 10), deadline=None)
@given(call=values)
def test_a_call_truncated_anywhere_leaves_no_markup(form: str, call: dict[str, Any]) -> None:
    call = {key: value for key, value in call.items() if key not in ("note", "unit")}  # their text may become a string
    assume(can_be_written(form, call))
    one, tools = FORMS[form], tool(PARAMETERS)
    text = one.write("f", call)
    whole = one.read(tools, [text]).calls[0].arguments
    begin = 4 if one.style in BLOCKS else 0  # the text before it may be content
    for end in range(begin, len(text)):
        message = one.read(tools, [text[:end]], is_cut=True)
        assert message.content.strip() == "", text[:end]
        assert all(whole.startswith(cut.arguments) for cut in message.calls), text[:end]
        if end % 7 == 0:
            assert one.read(tools, list(text[:end]), is_cut=True) == message


MARKS = frozenset(map(str, Mark))
SNIPPETS = (
    *("\n</parameter>\n", "</parameter>", "\n<parameter=n>", "</parameter>\n<parameter=t>", "<parameter=t>\n"),
    *("<parameter=o>", "</function>", "</function>\n", "\n"),
    *("3", "null", '"', "{", "}", "]", '"n": ', '"t": ', ", ", "a"),
    *(f'{Mark.TAG}parameter name="t" string="true">', "</", *sorted(MARKS)),
)
CLOSING = (*sorted(MARKS), "\n</parameter>\n", "</function>", '"', "}", "]", "</", "3", "null")
SPOKEN = tool(
    {
        "type": "object",
        "properties": {
            "t": STRING,
            "n": {"type": "integer"},
            "o": {"anyOf": [{"type": "object", "properties": {"n": STRING, "t": STRING}}, {"type": "null"}]},
        },
        "required": ["n"],
        "additionalProperties": False,
    },
    strict=True,
)


def written(form: str, seed: int) -> str | None:
    """A random reply allowed by the grammar; None if it does not end."""
    one, rng, output = FORMS[form], np.random.default_rng(seed), ""
    state = one.start(SPOKEN, parallel=False)
    known = [each for each in SNIPPETS if MARKS.isdisjoint(each) or one.marks.keys() & set(each)]
    snippets = [(each, one.ids(each)) for each in known]
    closing = [way for each in CLOSING for way in snippets if way[0] == each]
    letters = {one.ids(letter)[0]: letter for letter in 'ab1{}[]"<>/:,=. \nfunctioparmetruesldg_|`jskvDML'}
    for step in range(300):
        allowed = one.allowed(state)
        if allowed[one.tokenizer.eos_id] and (step > 60 or rng.random() < 0.3):
            return output
        ways = [way for way in snippets if allowed[way[1][0]]] if rng.random() < 0.7 else []
        if step > 30:
            ways = [way for way in closing if allowed[way[1][0]]][:1]
        if not ways:
            ways = [(letters[token], [token]) for token in np.flatnonzero(allowed).tolist() if token in letters]
        if not ways:
            return None
        text, ids = ways[rng.integers(len(ways))]
        for letter, token in zip(text, ids, strict=True):
            if not one.allowed(state)[token]:
                break
            state.accept(token)
            output += letter
    return None


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=times(8, 25), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(seed=st.integers(0, 2**32))
def test_calls_that_the_grammar_allows_parse_to_valid_arguments(form: str, seed: int) -> None:
    text = written(form, seed)
    assume(text is not None)
    assert text is not None
    one, schema = FORMS[form], SPOKEN[0]["function"]["parameters"]
    message = one.read(SPOKEN, [text])
    assert (message.content.strip(), [call.name for call in message.calls]) == ("", ["f"]), text
    arguments = json.loads(message.calls[0].arguments)
    assert jsonschema_rs.is_valid(schema, arguments), (text, arguments)
    assert one.read(SPOKEN, list(text)) == message
