"""The built-in templates render the bytes that DeepSeek's releases were trained on, also where the published templates
fail, and replace the published ones."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ballast.errors import ConfigError, RequestError
from ballast.families.registry import (
    ARCHITECTURES,
    FAMILIES,
    RELEASES,
    fingerprint,
    release_of,
    source_of,
    templates_for,
)
from ballast.text.chat_template import ChatTemplate, close_thinking, force_think
from ballast.text.loading import Text, load_text
from ballast.weights.gguf import open_gguf
from devkit.models.vocabulary import BOS, EOS, byte_metadata
from devkit.models.written import write_tiny_model
from devkit.published_tokenizers import V2_DIRECTORY, V3_DIRECTORY

PUBLISHED_V3 = json.loads((V3_DIRECTORY / "tokenizer_config.json").read_text())

CHAT = [
    {"role": "system", "content": "S1"},
    {"role": "user", "content": "U1"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA1"},
    {"role": "user", "content": "U2"},
    {"role": "developer", "content": "S2"},
]
S2 = "<system-reminder>\nS2\n</system-reminder>"


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOL_TURNS = [
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": None, "tool_calls": [call("f", '{"a": 1}'), call("g", {})]},
    {"role": "tool", "tool_call_id": "f", "content": "R1"},
    {"role": "tool", "tool_call_id": "g", "content": [{"type": "text", "text": "R2"}]},
    {"role": "assistant", "content": "once more", "tool_calls": [call("h", "{}")]},
    {"role": "tool", "tool_call_id": "h", "content": "R3"},
]

TOOLS = [{"type": "function", "function": {"name": "f", "description": "D", "parameters": {"type": "object"}}}]


def vocabulary_of(name: str, *more: str) -> dict[str, Any]:
    """Metadata with the family's architecture, its tokens, and `more`."""
    own = RELEASES[name][0]
    tokens = dict.fromkeys((*own.vocabulary, *own.reply.spellings.values(), *more))
    return byte_metadata(user_defined=tuple(tokens)) | {"general.architecture": own.architecture}


def family(name: str) -> ChatTemplate:
    chosen = RELEASES[name][1]
    return ChatTemplate(source_of(chosen), bos_token=BOS, eos_token=EOS, name=name, release=chosen)


V3_CHAT = f"{BOS}S1<｜User｜>U1<｜Assistant｜>\n\nA1{EOS}<｜User｜>U2\n\n{S2}<｜Assistant｜>"
V31_CHAT = f"{BOS}S1<｜User｜>U1<｜Assistant｜></think>\n\nA1{EOS}<｜User｜>U2\n\n{S2}<｜Assistant｜>"


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("deepseek-v2", {}, f"{BOS}S1\n\nUser: U1\n\nAssistant: \n\nA1{EOS}User: U2\n\nS2\n\nAssistant:"),
        ("deepseek-v2.5", {}, V3_CHAT),
        ("deepseek-v3", {}, V3_CHAT),
        ("deepseek-r1", {}, f"{V3_CHAT}<think>\n"),
        ("deepseek-r1", {"thinking": False}, f"{V3_CHAT}<think>\n\n</think>\n\n"),
        ("deepseek-r1-0528", {}, V3_CHAT),
        ("deepseek-r1-0528", {"thinking": True}, f"{V3_CHAT}<think>\n"),
        ("deepseek-v3.1", {}, f"{V31_CHAT}</think>"),
        ("deepseek-v3.1", {"thinking": True}, f"{V31_CHAT}<think>"),
        ("deepseek-v3.2", {}, f"{V31_CHAT}</think>"),
        ("deepseek-v3.2", {"thinking": True}, f"{V31_CHAT}<think>"),
        ("deepseek-v4", {}, f"{V31_CHAT}</think>"),
        ("deepseek-v4", {"thinking": True}, f"{V31_CHAT}<think>"),
        ("deepseek-v4", {"thinking": True, "reasoning_effort": "high"}, f"{V31_CHAT}<think>"),
        ("deepseek-v4-0731", {"reasoning_effort": "max"}, f"{V31_CHAT}</think>"),
    ],
)
def test_a_conversation(name: str, options: dict[str, Any], expected: str) -> None:
    assert family(name).render(CHAT, options=options) == expected
    closed = family(name).render(CHAT, options=options, add_generation_prompt=False)
    assert expected.startswith(closed)
    assert closed.endswith((S2, "S2\n\n"))


@pytest.mark.parametrize("name", ["deepseek-v2.5", "deepseek-v3", "deepseek-r1", "deepseek-r1-0528"])
def test_every_tool_turn_is_written_out_in_v3s_form(name: str) -> None:
    prompt = (
        f"{BOS}<｜User｜>U<｜Assistant｜><｜tool▁calls▁begin｜>"
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>\n'
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{{}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>{EOS}"
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>R1<｜tool▁output▁end｜>\n"
        "<｜tool▁output▁begin｜>R2<｜tool▁output▁end｜><｜tool▁outputs▁end｜>once more<｜tool▁calls▁begin｜>"
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>h\n```json\n{{}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>{EOS}"
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>R3<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    )
    assert family(name).render(TOOL_TURNS) == prompt
    after = [*TOOL_TURNS, {"role": "user", "content": "V"}]
    assert family(name).render(after).startswith(f"{prompt}<｜User｜>V<｜Assistant｜>")


@pytest.mark.parametrize("thinking", [True, False])
def test_every_tool_turn_is_written_out_in_v31s_form(thinking: bool) -> None:
    prompt = (
        f"{BOS}<｜User｜>U<｜Assistant｜></think><｜tool▁calls▁begin｜>"
        '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
        f"<｜tool▁call▁begin｜>g<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>{EOS}"
        "<｜tool▁output▁begin｜>R1<｜tool▁output▁end｜><｜tool▁output▁begin｜>R2<｜tool▁output▁end｜>once more"
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>h<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>{EOS}"
        "<｜tool▁output▁begin｜>R3<｜tool▁output▁end｜>"
    )
    assert family("deepseek-v3.1").render(TOOL_TURNS, options={"thinking": thinking}) == prompt
    after = [*TOOL_TURNS, {"role": "user", "content": "V"}]
    assert family("deepseek-v3.1").render(after) == f"{prompt}<｜User｜>V<｜Assistant｜></think>"


def test_v2_reports_that_it_supports_no_tools() -> None:
    with pytest.raises(RequestError, match="this model knows no tool calls"):
        family("deepseek-v2").render(TOOL_TURNS)
    assert not family("deepseek-v2").renders_tools


def test_v31_tools_are_described_as_its_model_card_asks() -> None:
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    assert family("deepseek-v3.1").render(chat, tools=TOOLS) == (
        f"{BOS}S\n\n## Tools\nYou have access to the following tools:\n\n### f\nDescription: D\n\n"
        'Parameters: {"type": "object"}\n\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n'
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>"
        "{{additional_tool_calls}}<｜tool▁calls▁end｜>\n\nWhere:\n\n"
        "- `tool_call_name` must be an exact match to one of the available tools\n"
        "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
        "- For multiple tool calls, chain them directly without separators or spaces\n"
        "<｜User｜>U<｜Assistant｜></think>"
    )


V32_TURNS = (
    "{}"
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
    '<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n'
    '</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    f"{EOS}\n\n<function_results>\n<result>R1</result>\n<result>R2</result>\n</function_results>\n\n"
    "{}once more\n\n"
    f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="h">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>{EOS}'
    "\n\n<function_results>\n<result>R3</result>\n</function_results>\n\n"
)


def test_v32_keeps_reasoning_until_the_next_user_turn() -> None:
    chat = [
        {**message, "reasoning_content": "hm"} if message["role"] == "assistant" else message for message in TOOL_TURNS
    ]
    begin, v32 = f"{BOS}<｜User｜>U<｜Assistant｜>", family("deepseek-v3.2")
    with_it = V32_TURNS.format("<think>hm</think>\n\n", "<think>hm</think>")
    without = V32_TURNS.format("</think>\n\n", "</think>")
    assert v32.render(chat, options={"thinking": True}) == f"{begin}{with_it}<think>"
    assert v32.render(chat) == f"{begin}{without}</think>"
    later = [*chat, {"role": "assistant", "content": "A", "reasoning_content": "hm"}, {"role": "user", "content": "V"}]
    shown = f"{begin}{without}</think>A{EOS}<｜User｜>V<｜Assistant｜><think>"
    assert v32.render(later, options={"thinking": True}) == shown


V4_TURNS = (
    "<｜User｜>U<｜Assistant｜>{}\n\n"
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
    '<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n'
    '</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
    f"{EOS}<｜User｜><tool_result>R1</tool_result>\n\n<tool_result>R2</tool_result><｜Assistant｜>"
    "{}once more\n\n"
    f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="h">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>{EOS}'
    "<｜User｜><tool_result>R3</tool_result>"
)


def test_v4_keeps_reasoning_where_tools_are_declared() -> None:
    chat = [
        {**message, "reasoning_content": "hm"} if message["role"] == "assistant" else message for message in TOOL_TURNS
    ]
    v4, hm = family("deepseek-v4"), "<think>hm</think>"
    thinking = {"thinking": True}
    shown = f"{V4_TURNS.format(hm, hm)}<｜Assistant｜><think>"
    assert v4.render(chat, options=thinking, tools=TOOLS).endswith(f"invoke tool calls.\n{shown}")
    assert v4.render(chat, options={**thinking, "drop_thinking": False}) == f"{BOS}{shown}"
    hidden = V4_TURNS.format("</think>", "</think>")
    assert v4.render(chat, options=thinking) == f"{BOS}{hidden}<｜Assistant｜><think>"
    assert v4.render(chat) == f"{BOS}{hidden}<｜Assistant｜></think>"
    # A message of the user after results belongs to the same turn.
    later = [*chat, {"role": "user", "content": "V"}]
    assert v4.render(later) == f"{BOS}{hidden}\n\nV<｜Assistant｜></think>"
    answered = [*chat, {"role": "assistant", "content": "A", "reasoning_content": "hm"}]
    assert v4.render(answered, options=thinking, add_generation_prompt=False) == (
        f"{BOS}{hidden}<｜Assistant｜>{hm}A{EOS}"
    )


def test_v4_asks_for_effort_before_all_else() -> None:
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    absolute, beyond = ("Reasoning Effort: " + text for text in ("Absolute maximum with no", "Beyond maximum — "))
    for name, effort, begin in (
        ("deepseek-v4", "max", absolute),
        ("deepseek-v4-0731", "high", absolute),
        ("deepseek-v4-0731", "max", beyond),
    ):
        prompt = family(name).render(chat, options={"thinking": True, "reasoning_effort": effort})
        assert prompt.startswith(BOS + begin)
        assert prompt.endswith(".\n\nS<｜User｜>U<｜Assistant｜><think>")
        assert family(name).render(chat, options={"reasoning_effort": effort}).startswith(f"{BOS}S<")


def test_v4_lists_tools_after_the_system_message() -> None:
    for system in ("S", ""):
        chat = [{"role": "system", "content": system}, {"role": "user", "content": "U"}]
        prompt = family("deepseek-v4").render(chat[0 if system else 1 :], tools=TOOLS)
        assert prompt.startswith(f"{BOS}{system}\n\n## Tools\n\nYou have access to a set of tools to help answer")
        assert (
            '(numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.\n\n'
            "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "
            "<think>...</think> BEFORE any tool calls or final response.\n\nOtherwise, output directly after </think> "
            "with tool calls or final response.\n\n### Available Tool Schemas\n\n"
            f"{json.dumps(TOOLS[0]['function'])}\n\nYou MUST strictly follow the above defined tool name and "
            "parameter schemas to invoke tool calls.\n<｜User｜>U<｜Assistant｜></think>"
        ) in prompt


def test_v32_marks_each_value_as_text_or_json() -> None:
    arguments = {"a": "5", "b": 5, "c": [True, None], "d": 'two\nlines "quoted"', "e": "世"}
    chat = [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "", "tool_calls": [call("f", arguments)]},
    ]
    prompt = family("deepseek-v3.2").render(chat, add_generation_prompt=False)
    values = (("a", "true", "5"), ("b", "false", "5"), ("c", "false", "[true, null]"))
    values = (*values, ("d", "true", arguments["d"]), ("e", "true", "世"))
    lines = [
        f'<｜DSML｜parameter name="{key}" string="{kind}">{text}</｜DSML｜parameter>\n' for key, kind, text in values
    ]
    assert f'<｜DSML｜invoke name="f">\n{"".join(lines)}</｜DSML｜invoke>\n' in prompt
    chat[1]["tool_calls"] = [call("f", "no JSON")]
    prompt = family("deepseek-v3.2").render(chat, add_generation_prompt=False)
    assert '<｜DSML｜parameter name="arguments" string="true">no JSON</｜DSML｜parameter>' in prompt


def test_v32_lists_tools_after_two_line_breaks_with_or_without_a_system_message() -> None:
    for system in ("S", ""):
        chat = [{"role": "system", "content": system}, {"role": "user", "content": "U"}]
        prompt = family("deepseek-v3.2").render(chat[0 if system else 1 :], tools=TOOLS)
        assert prompt.startswith(f"{BOS}{system}\n\n## Tools\nYou have access to a set of tools")
        listed = json.dumps(TOOLS[0]["function"])
        assert prompt.endswith(f"<functions>\n{listed}\n</functions>\n<｜User｜>U<｜Assistant｜></think>")


def test_a_file_without_a_template_gets_v32s_or_v4s_if_the_vocabulary_matches() -> None:
    tokens = ("<think>", "</think>", "<｜User｜>", "<｜tool▁calls▁begin｜>", "｜DSML｜")
    architecture = {"general.architecture": "deepseek32"}
    text = load_text(None, byte_metadata(user_defined=tokens) | architecture, "m.gguf")
    assert text.template_source == "deepseek-v3.2"
    dense = byte_metadata(user_defined=tokens) | {"general.architecture": "deepseek2"}
    assert load_text(None, dense, "m.gguf").template_source == "deepseek-v3.2"
    assert text.require_template().has_thinking_switch
    output = [{"role": "user", "content": "a client's ｜DSML｜ is text"}]
    prompt = text.require_template().render(output, protect=text.tokenizer.protect)
    assert text.tokenizer.id_of("｜DSML｜") not in text.tokenizer.encode_prompt(prompt)
    assert load_text(None, byte_metadata(user_defined=tokens[:4]) | architecture, "m.gguf").template is None
    newer = byte_metadata(user_defined=(*tokens, "<｜latest_reminder｜>")) | {"general.architecture": "deepseek4"}
    assert load_text(None, newer, "m.gguf").template_source == "deepseek-v4"


def test_v3_tools_are_laid_out_as_v25s_model_card_shows() -> None:
    prompt = family("deepseek-v3").render([{"role": "user", "content": "U"}], tools=TOOLS)
    listed = json.dumps(TOOLS[0]["function"], indent=4)
    assert prompt.startswith(
        f"{BOS}## Tools\n\n### Function\n\nYou have the following functions available:\n\n"
        f"- `f`:\n```json\n{listed}\n```\n"
    )
    assert prompt.endswith("<｜User｜>U<｜Assistant｜>")
    assert family("deepseek-v3").renders_tools


@pytest.mark.parametrize(
    ("name", "message", "options", "tail"),
    [
        ("deepseek-v2", {"content": "Once"}, {}, "Assistant: Once"),
        ("deepseek-v3", {"content": "Once"}, {}, "Once"),
        ("deepseek-r1", {"content": "Once"}, {}, "Once"),
        ("deepseek-v3", {"content": "Once", "reasoning_content": "hm"}, {}, "<think>\nhm\n</think>\n\nOnce"),
        ("deepseek-r1", {"content": "", "reasoning_content": "hm"}, {}, "<think>\nhm"),
        ("deepseek-r1", {"content": "<think>\nhm"}, {}, "<think>\nhm"),
        ("deepseek-v3.1", {"content": "Once"}, {}, "</think>Once"),
        ("deepseek-v3.1", {"content": "Once", "prefix": True}, {"thinking": True}, "<think>Once"),
        ("deepseek-v3.1", {"content": "Once", "reasoning": "hm"}, {}, "<think>\nhm\n</think>\n\nOnce"),
        ("deepseek-v3.2", {"content": "Once"}, {}, "</think>Once"),
        ("deepseek-v3.2", {"content": "Once", "prefix": True}, {"thinking": True}, "<think>Once"),
        ("deepseek-v4", {"content": "Once"}, {}, "</think>Once"),
        ("deepseek-v4", {"content": "Once", "prefix": True}, {"thinking": True}, "<think>Once"),
    ],
)
def test_a_last_message_is_continued(name: str, message: Any, options: Any, tail: str) -> None:
    chat = [{"role": "user", "content": "U"}, {"role": "assistant", **message}]
    prompt = family(name).render(chat, continue_final=True, options=options)
    assert prompt.endswith(f"U\n\n{tail}" if name == "deepseek-v2" else f"U<｜Assistant｜>{tail}")


@pytest.mark.parametrize(
    ("name", "options", "tail"),
    [
        ("deepseek-v3.2", {"thinking": True}, "<｜Assistant｜><think>hm</think>Once"),
        ("deepseek-v4", {"thinking": True}, "<｜Assistant｜><think>hm</think>Once"),
        ("glm-4.5", {}, "<|assistant|>\n<think>hm</think>\nOnce"),
        ("glm-4.7", {}, "<|assistant|><think>hm</think>Once"),
        ("qwen3", {}, "<|im_start|>assistant\n<think>\nhm\n</think>\n\nOnce"),
        ("qwen3.6", {}, "<|im_start|>assistant\n<think>\nhm\n</think>\n\nOnce"),
    ],
)
def test_reasoning_of_a_continued_message_is_written_as_the_template_writes_it(
    name: str, options: Any, tail: str
) -> None:
    chat: list[dict[str, Any]] = [{"role": "user", "content": "U"}]
    chat += [{"role": "assistant", "content": "Once", "reasoning_content": "hm"}]
    assert (
        family(name)
        .render(chat, continue_final=True, options=options)
        .endswith(f"U{tail}".replace("U<|im", "U<|im_end|>\n<|im"))
    )
    chat[-1]["content"] = ""
    assert family(name).render(chat, continue_final=True, options=options).endswith(tail.partition("hm")[0] + "hm")


def test_only_a_message_of_the_assistant_is_continued() -> None:
    with pytest.raises(RequestError, match=r"messages\.0\.role: only a message of the assistant"):
        family("deepseek-v3").render([{"role": "user", "content": "U"}], continue_final=True)
    with pytest.raises(RequestError, match="with tool calls cannot be continued"):
        family("deepseek-v3").render(TOOL_TURNS[:2], continue_final=True)


def test_the_published_v3_template_is_replaced() -> None:
    metadata = byte_metadata() | {"tokenizer.chat_template": PUBLISHED_V3["chat_template"]}
    text = load_text(None, metadata, "v3.gguf")
    assert text.template_source == "deepseek-v3, which corrects the one in v3.gguf (metadata)"
    assert text.require_template().source == source_of(RELEASES["deepseek-v3"][1])


def test_published_tokenizers_have_known_templates() -> None:
    for directory, name in ((V2_DIRECTORY, "deepseek-v2"), (V3_DIRECTORY, "deepseek-v3")):
        text = load_text(directory, {}, "m.gguf")
        assert text.template_source == f"{name}, which corrects the one in {directory}/tokenizer_config.json"


@pytest.mark.parametrize("messages", [CHAT[:2], CHAT[1:3], [CHAT[1], {"role": "assistant", "content": "A"}, CHAT[1]]])
def test_correct_output_of_the_published_template_is_unchanged(messages: list[dict[str, Any]]) -> None:
    for directory, name in ((V2_DIRECTORY, "deepseek-v2"), (V3_DIRECTORY, "deepseek-v3")):
        source = json.loads((directory / "tokenizer_config.json").read_text())["chat_template"]
        published = ChatTemplate(source, bos_token=BOS, eos_token=EOS)
        assert family(name).render(messages) == published.render(messages)


@pytest.mark.parametrize("levels", [64, 65, 900])
@pytest.mark.parametrize("name", ["qwen3-coder-next", "qwen3.6", "qwen3.8", "glm-4.7"])
def test_arguments_of_many_levels_are_written_as_they_are(name: str, levels: int) -> None:
    """No server error, although a recursive walk would exceed the recursion limit."""
    text = load_text(None, vocabulary_of(name), "m.gguf", name)
    arguments = '{"a":' * levels + "1" + "}" * levels
    turns = [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "", "tool_calls": [call("f", arguments)]},
    ]
    prompt = text.require_template().render(turns, protect=text.tokenizer.protect)
    assert (arguments in prompt) == (levels > 64)


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "qwen3.6", "step-3.5-flash"])
def test_a_result_in_a_users_message_is_no_question(name: str) -> None:
    """Even if it contains the spelling of tokens that a client may not write."""
    text = load_text(None, vocabulary_of(name, "<tool_response>", "</tool_response>"), "m.gguf", name)
    template, protect = text.require_template(), text.tokenizer.protect
    chat = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A", "reasoning_content": "R1"}]
    result = {"role": "user", "content": "<tool_response>\n1\n</tool_response>"}
    prompt = template.render([*chat, result], protect=protect)
    assert "R1" in prompt
    assert text.tokenizer.id_of("<tool_response>") not in text.tokenizer.encode_prompt(prompt)
    assert "R1" not in template.render([*chat, chat[0]], protect=protect)


def test_a_fingerprint_is_stable_under_conversion() -> None:
    published = PUBLISHED_V3["chat_template"]
    indented = published.replace("{%- for", "\n    {% for").replace("-%}", "%}").replace("\\n", "\n")
    assert fingerprint(indented) == fingerprint(published)
    assert fingerprint(published.replace("<｜User｜>", "<｜user｜>")) != fingerprint(published)


@pytest.mark.parametrize(
    ("arch", "shown"),
    [
        ("v3", 'f\n```json\n{"a": 1}\n```'),
        ("v32", '<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>'),
        ("k2", '<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>'),
        ("qwen3", '{"name": "f", "arguments": {"a": 1}}'),
        ("qwen35", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"),
        ("glm45", "<arg_key>a</arg_key><arg_value>1</arg_value>"),
        ("glm5", "<arg_key>a</arg_key><arg_value>1</arg_value>"),
        ("minimaxm2", '<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>'),
        ("laguna", "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"),
        ("mimov2", "<function=f>\n<parameter=a>1</parameter>\n</function>"),
        ("hy3", "<arg_key:opensource>a</arg_key:opensource>\n<arg_value:opensource>1</arg_value:opensource>"),
        ("mistral4", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}</s>'),
        ("step35", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"),
    ],
)
def test_built_in_templates_write_earlier_calls_in_the_models_form(tmp_path: Path, arch: str, shown: str) -> None:
    text = load_text(None, open_gguf(write_tiny_model(tmp_path, arch=arch).gguf).metadata, "m.gguf")
    assert text.template_source == "m.gguf (metadata)"
    template = text.require_template()
    assert shown in template.render(TOOL_TURNS)
    assert (template.release is None) == (arch == "v3")


def test_releases_with_the_same_template_are_not_distinguished_by_options() -> None:
    assert release_of(source_of(RELEASES["qwen3-thinking-2507"][1])) == RELEASES["qwen3"][1]
    assert release_of(source_of(RELEASES["glm-4.7"][1])) == RELEASES["glm-4.7"][1]


def test_an_unknown_template_is_used_unchanged() -> None:
    text = load_text(None, byte_metadata() | {"tokenizer.chat_template": "own"}, "m.gguf")
    assert release_of("own") is None
    assert (text.require_template().source, text.template_source) == ("own", "m.gguf (metadata)")


def test_the_operator_chooses_a_template_by_name_or_file(tmp_path: Path) -> None:
    metadata = vocabulary_of("deepseek-r1") | {"tokenizer.chat_template": "own"}
    text = load_text(None, metadata, "m.gguf", "deepseek-r1")
    assert text.template_source == "deepseek-r1"
    assert text.require_template().render([{"role": "user", "content": "U"}]).endswith("<think>\n")
    file = tmp_path / "mine.jinja"
    file.write_text("mine")
    assert load_text(None, metadata, "m.gguf", str(file)).require_template().render(CHAT) == "mine"
    with pytest.raises(ConfigError, match=r"deepseek-r9: neither a file .* nor one of deepseek-v2, "):
        load_text(None, metadata, "m.gguf", "deepseek-r9")


@pytest.mark.parametrize("name", [name for name in RELEASES if name != "deepseek-v2"])
def test_a_chosen_template_of_another_family_is_refused_by_its_tokens(name: str) -> None:
    """DeepSeek V2's is the only one that writes no tokens but BOS and EOS."""
    assert load_text(None, vocabulary_of(name), "m.gguf", name).template_source == name
    tokens = ", ".join(token for token in RELEASES[name][0].vocabulary if token in source_of(RELEASES[name][1]))
    message = rf"^chat_template={re.escape(name)}: writes {re.escape(tokens)}, which this model's vocabulary lacks; "
    with pytest.raises(ConfigError, match=f"{message}leave the option out or choose deepseek-v2$"):
        load_text(None, byte_metadata() | {"general.architecture": "deepseek2"}, "m.gguf", name)


def test_a_refused_template_names_those_of_the_models_family() -> None:
    with pytest.raises(ConfigError, match=r"writes <｜hy_User:opensource｜>, .* or choose gpt-oss$"):
        load_text(None, vocabulary_of("gpt-oss"), "m.gguf", "hy3")
    assert load_text(None, vocabulary_of("gpt-oss"), "m.gguf", "deepseek-v2").template_source == "deepseek-v2"


def kimi(name: str) -> ChatTemplate:
    chosen = RELEASES[name][1]
    return ChatTemplate(source_of(chosen), bos_token=BOS, eos_token=EOS, name=name, release=chosen, numbers_calls=True)


KIMI_CALLS = (
    "<|im_assistant|>assistant<|im_middle|>{}<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    '<|tool_call_argument_begin|>{{"a": 1}}<|tool_call_end|>'
    "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{{}}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
    "<|im_system|>tool<|im_middle|>## Return of functions.f:0\nR1<|im_end|>"
    "<|im_system|>tool<|im_middle|>## Return of functions.g:1\nR2<|im_end|>"
    "<|im_assistant|>assistant<|im_middle|>{}once more<|tool_calls_section_begin|><|tool_call_begin|>functions.h:2"
    "<|tool_call_argument_begin|>{{}}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
    "<|im_system|>tool<|im_middle|>## Return of functions.h:2\nR3<|im_end|>"
)


@pytest.mark.parametrize(("name", "break_", "thought"), [("kimi-k2", "\n", ""), ("kimi-k2-thinking", "", "hm")])
def test_kimi_names_the_calls_of_another_server(name: str, break_: str, thought: str) -> None:
    turns = [*TOOL_TURNS[:1], {**TOOL_TURNS[1], "reasoning": "hm"}, *TOOL_TURNS[2:]]
    shown = [f"<think>{thought}</think>", "<think></think>"] if thought else ["", ""]
    prompt = (
        "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>"
        f"{break_}<|im_user|>user<|im_middle|>U<|im_end|>{KIMI_CALLS.format(*shown)}"
        "<|im_assistant|>assistant<|im_middle|>"
    )
    assert kimi(name).render(turns) == prompt


def test_kimi_results_are_matched_by_call_id_or_order() -> None:
    requested = {"role": "assistant", "content": None, "tool_calls": [call("f", {}), call("g", {})]}
    results: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": "g", "content": "RG"},
        {"role": "tool", "content": "RF"},
        {"role": "tool", "name": "h", "content": "RH"},
    ]
    prompt = kimi("kimi-k2").render([{"role": "system", "content": "S"}, requested, *results])
    assert [piece.split("<")[0] for piece in prompt.split("## Return of ")[1:]] == [
        "functions.g:1\nRG",
        "functions.f:0\nRF",
        "functions.h:2\nRH",
    ]


def test_kimi_shows_reasoning_since_the_last_answer() -> None:
    chat = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U1"},
        {"role": "assistant", "content": "A1", "reasoning_content": "old"},
        {"role": "user", "content": "U2", "name": "Ada"},
        {"role": "assistant", "content": "A2", "reasoning_content": "old too"},
        {"role": "user", "content": "U3"},
        {"role": "assistant", "content": "", "tool_calls": [call("f", {})], "reasoning_content": "new"},
    ]
    prompt = kimi("kimi-k2-thinking").render(chat)
    assert "old" not in prompt
    assert "<|im_user|>Ada<|im_middle|>U2" in prompt
    assert "<think>new</think><|tool_calls_section_begin|>" in prompt


def test_a_kimi_vocabulary_numbers_calls_in_a_template_that_writes_the_clients_ids() -> None:
    marks = ("<|im_middle|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>")
    marks += ("<|tool_call_end|>", "<|tool_call_argument_begin|>", "<think>", "</think>")
    calls = "{% for c in m.tool_calls or [] %}{{ c.id }} {% endfor %}"
    source = f"{{%- for m in messages %}}{calls}{{{{ m.tool_call_id }}}} {{% endfor %}}"
    metadata = byte_metadata("kimi-k2", user_defined=marks) | {"tokenizer.chat_template": source}
    prompt = load_text(None, metadata, "kimi.gguf").require_template().render(TOOL_TURNS)
    assert prompt.split() == [
        *("functions.f:0", "functions.g:1", "functions.f:0", "functions.g:1"),
        *("functions.h:2", "functions.h:2"),
    ]


def test_k2_thinkings_replies_begin_as_reasoning() -> None:
    assert RELEASES["kimi-k2-thinking"][1].thinks
    assert not RELEASES["kimi-k2"][1].thinks


def test_families_with_text_calls_write_non_object_arguments_unchanged() -> None:
    turns = [*TOOL_TURNS[:1], {"role": "assistant", "content": "", "tool_calls": [call("f", "no JSON")]}]
    for name, written in (
        ("qwen3", '{"name": "f", "arguments": no JSON}'),
        ("qwen3-coder", "<function=f>\nno JSON\n</function>"),
        ("qwen3-coder-next", "<function=f>\nno JSON\n</function>"),
        ("qwen3.5", "<function=f>\nno JSON\n</function>"),
        ("glm-4.5", "<tool_call>f\nno JSON\n</tool_call>"),
        ("glm-4.7", "<tool_call>fno JSON</tool_call>"),
        ("minimax-m2", '<invoke name="f">\nno JSON\n</invoke>'),
        ("mimo-v2.5", "<function=f>\nno JSON\n</function>"),
        ("laguna-xs-2.1", "<tool_call>f\nno JSON\n</tool_call>"),
        ("laguna-s-2.1", "<tool_call>fno JSON</tool_call>"),
        ("hy3", "<tool_call:opensource>f<tool_sep:opensource>\nno JSON\n</tool_call:opensource>"),
        ("step-3.5-flash", "<tool_call>\n<function=f>\nno JSON\n</function>\n</tool_call>"),
        ("mistral-large-3", "[TOOL_CALLS]f[ARGS]no JSON"),
    ):
        assert written in family(name).render(turns)


@pytest.mark.parametrize(
    "name",
    [
        *("qwen3", "qwen3-coder", "glm-4.5", "glm-4.7", "step-3.5-flash", "mimo-v2.5", "mistral-large-3"),
        *("laguna-xs.2", "laguna-xs-2.1", "laguna-s-2.1", "qwen3-next-instruct", "qwen3-coder-next"),
    ],
)
def test_families_write_late_instructions_in_their_place(name: str) -> None:
    prompt = family(name).render(CHAT)
    assert prompt.index("A1") < prompt.index("U2") < prompt.index("S2")
    assert "system-reminder" not in prompt


@pytest.mark.parametrize(
    ("name", "options", "tail"),
    [
        ("qwen3", {}, "<|im_start|>assistant\n"),
        ("qwen3", {"enable_thinking": False}, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ("qwen3-instruct-2507", {"enable_thinking": False}, "<|im_start|>assistant\n"),
        ("qwen3-thinking-2507", {"enable_thinking": False}, "<|im_start|>assistant\n<think>\n"),
        ("qwen3-coder", {}, "<|im_start|>assistant\n"),
        ("qwen3-coder-next", {"enable_thinking": True}, "U<|im_end|>\n<|im_start|>assistant\n"),
        ("qwen3-next-instruct", {"enable_thinking": True}, "U<|im_end|>\n<|im_start|>assistant\n"),
        *(
            (name, options, f"U<|im_end|>\n<|im_start|>assistant\n<think>\n{end}")
            for name in ("qwen3.5", "qwen3.6")
            for options, end in (
                ({}, ""),
                ({"enable_thinking": True, "preserve_thinking": True}, ""),
                ({"enable_thinking": False}, "\n</think>\n\n"),
            )
        ),
        ("glm-4.5", {}, "U<|assistant|>"),
        ("glm-4.5", {"enable_thinking": False}, "U/nothink<|assistant|>\n<think></think>"),
        ("glm-4.7", {}, "U<|assistant|><think>"),
        ("glm-4.7", {"enable_thinking": False}, "U<|assistant|></think>"),
        ("laguna-xs.2", {}, "<user>\nU\n</user>\n<assistant>\n</think>"),
        ("laguna-xs-2.1", {"enable_thinking": True}, "<user>\nU\n</user>\n<assistant>\n<think>"),
        ("laguna-s-2.1", {}, "<user>U</user>\n<assistant><think>"),
        ("laguna-s-2.1", {"enable_thinking": False}, "<user>U</user>\n<assistant></think>"),
        ("mimo-v2.5", {}, "<|im_start|>user\nU<|im_end|><|im_start|>assistant\n"),
        ("mimo-v2.5", {"enable_thinking": False}, "<|im_start|>assistant\n<think></think>"),
        ("mistral-large-3", {}, f"{BOS}[INST]U[/INST]"),
        ("mistral-large-3", {"reasoning_effort": "high"}, f"{BOS}[INST]U[/INST]"),
        *(
            ("mistral-small-4", options, f'{{"reasoning_effort": "{effort}"}}[/MODEL_SETTINGS][INST]U[/INST]')
            for options, effort in (
                ({}, "none"),
                ({"reasoning_effort": "none"}, "none"),
                ({"reasoning_effort": "low"}, "high"),
                ({"reasoning_effort": "high"}, "high"),
                ({"reasoning_effort": "high", "enable_thinking": False}, "none"),
                ({"enable_thinking": True}, "high"),
            )
        ),
        ("minimax-m2", {}, "]~b]user\nU[e~[\n]~b]ai\n<think>\n"),
        ("minimax-m2", {"enable_thinking": False}, "]~b]ai\n<think>\n"),
        (
            "hy3",
            {},
            "effort:no_think<｜hy_User:opensource｜>U<｜hy_Assistant:opensource｜><think:opensource></think:opensource>",
        ),
        (
            "hy3",
            {"reasoning_effort": "low"},
            "effort:low<｜hy_User:opensource｜>U<｜hy_Assistant:opensource｜><think:opensource>",
        ),
        (
            "hy3",
            {"reasoning_effort": "minimal", "enable_thinking": True},
            "<｜hy_Assistant:opensource｜><think:opensource>",
        ),
        ("hy3", {"reasoning_effort": "high", "enable_thinking": False}, "<think:opensource></think:opensource>"),
        ("hy3", {"enable_thinking": True}, "<｜hy_Assistant:opensource｜><think:opensource>"),
        ("hy3", {"reasoning_effort": "none", "enable_thinking": False}, "<think:opensource></think:opensource>"),
    ],
)
def test_the_ends_of_prompts_by_the_switch(name: str, options: dict[str, Any], tail: str) -> None:
    assert family(name).render([{"role": "user", "content": "U"}], options=options).endswith(tail)


@pytest.mark.parametrize(
    "name",
    [
        *("qwen3", "qwen3-coder", "glm-4.5", "glm-4.7", "kimi-k2", "minimax-m2", "hy3", "step-3.5-flash", "mimo-v2.5"),
        *("laguna-xs-2.1", "laguna-s-2.1", "mistral-small-4", "qwen3-next-instruct", "qwen3-coder-next", "qwen3.5"),
    ],
)
def test_other_families_last_messages_are_continued(name: str) -> None:
    chat = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "Once"}]
    assert family(name).render(chat, continue_final=True).endswith("Once")


@pytest.mark.parametrize(
    ("requested", "effort"),
    [("none", "no_think"), ("minimal", "low"), ("low", "low"), ("medium", "high"), ("high", "high"), ("max", "high")],
)
def test_hunyuan_gets_the_nearest_of_its_levels_of_effort(requested: str, effort: str) -> None:
    for tools in (None, TOOLS):
        prompt = family("hy3").render(
            [{"role": "user", "content": "U"}], tools=tools, options={"reasoning_effort": requested}
        )
        assert f"<｜reasoning_mode:opensource｜>reasoning_effort:{effort}<｜hy_User:opensource｜>U" in prompt


def test_a_forced_thought_and_a_closed_one_have_the_familys_own_tags(tmp_path: Path) -> None:
    text = load_text(None, open_gguf(write_tiny_model(tmp_path, arch="hy3").gguf).metadata, "m.gguf")
    template = text.require_template()
    prompt = template.render([{"role": "user", "content": "U"}])
    begin, end = "<think:opensource>", "</think:opensource>"
    assert prompt.endswith(f"<｜hy_Assistant:opensource｜>{begin}{end}")
    assert close_thinking(prompt, template.tags, is_forced=True) == prompt
    assert force_think(prompt, template.tags) == prompt.removesuffix(end) + "\n"
    assert close_thinking(force_think(prompt, template.tags), template.tags, is_forced=False).endswith(
        f"{begin}\n\n{end}\n\n"
    )


def test_hunyuan_refuses_an_effort_that_no_one_knows() -> None:
    with pytest.raises(RequestError, match="reasoning_effort is some; expected no_think, low or high"):
        family("hy3").render([{"role": "user", "content": "U"}], options={"reasoning_effort": "some"})


def without_template(folder: Path, arch: str) -> Text:
    """The text of a tiny model whose file has no template."""
    metadata = dict(open_gguf(write_tiny_model(folder, arch=arch).gguf).metadata)
    metadata.pop("tokenizer.chat_template", None)
    return load_text(None, metadata, "m.gguf")


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("mistrallarge3", "mistral-large-3"),
        ("mistral4", "mistral-small-4"),
        ("gptoss", "gpt-oss"),
        ("step35", "step-3.5-flash"),
        ("hy3", "hy3"),
        ("minimaxm2", "minimax-m2"),
        ("mimov2", "mimo-v2.5"),
        ("glm47flash", "glm-4.7"),
        ("qwen38flashnext", "qwen3.8"),
    ],
)
def test_files_without_a_template_get_their_models(tmp_path: Path, arch: str, name: str) -> None:
    text = without_template(tmp_path, arch)
    assert (text.template_source, text.require_template().release) == (name, RELEASES[name][1])


@pytest.mark.parametrize(
    ("arch", "names"),
    [
        ("laguna", "laguna-xs.2, laguna-xs-2.1 or laguna-s-2.1"),
        ("qwen3", "qwen3, qwen3-instruct-2507, qwen3-thinking-2507 or qwen3-coder"),
        ("qwen3next", "qwen3-thinking-2507, qwen3-next-instruct or qwen3-coder-next"),
        ("qwen35", "qwen3.5 or qwen3.6"),
        ("glm45", "glm-4.5 or glm-4.7"),
        ("glm5", "FILE"),
        ("glm53flash", "FILE"),
        ("v2lite", "deepseek-v2"),
    ],
)
def test_a_chat_without_a_template_is_refused_with_the_templates_of_the_architecture(
    tmp_path: Path, arch: str, names: str
) -> None:
    text = without_template(tmp_path, arch)
    with pytest.raises(RequestError, match=rf"--chat_template {re.escape(names)}$"):
        text.require_template()


def test_releases_name_architectures_that_are_served() -> None:
    named = {each for _, release in RELEASES.values() for each in release.architectures}
    assert named | {family.architecture for family in FAMILIES.values()} <= ARCHITECTURES.keys()


def test_a_familys_choice_is_one_of_several_templates() -> None:
    for family in FAMILIES.values():
        if family.without_template is not None:
            names = templates_for(family.reply, family.architecture)
            assert len(names) > 1
            assert family.without_template in names


def test_mistral_small_4_refuses_an_effort_that_no_one_knows() -> None:
    with pytest.raises(RequestError, match="reasoning_effort is some; expected none or high"):
        family("mistral-small-4").render([{"role": "user", "content": "U"}], options={"reasoning_effort": "some"})


def test_mistral_joins_messages_of_one_role_and_writes_tools_and_reasoning() -> None:
    chat = [
        *({"role": "user", "content": text} for text in ("U1", "U2")),
        {"role": "assistant", "content": "A", "reasoning_content": "R"},
        {"role": "user", "content": "U3"},
    ]
    prompt = family("mistral-small-4").render(chat, tools=TOOLS[:1])
    tools, settings = f"[AVAILABLE_TOOLS]{json.dumps(TOOLS[:1])}[/AVAILABLE_TOOLS]", '{"reasoning_effort": "none"}'
    begin = f"{BOS}{tools}[MODEL_SETTINGS]{settings}[/MODEL_SETTINGS]"
    assert prompt == f"{begin}[INST]U1\n\nU2[/INST][THINK]R[/THINK]A{EOS}[INST]U3[/INST]"


def test_minimax_and_hunyuan_write_leading_instructions_first_and_late_ones_in_order() -> None:
    chat = [{"role": "system", "content": "S0"}, *CHAT]
    minimax = family("minimax-m2").render(chat)
    assert minimax.startswith("]~!b[]~b]system\nS0\n\nS1[e~[\n]~b]user\nU1[e~[\n]~b]ai\nA1[e~[\n")
    assert f"]~b]user\nU2\n\n{S2}[e~[\n" in minimax
    hunyuan = family("hy3").render(chat)
    assert hunyuan.startswith("<｜hy_begin_of_sentence:opensource｜>S0S1<｜reasoning_mode:opensource｜>")
    assert f"<｜hy_User:opensource｜>U2\n\n{S2}<｜hy_Assistant:opensource｜>" in hunyuan


def test_minimax_shows_reasoning_since_the_last_question_and_hunyuan_all_of_it_with_tools() -> None:
    chat = [
        {"role": "user", "content": "U1"},
        {"role": "assistant", "content": "A1", "reasoning_content": "old"},
        {"role": "user", "content": "U2"},
        {"role": "assistant", "content": "", "reasoning_content": "new", "tool_calls": [call("f", {})]},
        {"role": "tool", "tool_call_id": "f", "content": "R"},
    ]
    for name, tools, old in (("minimax-m2", TOOLS, False), ("hy3", None, False), ("hy3", TOOLS, True)):
        prompt = family(name).render(chat, tools=tools)
        assert ("old" in prompt, "new" in prompt) == (old, True)


def test_mimo_shows_all_reasoning_unless_disabled() -> None:
    chat = [
        {"role": "user", "content": "U1"},
        {"role": "assistant", "content": "A1", "reasoning_content": "old"},
        {"role": "user", "content": "U2"},
        {"role": "assistant", "content": "", "reasoning_content": "new", "tool_calls": [call("f", {})]},
        {"role": "tool", "tool_call_id": "f", "content": "R"},
    ]
    kept = family("mimo-v2.5").render(chat)
    assert "<think>old</think>A1<|im_end|>" in kept
    dropped = family("mimo-v2.5").render(chat, options={"keep_all_reasoning": False})
    assert dropped == kept.replace("old", "")
    assert "<think>new</think><tool_call>" in dropped
