"""Loads what a model brings for text: tokenizer, chat template, generation defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from ballast.errors import ConfigError, ModelError, RequestError
from ballast.text.chat_template import ChatTemplate
from ballast.text.families import FAMILIES, family_of
from ballast.text.gguf_vocab import tokenizer_from_gguf
from ballast.text.ids_only import IdsOnly, no_vocabulary
from ballast.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Text:
    """One model's tokenizer and chat template."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None: the model has none, and chat requests are refused."""
    tokenizer_source: str
    """For the log: where the tokenizer came from, and why from there."""
    template_source: str
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)
    """The content of generation_config.json; empty without one."""

    def require_template(self) -> ChatTemplate:
        """The template. Raises RequestError when the model has none."""
        if not self.tokenizer.has_vocabulary:
            raise no_vocabulary()
        if self.template is None:
            raise RequestError(
                "this model has no chat template, so chat requests cannot be answered; use /v1/completions, or start "
                "the server with --model_path and a directory that holds chat_template.jinja or tokenizer_config.json",
                code="no_chat_template",
            )
        return self.template


def load_text(
    model_path: Path | None,
    metadata: Mapping[str, Any],
    gguf_name: str,
    chat_template: str | None = None,
    num_ids: int | None = None,
) -> Text:
    """Tokenizer and template from the directory `model_path` if it has them, else from the GGUF's `metadata`.

    `chat_template` replaces the model's own template: the name of one of Ballast's, or a file. `gguf_name` is for
    messages. `num_ids` is the number of tokens that the model knows; if given, a model without a vocabulary is served
    with token ids alone.
    Raises ModelError when neither place has a tokenizer or a file cannot be used, ConfigError for `chat_template`.
    """
    directory = _Directory.read(model_path)
    tokenizer, tokenizer_source = _load_tokenizer(directory, metadata, gguf_name, num_ids)
    if not tokenizer.has_vocabulary:
        return Text(tokenizer, None, tokenizer_source, "none: there is no vocabulary", directory.generation_config)
    found = _chosen_template(chat_template) if chat_template else _find_template(directory, metadata, gguf_name)
    template, template_source = _make_template(found, tokenizer)
    return Text(tokenizer, template, tokenizer_source, template_source, directory.generation_config)


@dataclass(frozen=True, slots=True)
class _Directory:
    """The model directory and its small JSON files. A missing file counts as an empty object."""

    path: Path | None
    tokenizer_config: Mapping[str, Any]
    generation_config: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path | None) -> _Directory:
        return cls(path, *(_read_json(path, name) for name in ("tokenizer_config.json", "generation_config.json")))

    def file(self, name: str) -> Path | None:
        """The path of a file; None if it does not exist."""
        return self.path / name if self.path is not None and (self.path / name).is_file() else None


def _load_tokenizer(
    directory: _Directory, metadata: Mapping[str, Any], gguf_name: str, num_ids: int | None
) -> tuple[Tokenizer, str]:
    """The tokenizer, and a description of where it came from and why."""
    file = directory.file("tokenizer.json")
    if file is not None:
        return _tokenizer_from_json(file, directory, metadata), str(file)
    path = directory.path
    why = "--model_path is not given" if path is None else f"{path} has no tokenizer.json"
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None or kind == "none":
        holds = "holds no tokenizer" if kind is None else "says tokenizer.ggml.model=none"
        if num_ids is not None:
            eos = metadata.get("tokenizer.ggml.eos_token_id")
            eos_ids = [eos] if isinstance(eos, int) and 0 <= eos < num_ids else []
            return IdsOnly(num_ids, eos_ids), f"none: the file {holds} and {why}; requests are token ids"
        raise ModelError(
            gguf_name,
            f"the file {holds} and {why}; pass --model_path with a directory that holds the model's tokenizer.json",
        )
    return tokenizer_from_gguf(metadata, gguf_name), f"{gguf_name} (metadata), because {why}"


def _tokenizer_from_json(file: Path, directory: _Directory, metadata: Mapping[str, Any]) -> Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more specific
        raise ModelError(file, f"not a tokenizer.json that can be read: {error}") from error
    bos_ids = _special_ids("bos", file, backend, directory, metadata)
    bos_id = bos_ids[0] if bos_ids else None
    # Without the key, ask the tokenizer itself: does it put BOS before an empty text?
    adds_bos = directory.tokenizer_config.get(
        "add_bos_token", bos_id in backend.encode("", add_special_tokens=True).ids
    )
    return Tokenizer(
        backend,
        bos_id=bos_id,
        eos_ids=_special_ids("eos", file, backend, directory, metadata),
        add_bos=bool(adds_bos),
        name=str(file),
    )


def _special_ids(
    kind: str, file: Path, backend: tokenizers.Tokenizer, directory: _Directory, metadata: Mapping[str, Any]
) -> list[int]:
    """Ids of the `bos` or `eos` tokens, from the files of the directory or, if they name none, from the GGUF."""
    ids: list[int] = []
    text = _token_text(directory.tokenizer_config.get(f"{kind}_token"))
    if text is not None:
        token_id = backend.token_to_id(text)
        if token_id is None:
            raise ModelError(file, f"{kind}_token {text!r} of tokenizer_config.json is not in the vocabulary")
        ids.append(token_id)
    key = f"{kind}_token_id"
    more = directory.generation_config.get(key)
    if more is None and not ids:
        more = metadata.get(f"tokenizer.ggml.{key}")
    for token_id in more if isinstance(more, list) else [] if more is None else [more]:
        if not isinstance(token_id, int):
            raise ModelError(file.parent / "generation_config.json", f"{key}={token_id!r} is not a token id")
        ids.append(token_id)
    return ids


def _make_template(found: tuple[str, str] | None, tokenizer: Tokenizer) -> tuple[ChatTemplate | None, str]:
    """The template, and where it came from."""
    if found is None:
        return None, "none: chat requests will be refused"
    source, name = found
    family = FAMILIES.get(name) or family_of(source)
    if family is not None and family.name != name:
        name = f"{family.name}, which corrects the one in {name}"
    bos_token, eos_token = (
        "" if token_id is None else tokenizer.decode([token_id], skip_control=False)
        for token_id in (tokenizer.bos_id, tokenizer.eos_id)
    )
    if family is not None:
        source = family.source()
    return ChatTemplate(source, bos_token=bos_token, eos_token=eos_token, name=name, family=family), name


def _chosen_template(choice: str) -> tuple[str, str]:
    """(source, name) of the template that `--chat_template` names."""
    if choice in FAMILIES:
        return FAMILIES[choice].source(), choice
    try:
        return Path(choice).read_text(encoding="utf-8"), choice
    except (OSError, ValueError) as error:
        raise ConfigError(
            "chat_template", choice, f"neither a file that can be read ({error}) nor one of {', '.join(FAMILIES)}"
        ) from error


def _find_template(directory: _Directory, metadata: Mapping[str, Any], gguf_name: str) -> tuple[str, str] | None:
    """(source, where it was found), looking in the most specific place first; None if there is no template."""
    file = directory.file("chat_template.jinja")
    if file is not None:
        return file.read_text(encoding="utf-8"), str(file)
    source = _default_template(directory.tokenizer_config.get("chat_template"))
    if source is not None:
        return source, f"{directory.path}/tokenizer_config.json"
    source = metadata.get("tokenizer.chat_template")
    return None if source is None else (str(source), f"{gguf_name} (metadata)")


def _default_template(value: Any) -> str | None:
    """`chat_template` of tokenizer_config.json: one template, or a list of named ones."""
    if isinstance(value, list):
        value = {entry.get("name"): entry.get("template") for entry in value}.get("default")
    return None if value is None else str(value)


def _token_text(value: Any) -> str | None:
    """A token in tokenizer_config.json: a string, or an object with its content."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return None if value is None else str(value)


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
