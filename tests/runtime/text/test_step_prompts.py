"""Prompts of Step-3.5-Flash and Step-3.7-Flash, where Ballast's template differs from the published one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ballast.families.registry import FAMILIES, RELEASES, release_of, source_of, without_template
from ballast.text.chat_template import ChatTemplate
from ballast.text.gguf_vocab import TokenType, tokenizer_from_gguf
from ballast.text.loading import load_text
from ballast.weights.gguf import open_gguf
from devkit.models.vocabulary import byte_metadata
from devkit.models.written import write_tiny_model

BOS = "<bos>"
USER = [{"role": "user", "content": "U"}]
SYSTEM = [{"role": "system", "content": "S"}, *USER]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
OPEN = "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n<think>\n"


def render(name: str, chat: list[dict[str, Any]], **more: Any) -> str:
    release = RELEASES[name][1]
    return ChatTemplate(source_of(release), bos_token=BOS, eos_token="<eos>", release=release).render(chat, **more)


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("requested", "line"),
    [
        ("low", "Reasoning: low\n\n"),
        ("medium", "Reasoning: medium\n\n"),
        ("max", "Reasoning: high\n\n"),
        ("minimal", "Reasoning: low\n\n"),
        ("none", ""),
        (None, ""),
    ],
)
def test_step_3_7_writes_the_effort_in_the_first_line_of_the_system_turn(requested: str | None, line: str) -> None:
    options = {} if requested is None else {"reasoning_effort": requested}
    with_system = render("step-3.7-flash", SYSTEM, options=options)
    assert with_system == f"{BOS}<|im_start|>system\n{line}S<|im_end|>\n{OPEN}"
    alone = f"<|im_start|>system\n{line}<|im_end|>\n" if line else ""
    assert render("step-3.7-flash", USER, options=options) == f"{BOS}{alone}{OPEN}"
    tools = render("step-3.7-flash", SYSTEM, tools=TOOLS, options=options)
    assert tools.startswith(f"{BOS}<|im_start|>system\n{line}S\n\n# Tools\n")
    assert tools.endswith(f"</IMPORTANT><|im_end|>\n{OPEN}")


def test_3_5_knows_no_effort() -> None:
    options = {"reasoning_effort": "low"}
    assert render("step-3.5-flash", SYSTEM, options=options) == render("step-3.5-flash", SYSTEM)


def test_texts_are_trimmed() -> None:
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": " S\n"},
        {"role": "user", "content": "\n\nU "},
        {"role": "assistant", "content": " A\n", "reasoning_content": " R\n", "tool_calls": [call("f", "{}")]},
        {"role": "tool", "tool_call_id": "c", "content": " 1\n"},
    ]
    assert render("step-3.5-flash", chat) == (
        f"{BOS}<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nR\n</think>\nA<tool_call>\n<function=f>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>tool_response\n<tool_response>1</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_tags_of_reasoning_are_text_whatever_their_type() -> None:
    form = FAMILIES["step"]
    metadata = byte_metadata(user_defined=tuple(dict.fromkeys((*form.vocabulary, *form.reply.spellings.values()))))
    types = metadata["tokenizer.ggml.token_type"]
    metadata["tokenizer.ggml.token_type"] = [
        TokenType.CONTROL if kind == TokenType.USER_DEFINED else kind for kind in types
    ]
    tokenizer = tokenizer_from_gguf(metadata, "m.gguf")
    assert tokenizer.decode(tokenizer.encode("<think>R</think>A<tool_response>")) == "<think>R</think>A"


def test_reasoning_inside_content_is_kept_only_since_the_last_question() -> None:
    answer = {"role": "assistant", "content": "<think>\nR\n</think>\n\nA", "tool_calls": [call("f", "{}")]}
    result = {"role": "tool", "tool_call_id": "c", "content": "1"}
    prompt = render("step-3.5-flash", [*USER, answer, result])
    assert "<|im_start|>assistant\n<think>\nR\n</think>\nA<tool_call>" in prompt
    prompt = render("step-3.5-flash", [*USER, answer, result, *USER])
    assert "<|im_start|>assistant\nA<tool_call>" in prompt
    assert "R" not in prompt.replace("Reminder", "")


def test_a_file_has_the_form_and_template_of_the_family(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, arch="step35")
    text = load_text(None, open_gguf(model.gguf).metadata, "m.gguf")
    template = text.require_template()
    assert text.tokenizer.reply is FAMILIES["step"].reply
    assert (template.release, template.is_guarded) == (RELEASES["step-3.5-flash"][1], False)
    assert without_template(FAMILIES["step"].reply, "step35") == "step-3.5-flash"
    assert release_of(source_of(RELEASES["step-3.7-flash"][1])) == RELEASES["step-3.5-flash"][1]
