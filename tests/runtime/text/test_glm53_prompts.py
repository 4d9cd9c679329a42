"""Prompts of GLM-5.3-Flash, by the template of its tiny model: the effort, and reasoning that cannot be disabled."""

from __future__ import annotations

from typing import Any

import pytest

from ballast.text.chat_template import ChatTemplate
from ballast.text.loading import load_text
from ballast.tiny.tokenizer import make_tokenizer
from ballast.weights.gguf import open_gguf
from devkit.models.written import tiny_model

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"city": "Paris", "days": 3}'}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": "A", "reasoning_content": "R"},
    {"role": "user", "content": "V"},
    {"role": "assistant", "content": "", "reasoning_content": "Q", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "1"},
]
BEGIN = "[gMASK]<sop><|system|>Reasoning Effort: "
REST = (
    "<|user|>V<|assistant|><think>Q</think><tool_call>f<arg_key>city</arg_key><arg_value>Paris</arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call><|observation|><tool_response>1</tool_response>"
    "<|assistant|><think>"
)


def template() -> ChatTemplate:
    return ChatTemplate(make_tokenizer("glm53").chat_template, bos_token="[gMASK]", eos_token="<|endoftext|>")


@pytest.mark.parametrize(
    ("options", "effort"),
    [
        ({}, "Max"),
        ({"reasoning_effort": "low"}, "Low"),
        ({"reasoning_effort": "high"}, "High"),
        ({"reasoning_effort": "other"}, "Max"),
        ({"enable_thinking": False}, "Max"),
    ],
)
def test_a_prompt_begins_with_the_effort_and_ends_within_reasoning(options: dict[str, Any], effort: str) -> None:
    prompt = template().render(CHAT[:2], options=options)
    assert prompt == f"{BEGIN}{effort}<|system|>S<|user|>U<|assistant|><think>"
    assert not template().has_thinking_switch


@pytest.mark.parametrize(
    ("options", "shown"), [({}, ""), ({"clear_thinking": True}, ""), ({"clear_thinking": False}, "R")]
)
def test_earlier_reasoning_is_shown_on_request(options: dict[str, Any], shown: str) -> None:
    prompt = template().render(CHAT, options=options)
    assert prompt == f"{BEGIN}Max<|system|>S<|user|>U<|assistant|><think>{shown}</think>A{REST}"


def test_tools_are_written_as_functions_without_keys_of_the_api() -> None:
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}
    prompt = template().render(CHAT[:2], tools=[tool])
    assert '<tools>\n{"name": "f", "parameters": {"type": "object"}}\n</tools>' in prompt


def test_replies_of_the_tiny_model_begin_within_reasoning() -> None:
    text = load_text(None, open_gguf(tiny_model(arch="glm53flash").gguf).metadata, "model.gguf")
    assert text.template is not None
    assert text.template.render(CHAT[:2]).endswith("<|assistant|><think>")
