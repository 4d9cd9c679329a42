"""Grammars: masks allow only text that matches the grammar; a grammar that cannot be enforced is rejected."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast.awake_clock import AwakeClock
from ballast.engine.sampling.constraint import ConstraintState
from ballast.errors import CapacityError, RequestError
from ballast.families.marks import Mark
from ballast.families.registry import DEFAULT_FORM, FAMILIES
from ballast.grammar import compiler as compiler_module
from ballast.grammar import source
from ballast.grammar.calls.lazy_tool_grammar import LazyToolGrammar, trigger_tokens
from ballast.grammar.calls.tools import tool_calls
from ballast.grammar.compiler import GrammarCompiler
from ballast.grammar.constraint import Grammar, ReasoningPrefix
from ballast.grammar.reasoning_prefix import constrained_start
from ballast.grammar.source import Source
from ballast.text.gguf_vocab import build_backend
from ballast.text.marks import Start
from ballast.text.tokenizer import Tokenizer
from devkit.long import times
from devkit.models.vocabulary import byte_metadata, byte_tokenizer

EOS = 1
MARKS = tuple(DEFAULT_FORM.spellings[mark] for mark in sorted(DEFAULT_FORM.spellings))
TOKENIZER = byte_tokenizer(
    merges=[(b'"', b":"), (b"a", b"g"), ("中".encode()[:1], "中".encode()[1:2]), (b"}", b"\n")], user_defined=MARKS
)
COMPILER = GrammarCompiler(TOKENIZER)


def allowed_by(state: ConstraintState) -> np.ndarray:
    """[vocabulary] bool."""
    mask = state.allowed()
    assert mask is not None
    return np.unpackbits(mask, count=TOKENIZER.vocab_size, bitorder="little").view(np.bool_)


def speak(grammar: Grammar, seed: int, max_tokens: int = 600) -> tuple[str, bool]:
    """Random text allowed by the grammar, and whether it ended. After 40 tokens it prefers tokens that close open
    constructs."""
    rng, state, ids = np.random.default_rng(seed), grammar.start(), []
    closing = {TOKENIZER.encode(char)[0]: rank for rank, char in enumerate('"}]0')}
    for n in range(max_tokens):
        allowed = np.flatnonzero(allowed_by(state))
        closers = [token for token in allowed.tolist() if token in closing or token == EOS]
        closes = n > 40 and closers
        token = min(closers, key=lambda each: closing.get(each, -1)) if closes else int(rng.choice(allowed))
        if token == EOS:
            return TOKENIZER.decode(ids, skip_control=False), True
        state.accept(token)
        ids.append(token)
    return TOKENIZER.decode(ids, skip_control=False), False


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 3, None]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def is_person(value: Any) -> bool:
    return (
        {"name", "age"} <= value.keys() <= {"name", "age", "tags"}
        and isinstance(value["name"], str)
        and len(value["name"]) <= 8
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and len(value.get("tags", [])) <= 3
        and all(tag in ("a", "b", 3, None) for tag in value.get("tags", []))
    )


@settings(deadline=None, max_examples=times(20, 60))
@given(st.integers(0, 2**32))
def test_a_completed_reply_matches_its_schema(seed: int) -> None:
    text, ended = speak(COMPILER.compile(source.json_schema(PERSON, "p", strict=True)), seed)
    assert ended
    assert is_person(json.loads(text))


@settings(deadline=None, max_examples=times(15, 40))
@given(st.integers(0, 2**32))
def test_a_completed_reply_is_a_json_object(seed: int) -> None:
    text, ended = speak(COMPILER.compile(source.json_object("p")), seed)
    if ended:
        assert isinstance(json.loads(text), dict)


def test_one_of_several_texts_and_a_pattern() -> None:
    texts = ["yes", 'no "quotes"', "new\nline", "中"]
    grammar = COMPILER.compile(source.choice(texts, "p"))
    assert {speak(grammar, seed)[0] for seed in range(60)} == set(texts)
    grammar = COMPILER.compile(source.regex(r"[a-c]{3}-[0-9]{1,5}", "p"))
    assert all(re.fullmatch(r"[a-c]{3}-[0-9]{1,5}", speak(grammar, seed)[0]) for seed in range(20))


TOOLS = [
    {"type": "function", "function": {"name": "get_age", "parameters": PERSON, "strict": True}},
    {"type": "function", "function": {"name": "now"}},
]


@pytest.mark.parametrize("form", ["fenced", "plain"])
@pytest.mark.parametrize("seed", range(5))
def test_a_forced_call_has_the_templates_form_and_valid_arguments(form: Any, seed: int) -> None:
    requested = tool_calls(TOOLS, TOKENIZER, form, only={"get_age"}, parallel=False)
    text, ended = speak(COMPILER.compile(requested), seed)
    assert ended
    head, tail = {
        "fenced": ("function<｜tool▁sep｜>get_age\n```json\n", "\n```"),
        "plain": ("get_age<｜tool▁sep｜>", ""),
    }[form]
    before = f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{head}"
    after = f"{tail}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    assert text.startswith(before)
    assert text.endswith(after)
    assert is_person(json.loads(text[len(before) : len(text) - len(after)]))


def test_several_calls_of_any_tool_unless_only_one_is_allowed() -> None:
    names = set()
    for seed in range(30):
        text, _ = speak(COMPILER.compile(tool_calls(TOOLS, TOKENIZER, "plain")), seed)
        names |= set(re.findall(r"call▁begin｜>(\w+)<", text))
    assert names == {"get_age", "now"}
    with pytest.raises(RequestError, match="no tool is named 'later'"):
        tool_calls(TOOLS, TOKENIZER, "plain", only={"later"})
    with pytest.raises(RequestError, match="vocabulary has no"):
        tool_calls(TOOLS, byte_tokenizer(), "plain")


def test_a_reply_without_tool_calls_follows_the_response_format() -> None:
    shape = source.embedded_schema(PERSON, "response_format", strict=True)
    grammar = COMPILER.compile(tool_calls(TOOLS, TOKENIZER, "plain", only={"get_age"}, parallel=False, or_else=shape))
    texts = [speak(grammar, seed)[0] for seed in range(20)]
    plain = [text for text in texts if not text.startswith("<")]
    assert 0 < len(plain) < len(texts)
    assert all(is_person(json.loads(text)) for text in plain)


BLANKS = [token for blank in " \n\t\r" for token in TOKENIZER.encode(blank)]


@pytest.mark.parametrize(
    ("requested", "head"),
    [
        (source.json_object("p"), ""),
        (source.json_schema(PERSON, "p", strict=True), ""),
        (tool_calls(TOOLS, TOKENIZER, "plain"), "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_age<｜tool▁sep｜>"),
    ],
)
def test_consecutive_blanks_are_limited_everywhere(requested: Source, head: str) -> None:
    state = COMPILER.compile(requested).start()
    for token in TOKENIZER.encode(head):
        state.accept(token)
    for text in ("", "{", '"name"', ":", '"a"', ",", '"age"', ":", "1"):
        for token in TOKENIZER.encode(text):
            state.accept(token)
        count = 0
        while may := [token for token in BLANKS if allowed_by(state)[token]]:
            state.accept(may[count % len(may)])
            count += 1
            assert count <= 20
        assert count == (20 if text else 0)


def test_a_begun_call_is_of_a_declared_tool_and_ends_the_reply() -> None:
    calls = COMPILER.compile(tool_calls(TOOLS, TOKENIZER, "either", only={"now"}, parallel=False))
    begin, call = (TOKENIZER.id_of(DEFAULT_FORM.spellings[mark]) for mark in (Mark.CALLS, Mark.CALL))
    for opening in ([begin, call], [call]):
        state = LazyToolGrammar(calls, trigger_tokens(TOKENIZER)).start()
        for token in TOKENIZER.encode("now and get_age: "):
            assert state.allowed() is None
            state.accept(token)
        for token in opening:
            state.accept(token)
        assert set(np.flatnonzero(allowed_by(state))) == {TOKENIZER.encode(char)[0] for char in "nf"}
        for token in TOKENIZER.encode("now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"):
            assert allowed_by(state)[token]
            state.accept(token)
        assert set(np.flatnonzero(allowed_by(state))) == {EOS}


def test_the_maximum_number_of_tools_compiles_to_one_grammar() -> None:
    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "parameters": PERSON if n % 2 else None}}
        for n in range(1024)
    ]
    for any_arguments in (False, True):
        COMPILER.compile(tool_calls(tools, TOKENIZER, "either", any_arguments=any_arguments))


def test_added_tokens_are_never_used_for_their_spelling() -> None:
    """A string may contain the letters of a tag; the token would change the meaning of the reply."""
    state = COMPILER.compile(source.json_object("p")).start()
    for token in TOKENIZER.encode('{"x'):
        state.accept(token)
    allowed = allowed_by(state)
    assert allowed[TOKENIZER.encode("<")[0]]
    assert not allowed[sorted(TOKENIZER.added_ids | TOKENIZER.eos_ids)].any()


THINK, END_THINK = (TOKENIZER.id_of(DEFAULT_FORM.spellings[mark]) for mark in (Mark.THINK, Mark.END_THINK))


@pytest.mark.parametrize("begins", [True, False])
def test_a_grammar_begins_after_the_reasoning_which_must_end(begins: bool) -> None:
    prefix = ReasoningPrefix(END_THINK, None if begins else THINK, frozenset({EOS}))
    state = COMPILER.compile(source.json_object("p"), prefix).start()
    if not begins:
        assert set(np.flatnonzero(allowed_by(state))) == {THINK, *TOKENIZER.encode("{")}
        state.accept(THINK)
    for token in TOKENIZER.encode("hm, 中 {"):
        assert allowed_by(state)[token]
        assert not allowed_by(state)[EOS]
        state.accept(token)
    state.accept(END_THINK)
    assert set(np.flatnonzero(allowed_by(state))) == set(TOKENIZER.encode("{"))


@pytest.mark.parametrize(
    ("start", "requested", "held"),
    [
        (Start.EITHER, None, Start.CONTENT),
        (Start.EITHER, False, Start.CONTENT),
        (Start.EITHER, True, Start.EITHER),
        (Start.EITHER_REASONING, False, Start.CONTENT),
        (Start.EITHER_REASONING, None, Start.EITHER_REASONING),
        (Start.REASONING, False, Start.REASONING),
    ],
)
def test_reasoning_comes_first_if_prompt_model_or_request_enables_it(
    start: Start, requested: bool | None, held: Start
) -> None:
    assert constrained_start(start, requested) is held


def test_reasoning_that_does_not_begin_at_once_cannot_begin_later() -> None:
    state = COMPILER.compile(source.json_object("p"), ReasoningPrefix(END_THINK, THINK)).start()
    state.accept(TOKENIZER.encode("{")[0])
    assert not allowed_by(state)[THINK]


LEFT_OUT: dict[str, dict[str, Any]] = {
    "uniqueItems": {"uniqueItems": True},
    "contains": {"contains": {"const": 1}},
    "propertyNames": {"propertyNames": {"pattern": "^a"}},
    "not": {"not": {"required": ["b"]}},
}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        *(({"type": "object", **LEFT_OUT[name]}, f'"{name}"') for name in LEFT_OUT),
        ({"$ref": "https://example.com/schema"}, "example.com"),
        ({"$ref": "#"}, "refers only to itself$"),
        ({"type": "colour"}, "colour"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable"),
        ({"properties": {f"p{n}": {} for n in range(1001)}}, "1001 properties"),
        ({"enum": list(range(5001))}, "5001 values"),
        ({"const": "x" * (1 << 17)}, "bytes"),
        ({"type": "string", "pattern": "a" * 1025}, "1024 characters"),
        (nested(40), "nested deeper"),
    ],
)
def test_an_unenforceable_schema_is_rejected_with_its_field_and_the_reason(schema: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refusal:
        COMPILER.compile(source.json_schema(schema, "response_format.json_schema.schema", strict=True))
    assert refusal.value.param == "response_format.json_schema.schema"


@pytest.mark.parametrize("left_out", [{"unevaluatedProperties": False}, *LEFT_OUT.values()])
def test_a_schema_without_strict_is_enforced_as_far_as_possible(left_out: dict[str, Any]) -> None:
    schema = {"type": "object", **left_out, "properties": {"a": {"const": 1}}, "required": ["a"]}
    text, ended = speak(COMPILER.compile(source.json_schema(schema, "p", strict=False)), 3)
    assert ended
    assert json.loads(text)["a"] == 1


def test_a_model_without_an_end_token_cannot_be_constrained() -> None:
    metadata = byte_metadata()
    metadata["tokenizer.ggml.tokens"] = ["<begin>", "<end>", *metadata["tokenizer.ggml.tokens"][2:]]
    backend = build_backend(metadata, "bytes.gguf")
    endless = GrammarCompiler(Tokenizer(backend, bos_id=None, eos_ids=[], add_bos=False))
    with pytest.raises(RequestError, match="no end token"):
        endless.compile(source.json_object("response_format"))


def test_grammars_are_compiled_once_and_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "LOCK_WAIT_S", 0.05)
    compiler = GrammarCompiler(TOKENIZER)
    entered, release, built = threading.Event(), threading.Event(), []
    build = compiler._new_matcher

    def slow(requested: Source) -> Any:
        built.append(requested)
        entered.set()
        assert release.wait(20)
        return build(requested)

    monkeypatch.setattr(compiler, "_new_matcher", slow)
    first = threading.Thread(target=compiler.compile, args=(source.json_object("p"),))
    first.start()
    assert entered.wait(20)
    with pytest.raises(CapacityError, match="compiling other grammars"):
        compiler.compile(source.regex("a", "p"))
    release.set()
    first.join(20)
    compiler.compile(source.json_object("p"))
    assert len(built) == 1


def test_a_process_pause_does_not_reject_a_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "LOCK_WAIT_S", 0.2)
    compiler = GrammarCompiler(TOKENIZER)
    system_s = iter(range(0, 10**6, 3600))  # an hour passes between two clock reads
    monkeypatch.setattr(AwakeClock, "for_limit", lambda limit_s: AwakeClock(limit_s / 8, lambda: float(next(system_s))))
    compiler._lock.acquire()
    ends = threading.Timer(0.05, compiler._lock.release)
    ends.start()
    assert compiler.compile(source.json_object("p"))
    ends.join()


def test_a_forced_call_of_kimis_is_numbered() -> None:
    kimi = FAMILIES["kimi"]
    tokenizer = byte_tokenizer(user_defined=(*kimi.reply.spellings.values(), *kimi.vocabulary[1:]))
    style = kimi.reply.style_of("any template")
    state = GrammarCompiler(tokenizer).compile(tool_calls(TOOLS, tokenizer, style, only={"now"})).start()
    call = "<|tool_call_begin|>functions.now:12<|tool_call_argument_begin|>{}<|tool_call_end|>"
    for token in tokenizer.encode(f"<|tool_calls_section_begin|>{call}{call}<|tool_calls_section_end|>"):
        mask = state.allowed()
        assert np.unpackbits(mask, count=tokenizer.vocab_size, bitorder="little")[token]
        state.accept(token)


KEYED_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "unit": {"enum": ["c", "f"]},
                    "count": {"$ref": "#/$defs/count"},
                },
                "required": ["text", "count"],
                "$defs": {"count": {"type": "integer"}},
            },
        },
    }
]
GLM_START, GLM_END = "<tool_call>f", "</tool_call>"


def glm_pair(key: str, value: str) -> str:
    return f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"


def is_held(
    text: str,
    name: str = "glm",
    template: str = "",
    *,
    any_arguments: bool = False,
    tools: list[dict[str, Any]] = KEYED_TOOLS,
) -> bool:
    """Whether the family's grammar of a forced call allows each token of the text and may end after it."""
    family = FAMILIES[name]
    tokenizer = byte_tokenizer(user_defined=tuple({*family.reply.spellings.values(), *family.vocabulary}))
    assert tokenizer.reply is family.reply
    calls = tool_calls(tools, tokenizer, family.reply.style_of(template), any_arguments=any_arguments)
    state = GrammarCompiler(tokenizer).compile(calls).start()
    for token in (*tokenizer.encode(text), tokenizer.eos_id):
        if not np.unpackbits(state.allowed(), count=tokenizer.vocab_size, bitorder="little")[token]:
            return False
        state.accept(token)
    return True


def test_a_forced_call_of_glms_has_the_schemas_keys_and_values() -> None:
    text, count = glm_pair("text", 'a "<b>"\n中'), glm_pair("count", "12")
    assert is_held(f"{GLM_START}{text}{count}{GLM_END}")
    assert is_held(
        f"{GLM_START}\n{text}\n{glm_pair('unit', 'c')}\n{count}\n{GLM_END}\n{GLM_START}{text}{count}{GLM_END}"
    )
    assert not is_held(f"{GLM_START}{count}{GLM_END}")
    assert not is_held(f"{GLM_START}{text}{glm_pair('unit', 'k')}{count}{GLM_END}")
    assert not is_held(f"{GLM_START}{text}{glm_pair('count', 'three')}{GLM_END}")
    assert not is_held(f"<tool_call>g{text}{count}{GLM_END}")
    assert is_held(f"{GLM_START}{glm_pair('other', 'x')}{GLM_END}", any_arguments=True)


def qwen_tag(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


def dsml_tag(key: str, value: str, string: str = "true") -> str:
    return f'<｜DSML｜parameter name="{key}" string="{string}">{value}</｜DSML｜parameter>\n'


def dsml_calls(*pairs: str) -> str:
    each = [f'<｜DSML｜invoke name="f">\n{pair}</｜DSML｜invoke>' for pair in pairs]
    return "\n\n<｜DSML｜function_calls>\n" + "\n".join(each) + "\n</｜DSML｜function_calls>"


def holds(parameters: Any, pairs: dict[str, str], *, strict: bool = False) -> bool:
    """Whether each form without JSON around the call allows a call of f with these values. All forms must agree."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}}]
    keyed = f"{GLM_START}{''.join(glm_pair(*each) for each in pairs.items())}{GLM_END}"
    tagged = f"<tool_call>\n<function=f>\n{''.join(qwen_tag(*each) for each in pairs.items())}</function>\n</tool_call>"
    strings = {key: "false" if value == "null" else "true" for key, value in pairs.items()}
    dsml = dsml_calls("".join(dsml_tag(key, value, strings[key]) for key, value in pairs.items()))
    (held,) = {
        is_held(keyed, tools=tools),
        is_held(tagged, "qwen3", "<function=", tools=tools),
        is_held(dsml, "deepseek32", tools=tools),
    }
    return held


STRING = {"type": "string"}


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": STRING},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "properties": {"b": STRING}, "additionalProperties": {}},
        {"anyOf": [{"type": "object", "properties": {"a": STRING}}, {"type": "object", "properties": {"b": STRING}}]},
        {"$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "properties": {"a": STRING}}}},
        {"type": "object", "required": ["a"]},
    ],
)
def test_a_call_may_have_unlisted_arguments_if_the_schema_allows_them(parameters: Any) -> None:
    assert holds(parameters, {"a": "v"})
    assert holds(parameters, {"a": "v", "c": "w"})


def test_a_call_has_no_other_arguments_if_the_schema_forbids_them() -> None:
    assert holds({"type": "object", "properties": {}}, {})
    assert not holds({"type": "object", "properties": {}}, {"a": "v"})
    assert not holds({"type": "object", "additionalProperties": False}, {"a": "v"})
    assert not holds({"type": "object", "required": ["a"]}, {"c": "w"})
    open_schema = {"type": "object", "properties": {"b": STRING}, "additionalProperties": True}
    assert not holds(open_schema, {"a": "v"}, strict=True)


@pytest.mark.parametrize(
    "of_value",
    [
        {"type": ["string", "null"], "enum": ["c", None]},
        {"$ref": "#/$defs/unit"},
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_value_is_one_of_those_that_the_schema_lists(of_value: Any, *, strict: bool) -> None:
    parameters = {"properties": {"unit": of_value}, "$defs": {"unit": {"enum": ["c", None]}}}
    assert holds(parameters, {"unit": "c"}, strict=strict)
    assert holds(parameters, {"unit": "null"}, strict=strict)
    assert not holds(parameters, {"unit": "k"}, strict=strict)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"anyOf": [{"required": ["a"]}]}, r"parameters: anyOf cannot be enforced"),
        ({"additionalProperties": STRING}, r"parameters: additionalProperties cannot be enforced"),
        ({"properties": {}, "required": None}, r"parameters\.required must be a list"),
        ({"properties": []}, r"parameters\.properties must be an object"),
    ],
)
def test_a_strict_schema_with_unenforceable_arguments_is_rejected_by_name(parameters: Any, message: str) -> None:
    with pytest.raises(RequestError, match=rf"tools\.0\.function\.{message}"):
        holds(parameters, {}, strict=True)


def test_an_unenforceable_pattern_of_a_strict_tool_is_rejected_with_its_path() -> None:
    glm = FAMILIES["glm"]
    tokenizer = byte_tokenizer(user_defined=(*glm.reply.spellings.values(), *glm.vocabulary))
    schema = {"type": "object", "properties": {"day": {"type": "string", "pattern": "a(^b)"}}}
    function = {"name": "f", "strict": True, "parameters": schema}
    with pytest.raises(RequestError, match=r"tools\.0\.function\.parameters\.properties\.day: pattern of a value"):
        tool_calls([{"type": "function", "function": function}], tokenizer, "keyed")
    tool_calls([{"type": "function", "function": {**function, "strict": False}}], tokenizer, "keyed")


def test_a_family_without_an_opening_mark_is_constrained_from_the_first_call_mark() -> None:
    glm = FAMILIES["glm"]
    tokenizer = byte_tokenizer(user_defined=(*glm.reply.spellings.values(), *glm.vocabulary))
    call = tokenizer.id_of("<tool_call>")
    assert trigger_tokens(tokenizer) == {call: (call,)}


def test_a_forced_call_of_qwens_is_json_or_in_tags_as_its_template_says() -> None:
    arguments = '{"text": "a\\n", "count": 12}'
    call = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    assert is_held(f"{call}\n{call}", "qwen3")
    assert not is_held(call.replace('"count": 12', '"count": "b"'), "qwen3")
    assert not is_held(call, "qwen3", "<function=")

    tag = qwen_tag
    text, count = tag("text", 'a "<b>"\n</param>\n中'), tag("count", "12")
    for pairs in (text + count, text + tag("unit", "c") + count):
        tagged = f"<tool_call>\n<function=f>\n{pairs}</function>\n</tool_call>"
        assert is_held(f"{tagged}\n{tagged}", "qwen3", "<function=")
    for pairs in (count, text + tag("unit", "k") + count, text + tag("count", "three")):
        assert not is_held(f"<tool_call>\n<function=f>\n{pairs}</function>\n</tool_call>", "qwen3", "<function=")
    other = f"<tool_call>\n<function=f>\n{tag('other', 'x')}</function>\n</tool_call>"
    assert is_held(other, "qwen3", "<function=", any_arguments=True)


def test_a_forced_call_of_deepseek_v32s_is_in_tags_with_a_mark() -> None:
    tag, calls = dsml_tag, dsml_calls
    text, count = tag("text", 'a "<b>"\n</</｜中'), tag("count", "12", "false")
    for pairs in (text + count, text + tag("unit", "c") + count):
        assert is_held(calls(pairs), "deepseek32")
        assert is_held(calls(pairs, pairs), "deepseek32")
    for pairs in (count, text + tag("unit", "k") + count, text + tag("count", "12"), text + tag("count", "x", "false")):
        assert not is_held(calls(pairs), "deepseek32")
    assert not is_held(calls(text + count).replace("function_calls>\n<", "function_calls><", 1), "deepseek32")
    other = tag("other", "x") + tag("more", "[1]", "false")
    assert is_held(calls(other), "deepseek32", any_arguments=True)


@pytest.mark.parametrize("key", ['a"b', "a\nb", "a" * 5000])
def test_a_key_that_no_tag_with_a_mark_can_hold_is_refused_by_name(key: str) -> None:
    family = FAMILIES["deepseek32"]
    tokenizer = byte_tokenizer(user_defined=(*family.reply.spellings.values(), *family.vocabulary))

    def calls(key: str) -> Source:
        function = {"name": "f", "strict": True, "parameters": {"properties": {key: {"type": "integer"}}}}
        return tool_calls([{"type": "function", "function": function}], tokenizer, "dsml")

    with pytest.raises(
        RequestError, match=r"tools\.0\.function\.parameters\.properties: the key a.* cannot be enforced"
    ):
        calls(key)
    GrammarCompiler(tokenizer).compile(calls("a>b <c>'"))


def test_a_mark_within_a_tag_triggers_with_the_characters_before_it() -> None:
    family = FAMILIES["deepseek32"]
    tokenizer = byte_tokenizer(user_defined=(*family.reply.spellings.values(), *family.vocabulary))
    tag = tokenizer.id_of("｜DSML｜")
    assert trigger_tokens(tokenizer) == {tag: (*tokenizer.encode("\n\n<"), tag)}
