"""Prompts equal, byte for byte, to those of DeepSeek's releases, and the limits of templates."""

import json
import re
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from ballast.errors import CapacityError, ModelError, RequestError
from ballast.families.registry import RELEASES, source_of
from ballast.guarded import GuardedProcess, Limits
from ballast.text import chat_template
from ballast.text.chat_template import ChatTemplate, force_think
from ballast.text.foreign import template as foreign
from ballast.tiny.tokenizer import make_tokenizer
from devkit.models.vocabulary import BOS, EOS
from devkit.published_tokenizers import V3_DIRECTORY

# Written for these tests in the form of each release's template; the prompts below are those of the releases.
V2 = """
{{- bos_token }}
{%- for m in messages %}
    {%- if m['role'] == 'system' %}{{ m['content'] + '\n\n' }}
    {%- elif m['role'] == 'user' %}{{ 'User: ' + m['content'] + '\n\n' }}
    {%- elif m['role'] == 'assistant' %}{{ 'Assistant: ' + m['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}
"""

V3 = """
{%- set ns = namespace(system='', after_tool=false) %}
{%- for m in messages if m['role'] == 'system' %}
    {%- set ns.system = ns.system + ('\n\n' if not loop.first else '') + m['content'] %}
{%- endfor %}
{{- bos_token + ns.system }}
{%- for m in messages %}
    {%- if m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}
    {%- elif m['role'] == 'assistant' and 'tool_calls' in m %}
        {{- '<｜Assistant｜>' + m['content'] + '<｜tool▁calls▁begin｜>' }}
        {%- for call in m['tool_calls'] %}
            {{- '' if loop.first else '\n' }}
            {{- '<｜tool▁call▁begin｜>' + call['type'] + '<｜tool▁sep｜>' + call['function']['name'] }}
            {{- '\n```json\n' + call['function']['arguments'] + '\n```<｜tool▁call▁end｜>' }}
        {%- endfor %}
        {{- '<｜tool▁calls▁end｜>' + eos_token }}
    {%- elif m['role'] == 'assistant' %}
        {{- '<｜Assistant｜>' + m['content'].split('</think>')[-1] + eos_token }}
    {%- elif m['role'] == 'tool' %}
        {{- '<｜tool▁output▁begin｜>' + m['content'] + '<｜tool▁output▁end｜>' }}
    {%- endif %}
    {%- set ns.after_tool = m['role'] == 'tool' %}
{%- endfor %}
{%- if add_generation_prompt and not ns.after_tool %}{{ GENERATION }}{% endif %}
"""

R1 = V3.replace("GENERATION", r"'<｜Assistant｜><think>\n'")
V31 = V3.replace("GENERATION", "'<｜Assistant｜>' + ('<think>' if thinking else '</think>')")
V3 = V3.replace("GENERATION", "'<｜Assistant｜>'")

CHAT = [
    {"role": "system", "content": "S1"},
    {"role": "user", "content": "U1"},
    {"role": "assistant", "content": "A1"},
    {"role": "user", "content": "U2"},
]


def marked(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token=BOS, eos_token=EOS)


def test_v2_prompt() -> None:
    expected = f"{BOS}S1\n\nUser: U1\n\nAssistant: A1{EOS}User: U2\n\nAssistant:"
    assert template(V2).render(CHAT) == expected


def test_v3_prompt_gathers_the_first_system_messages_in_front() -> None:
    chat = [CHAT[0], {"role": "system", "content": "S2"}, *CHAT[1:]]
    expected = f"{BOS}S1\n\nS2<｜User｜>U1<｜Assistant｜>A1{EOS}<｜User｜>U2<｜Assistant｜>"
    assert template(V3).render(chat) == expected


LATE = {"role": "system", "content": "S2"}
REFUSING = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('at the beginning') }}"
)
REFUSING += "{% endif %}[{{ m.role }} {{ m.content }}]{% endfor %}"
SILENT = "{% for m in messages if m.role != 'system' %}[{{ m.role }} {{ m.content }}]{% endfor %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (V2, f"{BOS}S1\n\nUser: U1\n\nAssistant: A1{EOS}S2\n\nUser: U2\n\nAssistant:"),
        (REFUSING, f"[system S1][user U1][assistant A1][user {marked('S2')}\n\nU2]"),
        (SILENT, f"[user U1][assistant A1][user {marked('S2')}\n\nU2]"),
        (V3, f"{BOS}S1<｜User｜>U1<｜Assistant｜>A1{EOS}<｜User｜>{marked('S2')}\n\nU2<｜Assistant｜>"),
    ],
    ids=["in place", "rejected", "omitted", "in front"],
)
def test_a_late_system_message_stays_in_order(source: str, expected: str) -> None:
    assert template(source).render([*CHAT[:3], LATE, CHAT[3]]) == expected


@pytest.mark.parametrize("source", [V2, V3, R1, V31])
def test_later_messages_do_not_change_the_prompt_before_them(source: str) -> None:
    """Agents send turn after turn: everything except the end is in the prefix cache."""
    chat: list[dict[str, Any]] = [CHAT[0]]
    before = template(source).render(CHAT[:2], add_generation_prompt=False)
    for added in (CHAT[1], LATE, CHAT[2], LATE, CHAT[3], LATE, CHAT[2], CHAT[3]):
        chat.append(added)
        prompt = template(source).render(chat, add_generation_prompt=False)
        assert prompt.startswith(before.removesuffix("\n\n"))
        before = prompt


def test_r1_prompt_opens_the_thinking() -> None:
    assert template(R1).render(CHAT).endswith("<｜User｜>U2<｜Assistant｜><think>\n")


@pytest.mark.parametrize(
    ("kwargs", "tail"), [({}, "</think>"), ({"thinking": True}, "<think>"), ({"thinking": False}, "</think>")]
)
def test_v31_prompt_follows_the_thinking_switch(kwargs: Mapping[str, Any], tail: str) -> None:
    assert template(V31).render(CHAT, options=kwargs).endswith(f"<｜Assistant｜>{tail}")


def test_earlier_reasoning_is_omitted_from_the_history() -> None:
    chat = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "<think>hm</think>\n\nA"}]
    assert template(V3).render(chat, add_generation_prompt=False) == f"{BOS}<｜User｜>U<｜Assistant｜>\n\nA{EOS}"


@pytest.mark.parametrize("source", [V2, V3, R1, V31])
def test_no_generation_prompt_without_a_request(source: str) -> None:
    assert template(source).render(CHAT, add_generation_prompt=False).endswith("U2\n\n" if source == V2 else "U2")


TOOL_TURN = [
    {"role": "user", "content": "U"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "R"},
]


def test_the_published_v3_template_renders_a_tool_turn() -> None:
    config = json.loads((V3_DIRECTORY / "tokenizer_config.json").read_text())
    assert template(config["chat_template"]).render(TOOL_TURN) == (
        f"{BOS}<｜User｜>U<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
        '```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
        f"{EOS}<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>R<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    )


@pytest.mark.parametrize(
    "source",
    [
        V2,
        V3,
        R1,
        V31,
        "{% for m in messages %}\n    {% if loop.index > 2 %}\n{% break %}\n{% endif %}\n{{ m }}\n{% endfor %}\n",
        "{{ tools | tojson }}{{ tools | tojson(indent=2) }}{{ {'<': '&é'} | tojson }}",
        "{{ undefined_thing }}{{ messages[0].absent }}{{ custom }}",
        "{% for m in messages %}a\n  {% generation %}\n{% set x = 1 %}{{ m }}\n{% endgeneration %}\n"
        "{{ x }}b{% endfor %}",
        "{%- for m in messages -%} {%- generation -%} {{ m.content }} {%- if loop.last %}!{% endif %} "
        "{%- endgeneration -%} {%- endfor -%}",
    ],
)
def test_templates_render_as_in_transformers(source: str) -> None:
    tools = [{"type": "function", "function": {"name": "f<x>", "description": "ä & b"}}]
    expected, _ = render_jinja_template(
        conversations=[CHAT],
        chat_template=source,
        tools=tools,
        add_generation_prompt=True,
        bos_token=BOS,
        eos_token=EOS,
        custom="é",
    )
    assert template(source).render(CHAT, tools=tools, options={"custom": "é"}) == expected[0]


@pytest.mark.parametrize("source", ["{% generation %}", "{% endgeneration %}", "{% generation %}{% endfor %}"])
def test_a_generation_block_must_be_closed(source: str) -> None:
    with pytest.raises(ModelError, match="line 1: "):
        template(source)


def test_the_date_is_todays() -> None:
    before = datetime.now().astimezone().strftime("%Y-%m-%d")
    rendered = template("{{ strftime_now('%Y-%m-%d') }}").render(CHAT)
    assert before <= rendered <= datetime.now().astimezone().strftime("%Y-%m-%d")


def test_templates_read_the_fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "{{ strftime_now('%d %B %Y, %H:%M') }}"
    for is_guarded in (True, False):
        monkeypatch.setattr(chat_template, "is_own", lambda _, is_guarded=is_guarded: not is_guarded)
        dated = ChatTemplate(source, bos_token=BOS, eos_token=EOS, today="2025-08-06")
        assert dated.is_guarded is is_guarded
        assert dated.render(CHAT) == "06 August 2025, 00:00"


def test_extra_values_cannot_replace_the_special_tokens_or_the_tools() -> None:
    rendered = template("{{ bos_token }}{{ tools }}{{ extra }}").render(CHAT, options={"bos_token": "X", "extra": "Y"})
    assert rendered == f"{BOS}NoneY"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ (messages | attr('__class__')).mro() }}",
        "{{ '{0.__class__.__base__}'.format(messages) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{% include 'other' %}",
        "{{ range(10000000) | list }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(RequestError, match=r"^the model's chat template cannot render") as refused:
        template(source).render(CHAT)
    assert refused.value.status == 400


ATTACKS = {
    "endless loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "endless recursion": "{% macro f(n) %}{% for a in range(2) %}{{ f(n - 1) if n }}{% endfor %}{% endmacro %}"
    "{{ f(90) }}",
    "a test that swallows exceptions": "{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% if messages is sequence %}{% endif %}{% endfor %}{% endfor %}",
    "a filter over all numbers": "{% for a in range(99999) %}{% if range(99999) | sum %}{% endif %}{% endfor %}",
    "power": "{{ (one + 6) ** 99999999 % 10 }}",
    "remainder": "{% set n = (one + 6) ** 2000000 %}{% for a in range(99) %}{{ n ** 2 % (n + 1) % 10 }}{% endfor %}",
    "quotient": "{% set n = (one + 6) ** 2000000 %}{% for a in range(99) %}{{ n ** 2 // (n + 1) % 10 }}{% endfor %}",
    "replace": "{% set s = 'x' * 9999 * one %}{{ s.replace('x', s).replace('x', s) }}",
    "the filter replace": "{% set s = 'x' * 9999 * one %}{{ s | replace('x', s) | replace('x', s) }}",
    "join": "{% set s = 'x' * 99999 * one %}{{ s.join(s) }}",
    "the filter join": "{{ range(99999) | join('x' * 99999 * one) }}",
    "a wide format": "{{ ('%' ~ 9999999999 * one ~ 'd') % 1 }}",
    "many wide formats": "{{ ('%9999d' * one * 9999) % ((1,) * one * 9999) }}",
    "str.format": "{{ ('{:' ~ 9999999999 * one ~ '}').format(1) }}",
    "indent": "{{ ('\\n' * 99999 * one) | indent(99999, true, true) }}",
    "center": "{{ 'x' | center(9999999999 * one) }}",
    "expandtabs": "{{ ('\\t' * 99999 * one).expandtabs(99999) }}",
    "translate": "{{ ('x' * 99999 * one).translate({120: 'x' * 99999}) }}",
    "batch": "{{ [1] | batch(9999999999 * one, 0) | list }}",
    "doubling": "{% set s = namespace(x='x') %}{% for n in range(99) %}{% set s.x = s.x ~ s.x %}{% endfor %}",
    "writing": "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
}


def set_limits(monkeypatch: pytest.MonkeyPatch, *, cpu_s: float) -> None:
    limits = Limits(cpu_s, memory_bytes=128 << 20)
    monkeypatch.setattr(foreign, "_PROCESS", GuardedProcess("ballast.text.foreign.render", limits))


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, cpu_s=0.2)


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("name", ATTACKS)
def test_a_template_that_exhausts_resources_is_stopped(name: str) -> None:
    """The error names the limit. Values come from the client, so nothing can be precomputed."""
    limit = (
        r"(was stopped: it (ran for more than 0\.2 s|takes more than 128 MiB of memory)|exceeds 16777216 characters)"
    )
    hostile = ChatTemplate(ATTACKS[name], bos_token=BOS, eos_token=EOS, name="m.gguf (metadata)")
    with pytest.raises(RequestError, match=rf"^the model's chat template .*{limit}$") as refused:
        hostile.render(CHAT, options={"one": 1})
    assert (refused.value.status, refused.value.param) == (400, "messages")


@pytest.mark.parametrize(
    ("source", "cpu_s", "reason"),
    [
        ("{{ 7 ** 99999999 % 10 }}", 0.2, r"compiling it was stopped: it ran for more than 0\.2 s"),
        ("{{ 'x' * 60000000 }}", 60, "compiling it was stopped: it takes more than 128 MiB of memory"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", 60, "maximum recursion depth exceeded"),
        ("x" * (1 << 20) + "x", 60, "1048577 characters; expected at most 1048576"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_template_that_exhausts_resources_at_compilation_is_rejected_at_load(
    monkeypatch: pytest.MonkeyPatch, source: str, cpu_s: float, reason: str
) -> None:
    set_limits(monkeypatch, cpu_s=cpu_s)
    with pytest.raises(ModelError, match=rf"^m\.gguf: chat template: {reason}"):
        ChatTemplate(source, bos_token=BOS, eos_token=EOS, name="m.gguf")


@pytest.mark.usefixtures("short_limits")
def test_after_a_template_was_stopped_the_next_request_is_rendered() -> None:
    moody = template("{% if messages[0].content == 'S1' %}{{ (one + 6) ** 99999999 % 10 }}{% endif %}fine")
    with pytest.raises(RequestError, match="was stopped"):
        moody.render(CHAT, options={"one": 1})
    assert moody.render(CHAT[1:]) == "fine"


def test_failing_to_start_a_process_is_not_a_request_error(monkeypatch: pytest.MonkeyPatch) -> None:
    simple = template("fine")
    monkeypatch.setattr(foreign, "_PROCESS", GuardedProcess("ballast.text.foreign.render", foreign.LIMITS))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(CapacityError, match="no process can be started for the model's chat template: No such file"):
        simple.render(CHAT)


@pytest.mark.parametrize("name", RELEASES)
def test_ballasts_own_templates_are_rendered_in_linear_time_in_this_process(name: str) -> None:
    release = RELEASES[name][1]
    own = ChatTemplate(source_of(release), bos_token=BOS, eos_token=EOS, release=release)
    assert not own.is_guarded
    chat = [{"role": "system", "content": "x" * 100}] * 20_000
    assert len(own.render([*chat, CHAT[1]])) > 2_000_000


def test_templates_of_tiny_models_are_ballasts_own_too() -> None:
    for family in ("v2", "v3", "glm53"):
        assert not template(make_tokenizer(family).chat_template).is_guarded


def test_ordinary_formats_pass() -> None:
    source = "{{ '%s|%5d|%.2f' % ('a*b', 7, 0.5) }}{{ '{:>4}'.format('x') }}{{ '%-3s|' | format('y') }}"
    assert template(source).render(CHAT) == "a*b|    7|0.50   xy  |"


def test_errors_raised_by_a_template_reach_the_client() -> None:
    source = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(RequestError, match="roles must alternate") as refused:
        template(source).render(CHAT)
    assert (refused.value.status, refused.value.param) == (400, "messages")


def test_an_error_names_no_file_of_the_server() -> None:
    refusing = ChatTemplate(
        "{{ raise_exception('no') }}", bos_token=BOS, eos_token=EOS, name="/models/secret/m.gguf (metadata)"
    )
    with pytest.raises(RequestError) as refused:
        refusing.render(CHAT)
    assert refused.value.message == "the model's chat template cannot render these messages: no"


@pytest.mark.parametrize(
    ("problem", "param"),
    [
        ("effort is low", "effort"),
        ("effort: low", "effort"),
        ("effort", "effort"),
        ("efforts differ", "messages"),
        ("no effort", "messages"),
        ("other is low", "messages"),
        ("\\1 is low", "messages"),
    ],
)
def test_an_error_about_a_variable_names_it(problem: str, param: str) -> None:
    with pytest.raises(RequestError, match=rf": {re.escape(problem)}$") as refused:
        template("{{ raise_exception(problem) }}").render(CHAT, options={"effort": "low", "problem": problem})
    assert refused.value.param == param
    named = "effort: " if param == "effort" else ""
    assert refused.value.message.startswith(f"{named}the model's chat template cannot ")


@pytest.mark.parametrize("source", ["{{ 1 + 'a' }}", "{{ 1 / 0 }}", "{{ absent.field }}", "{{ messages[0]() }}"])
def test_a_template_that_fails_is_a_refused_request(source: str) -> None:
    with pytest.raises(RequestError, match="cannot render these messages: "):
        template(source).render(CHAT)


def test_a_template_that_is_not_jinja_is_refused_at_load_with_its_line() -> None:
    with pytest.raises(ModelError, match=r"m\.gguf: chat template: line 2: "):
        ChatTemplate("ok\n{% if %}", bos_token=BOS, eos_token=EOS, name="m.gguf")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<｜Assistant｜>", "<｜Assistant｜><think>\n"),
        ("<｜Assistant｜><think>", "<｜Assistant｜><think>\n"),
        ("<｜Assistant｜><think>\n", "<｜Assistant｜><think>\n"),
        ("<｜Assistant｜></think>", "<｜Assistant｜><think>\n"),
        ("Assistant:", "Assistant:<think>\n"),
        ("<｜tool▁outputs▁end｜>", "<｜tool▁outputs▁end｜><think>\n"),
    ],
)
def test_forced_thinking_is_opened_exactly_once(prompt: str, expected: str) -> None:
    assert force_think(prompt) == expected
    assert force_think(force_think(prompt)) == expected


@pytest.mark.parametrize("source", [V2, V3, R1, V31])
@pytest.mark.parametrize("thinking", [True, False])
def test_every_releases_prompt_can_be_forced_to_think(source: str, thinking: bool) -> None:
    forced = force_think(template(source).render(CHAT, options={"thinking": thinking}))
    assert forced.endswith("<think>\n")
    assert forced.count("think>") == 1


ASKS_ONE = [
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"k": "中", "n": [1]}'}}],
    },
]
EACH_CALL = "{% for m in messages %}{% for call in m.tool_calls or [] %}CALL{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("{{ '<' + call.function.arguments + '>' }}", '<{"k": "中", "n": [1]}>'),
        ("{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}", "k=中;n=[1];"),
        ("{{ call.function.arguments | tojson }}", '{"k": "中", "n": [1]}'),
        ("{{ call.function.arguments }}", '{"k": "中", "n": [1]}'),
        (
            "{% if call.function.arguments is string %}{{ call.function.arguments }}{% else %}other{% endif %}",
            '{"k": "中", "n": [1]}',
        ),
        (
            "{% set a = call.function.arguments %}{% if a is string %}text={{ a }}{% else %}"
            "{% for k, v in a.items() %}{{ k }}={{ v }};{% endfor %}{% endif %}",
            "k=中;n=[1];",
        ),
        ("nothing", "nothing"),
    ],
)
def test_call_arguments_have_the_type_that_the_template_expects(shown: str, expected: str) -> None:
    template = ChatTemplate(EACH_CALL.replace("CALL", shown), bos_token="", eos_token="")
    assert template.render(ASKS_ONE) == expected


@pytest.mark.parametrize(("given", "shown"), [("not JSON", "_unparsed=not JSON;"), ("[1]", "_unparsed=[1];")])
def test_non_object_arguments_are_one_value_where_text_fails(given: str, shown: str) -> None:
    go_through = "{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"
    template = ChatTemplate(EACH_CALL.replace("CALL", go_through), bos_token="", eos_token="")
    call = {"id": "c", "function": {"name": "f", "arguments": given}}
    assert template.render([ASKS_ONE[0], {**ASKS_ONE[1], "tool_calls": [call]}]) == shown


def test_non_object_arguments_stay_text() -> None:
    go_through = "{{ call.function.arguments.items() | list if call.function.arguments is mapping else 'text' }}"
    template = ChatTemplate(EACH_CALL.replace("CALL", go_through), bos_token="", eos_token="")
    call = {"id": "c", "function": {"name": "f", "arguments": "not JSON"}}
    assert template.render([ASKS_ONE[0], {**ASKS_ONE[1], "tool_calls": [call]}]) == "text"
