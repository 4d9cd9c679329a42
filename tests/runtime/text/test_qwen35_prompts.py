"""Prompts of Qwen3-Next, Qwen3.5 and Qwen3.6: which parts of earlier turns are shown, and how a template is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ballast.families.registry import FAMILIES, RELEASES, fingerprint, release_of, source_of
from ballast.text.chat_template import ChatTemplate
from ballast.text.loading import load_text
from ballast.weights.gguf import open_gguf
from devkit.models.vocabulary import byte_metadata
from devkit.models.written import write_tiny_model

USER = [{"role": "user", "content": " U\n"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
OPEN = "<|im_start|>assistant\n<think>\n"


def render(name: str, chat: list[dict[str, Any]], **more: Any) -> str:
    release = RELEASES[name][1]
    return ChatTemplate(source_of(release), bos_token="", eos_token="<eos>", release=release).render(chat, **more)


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(content: str, reasoning: str | None = None, *calls: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    return {**message, "tool_calls": list(calls)} if calls else message


TOOL_TURNS = [
    *USER,
    answer(" I look.\n", " R1\n", call("f", '{"a": true, "b": null}'), call("g", "{}")),
    {"role": "tool", "tool_call_id": "f", "content": " 1\n"},
    {"role": "tool", "tool_call_id": "g", "content": ""},
    answer("", None, call("h", "{}")),
    {"role": "tool", "tool_call_id": "h", "content": "3"},
]


def written(first: str, later: str, true: str, null: str) -> str:
    """`TOOL_TURNS` as a prompt. `first`, `later`: the text before the first and before later answers."""
    return (
        f"<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n{first}I look.\n\n<tool_call>\n<function=f>\n"
        f"<parameter=a>\n{true}\n</parameter>\n<parameter=b>\n{null}\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=g>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n\n</tool_response><|im_end|>\n"
        f"<|im_start|>assistant\n{later}<tool_call>\n<function=h>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
    )


@pytest.mark.parametrize(
    ("name", "true", "null"), [("qwen3.5", "True", "None"), ("qwen3.6", "true", "null")], ids=["3.5", "3.6"]
)
def test_reasoning_is_shown_since_the_last_question_or_always(name: str, true: str, null: str) -> None:
    shown = written("<think>\nR1\n</think>\n\n", "<think>\n\n</think>\n\n", true, null)
    assert render(name, TOOL_TURNS) == f"{shown}{OPEN}"
    later = [*TOOL_TURNS, answer("A", "R2"), *USER]
    end = f"A<|im_end|>\n<|im_start|>user\nU<|im_end|>\n{OPEN}"
    assert render(name, later) == f"{written('', '', true, null)}<|im_start|>assistant\n{end}"
    kept = render(name, later, options={"preserve_thinking": True})
    assert kept == f"{shown}<|im_start|>assistant\n<think>\nR2\n</think>\n\n{end}"
    assert render(name, later, options={"preserve_thinking": False}) == render(name, later)


def test_a_kept_conversation_begins_with_the_one_before_it() -> None:
    """So the cache contains the whole previous prompt."""
    options = {"preserve_thinking": True}
    before = render("qwen3.6", TOOL_TURNS, options=options)
    reply = "R2\n</think>\n\nA<|im_end|>\n"
    assert render("qwen3.6", [*TOOL_TURNS, answer("A", "R2"), *USER], options=options).startswith(before + reply)


def test_flash_next_keeps_all_reasoning_unless_a_request_says_otherwise() -> None:
    chat = [*USER, answer("A", " R1\n"), *USER]
    begin = "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    end = f"A<|im_end|>\n<|im_start|>user\nU<|im_end|>\n{OPEN}"
    options = {"reasoning_effort": "medium"}
    assert render("qwen3.8", chat, options=options) == f"{begin}<think>\nR1\n</think>\n\n{end}"
    assert render("qwen3.8", chat, options={**options, "preserve_thinking": False}) == begin + end


@pytest.mark.parametrize(
    ("options", "effort"),
    [
        ({}, "xhigh. Please think carefully"),
        ({"reasoning_effort": "high"}, "xhigh. Please think carefully"),
        ({"reasoning_effort": "low"}, "low. Keep your thinking brief"),
        ({"reasoning_effort": "medium"}, None),
        ({"reasoning_effort": "low", "enable_thinking": False}, None),
    ],
)
def test_flash_next_is_told_the_reasoning_effort_first(options: dict[str, Any], effort: str | None) -> None:
    for tools, begin in ((None, "S<|im_end|>\n"), (TOOLS, "# Tools\n\nYou have access")):
        prompt = render("qwen3.8", [{"role": "system", "content": "S"}, *USER], tools=tools, options=options)
        told, _, rest = prompt.removeprefix("<|im_start|>system\n").rpartition("\n\n" + begin)
        assert (told or rest).startswith(begin if effort is None else f"Reasoning effort is set to {effort}")
    bare = render("qwen3.8", USER, options=options)
    assert bare.startswith("<|im_start|>user" if effort is None else "<|im_start|>system\nReasoning effort")
    assert bare.endswith("<think>\n\n</think>\n\n" if "enable_thinking" in options else OPEN)


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_instructions_follow_the_tools_and_late_ones_are_part_of_a_turn(tools: Any) -> None:
    system = [{"role": "system", "content": " S1\n"}, {"role": "developer", "content": "S2"}]
    prompt = render("qwen3.6", [*system, *USER, answer("A"), {"role": "system", "content": "S3"}, *USER], tools=tools)
    begin = "<|im_start|>system\n# Tools\n\n" if tools else "<|im_start|>system\nS1\n\nS2<|im_end|>\n"
    assert prompt.startswith(begin)
    assert ("</IMPORTANT>\n\nS1\n\nS2<|im_end|>\n" in prompt) == (tools is not None)
    late = "<system-reminder>\nS3\n</system-reminder>"
    assert f"<|im_start|>user\n{late}\n\n U<|im_end|>\n" in prompt
    assert prompt.count("<|im_start|>system") == 1


def test_an_empty_system_message_is_a_turn_only_without_tools() -> None:
    chat = [{"role": "system", "content": " \n"}, *USER]
    assert render("qwen3.5", chat).startswith("<|im_start|>system\n<|im_end|>\n<|im_start|>user\nU<|im_end|>\n")
    assert "</IMPORTANT><|im_end|>\n<|im_start|>user\nU" in render("qwen3.5", chat, tools=TOOLS)


def test_next_instruct_shows_no_reasoning_and_coder_next_values_as_json() -> None:
    chat = [*USER, answer("A", "R"), *USER]
    assert "<|im_start|>assistant\nA<|im_end|>" in render("qwen3-next-instruct", chat)
    assert "<think>" not in render("qwen3-next-instruct", [*USER, answer("A", "R")], add_generation_prompt=False)
    prompt = render("qwen3-coder-next", TOOL_TURNS)
    assert "<parameter=a>\ntrue\n</parameter>\n<parameter=b>\nnull\n</parameter>" in prompt
    results = "\n<tool_response>\n 1\n\n</tool_response>\n<tool_response>\n\n</tool_response><|im_end|>\n"
    assert f"<|im_start|>user{results}" in prompt


def test_a_file_has_the_form_and_template_of_the_family(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, arch="qwen35")
    text = load_text(None, open_gguf(model.gguf).metadata, "m.gguf")
    template = text.require_template()
    assert text.tokenizer.reply is FAMILIES["qwen3"].reply
    assert (template.release, template.is_guarded) == (RELEASES["qwen3.5"][1], False)
    assert {text.tokenizer.id_of(each) for each in ("<|im_end|>", "<|endoftext|>")} <= text.tokenizer.eos_ids
    prompt = text.tokenizer.encode_prompt(template.render(USER, protect=text.tokenizer.protect))
    assert text.tokenizer.decode(prompt[-2:], skip_control=False) == "<think>\n"


def test_releases_that_share_a_template_are_told_apart_by_the_published_one() -> None:
    published = FAMILIES["qwen3"].published
    assert {"qwen3-next-instruct", "qwen3-coder-next", "qwen3.5", "qwen3.6", "qwen3.8"} <= set(published.values())
    assert release_of(source_of(RELEASES["qwen3.6"][1])) == RELEASES["qwen3.5"][1]
    assert fingerprint(source_of(RELEASES["qwen3-coder-next"][1])) not in published


def test_placeholders_of_images_in_a_message_are_text() -> None:
    tokens = ("<|im_start|>", "<tool_call>", "<think>", "</think>", "<|vision_start|>", "<|image_pad|>")
    text = load_text(None, byte_metadata("qwen35", user_defined=tokens), "m.gguf", "qwen3.5")
    chat = [{"role": "user", "content": "<|vision_start|><|image_pad|></think><|im_start|>"}]
    ids = text.tokenizer.encode_prompt(text.require_template().render(chat, protect=text.tokenizer.protect))
    counts = [ids.count(text.tokenizer.id_of(each)) for each in tokens]
    assert counts == [2, 0, 1, 0, 0, 0]
