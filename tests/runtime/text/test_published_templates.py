"""Prompts of generated conversations equal those of the published templates, byte for byte."""

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from ballast.text.chat_template import ChatTemplate
from devkit.conversations import Shapes, conversations
from devkit.models.vocabulary import BOS, EOS
from devkit.published_templates import COUNT, PUBLISHED, digest, prompts, recorded

OWN = [name for name, published in PUBLISHED.items() if published.release is not None]


@pytest.mark.parametrize("name", OWN)
def test_built_in_templates_render_the_published_prompts(name: str) -> None:
    expected = recorded()[name]
    given = [digest(prompt) for _, prompt in prompts(PUBLISHED[name])]
    different = [number for number, pair in enumerate(zip(expected, given, strict=True)) if pair[0] != pair[1]]
    assert different == []


# In the form of the templates that are used unchanged.
FRAME = """
{{- bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}
    {{- '<' + m.role + '>' + (m.name or '') + (m.reasoning_content or '') + '|' + m.content }}
    {%- for call in m.tool_calls or [] %}CALL{% endfor %}
    {{- m.tool_call_id }}
{%- endfor %}
{%- set thinks = enable_thinking is not defined or enable_thinking %}
{%- if add_generation_prompt %}<assistant>{{ '<think>' if thinks }}{% endif %}
"""
KEYED = FRAME.replace(
    "CALL",
    "{{ call.function.name }}{% for k, v in call.function.arguments.items() %}"
    "{{ k }}={{ v if v is string else v | tojson }};{% endfor %}",
)
AS_JSON = FRAME.replace("CALL", "{{ call.function | tojson }}")
AS_GIVEN = FRAME.replace(
    "CALL", "{% set a = call.function.arguments %}{{ call.function.name }}{{ a if a is string else a | tojson }}"
)


@pytest.mark.parametrize("source", [KEYED, AS_JSON, AS_GIVEN])
def test_templates_get_conversations_as_hugging_face_gives_them(source: str) -> None:
    template = ChatTemplate(source, bos_token=BOS, eos_token=EOS)
    switches: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": True}, {"enable_thinking": False})
    for chat in conversations(COUNT, Shapes(names=True, switches=switches)):
        expected, _ = render_jinja_template(
            [chat.messages],
            tools=chat.tools,
            chat_template=source,
            add_generation_prompt=chat.add_generation_prompt,
            bos_token=BOS,
            **chat.options,
        )
        prompt = template.render(
            chat.as_request(),
            tools=chat.tools,
            options=chat.options,
            add_generation_prompt=chat.add_generation_prompt,
        )
        assert prompt == expected[0]
