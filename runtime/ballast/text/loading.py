"""Everything about text that comes with a model: tokenizer, chat template, generation defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from ballast.errors import ModelError, RequestError
from ballast.text.chat_template import ChatTemplate
from ballast.text.gguf_vocab import tokenizer_from_gguf
from ballast.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Text:
    """What one model needs between text and tokens."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None: the model has no chat template, and chat requests are refused."""
    tokenizer_source: str
    """For the log: where the tokenizer came from, and why from there."""
    template_source: str
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)
    """generation_config.json as it is; empty when there is none."""

    def require_template(self) -> ChatTemplate:
        """The template. Raises RequestError when the model has none."""
        if self.template is None:
            raise RequestError(
                "this model has no chat template, so chat requests cannot be answered; use /v1/completions, or start "
                "the server with --model_path and a directory that holds chat_template.jinja or tokenizer_config.json",
                code="no_chat_template",
            )
        return self.template


def load_text(model_path: Path | None, metadata: Mapping[str, Any], gguf_name: str) -> Text:
    """Tokenizer and template from `model_path` where it has them, else from the GGUF's `metadata`.

    `gguf_name` is for messages. Raises ModelError when neither has a tokenizer, or a file cannot be used.
    """
    config = _read_json(model_path, "tokenizer_config.json")
    generation = _read_json(model_path, "generation_config.json")
    tokenizer, tokenizer_source = _load_tokenizer(model_path, config, generation, metadata, gguf_name)
    template, template_source = _load_template(model_path, config, metadata, gguf_name, tokenizer)
    return Text(tokenizer, template, tokenizer_source, template_source, generation)


def _load_tokenizer(
    model_path: Path | None,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    metadata: Mapping[str, Any],
    gguf_name: str,
) -> tuple[Tokenizer, str]:
    file = None if model_path is None else model_path / "tokenizer.json"
    if file is not None and file.is_file():
        return _tokenizer_from_json(file, config, generation, metadata), str(file)
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None or kind == "none":
        holds = "has no tokenizer" if kind is None else "says that it has no tokenizer (tokenizer.ggml.model=none)"
        raise ModelError(
            gguf_name,
            f"the file {holds}, and {_no_tokenizer_json(model_path)}; "
            "pass --model_path with a directory that holds the model's tokenizer.json",
        )
    return (
        tokenizer_from_gguf(metadata, gguf_name),
        f"{gguf_name} (metadata), because {_no_tokenizer_json(model_path)}",
    )


def _no_tokenizer_json(model_path: Path | None) -> str:
    return "--model_path is not given" if model_path is None else f"{model_path} has no tokenizer.json"


def _tokenizer_from_json(
    file: Path, config: Mapping[str, Any], generation: Mapping[str, Any], metadata: Mapping[str, Any]
) -> Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more specific
        raise ModelError(file, f"not a tokenizer.json that can be read: {error}") from error
    bos_id, eos_id = (_special_id(key, backend, config, generation, metadata) for key in ("bos", "eos"))
    end_ids = generation.get("eos_token_id", [])
    ends = [eos_id, *(end_ids if isinstance(end_ids, list) else [end_ids])]
    # Without the key, the file itself says what it would put in front of a text.
    adds_bos = config.get("add_bos_token", bos_id in backend.encode("", add_special_tokens=True).ids)
    return Tokenizer(
        backend,
        bos_id=bos_id,
        eos_ids=[end for end in ends if end is not None],
        add_bos=bool(adds_bos),
        name=str(file),
    )


def _special_id(
    key: str,
    backend: tokenizers.Tokenizer,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    metadata: Mapping[str, Any],
) -> int | None:
    """The id of the `bos` or `eos` token, from the first file that names it."""
    text = _token_text(config.get(f"{key}_token"))
    if text is not None:
        return backend.token_to_id(text)
    ids = generation.get(f"{key}_token_id", metadata.get(f"tokenizer.ggml.{key}_token_id"))
    return ids[0] if isinstance(ids, list) else ids


def _load_template(
    model_path: Path | None,
    config: Mapping[str, Any],
    metadata: Mapping[str, Any],
    gguf_name: str,
    tokenizer: Tokenizer,
) -> tuple[ChatTemplate | None, str]:
    found = _find_template(model_path, config, metadata, gguf_name)
    if found is None:
        return None, "none: chat requests will be refused"
    source, name = found
    bos_token = _token_text(config.get("bos_token")) or _text_of(tokenizer, tokenizer.bos_id)
    eos_token = _token_text(config.get("eos_token")) or _text_of(tokenizer, tokenizer.eos_id)
    return ChatTemplate(source, bos_token=bos_token, eos_token=eos_token, name=name), name


def _find_template(
    model_path: Path | None, config: Mapping[str, Any], metadata: Mapping[str, Any], gguf_name: str
) -> tuple[str, str] | None:
    """(source, where it was), from the most specific place to the least."""
    if model_path is not None:
        file = model_path / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8"), str(file)
        source = _default_template(config.get("chat_template"))
        if source is not None:
            return source, str(model_path / "tokenizer_config.json")
    source = metadata.get("tokenizer.chat_template")
    return None if source is None else (str(source), f"{gguf_name} (metadata)")


def _default_template(value: Any) -> str | None:
    """`chat_template` of tokenizer_config.json: one template, or a list of named ones."""
    if isinstance(value, list):
        value = {entry["name"]: entry["template"] for entry in value}.get("default")
    return None if value is None else str(value)


def _token_text(value: Any) -> str | None:
    """A token in tokenizer_config.json: a string, or an object with its content."""
    if isinstance(value, Mapping):
        value = value["content"]
    return None if value is None else str(value)


def _text_of(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.decode([token_id], skip_control=False)


def _read_json(model_path: Path | None, name: str) -> Mapping[str, Any]:
    """The object in a file of the directory; empty when there is no such file."""
    if model_path is None or not (model_path / name).is_file():
        return {}
    try:
        value = json.loads((model_path / name).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(model_path / name, f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(model_path / name, "must hold a JSON object")
    return value
