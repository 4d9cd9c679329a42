"""Loads a model's tokenizer, chat template and generation defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tokenizers

from ballast.documents.small_file import DocumentError
from ballast.errors import ConfigError, ModelError, RequestError, shown
from ballast.families.family import Release
from ballast.families.registry import RELEASES, is_own, release_of, source_of, templates_for, without_template
from ballast.text.chat_template import ChatTemplate
from ballast.text.fim import FimTokens, fim_tokens
from ballast.text.foreign.tokenizer import load_tokenizer_json
from ballast.text.gguf_vocab import optional_id, tokenizer_from_gguf
from ballast.text.ids_only import IdsOnly, no_vocabulary
from ballast.text.model_directory import ModelDirectory, read_template
from ballast.text.think_tags import tags_of
from ballast.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Text:
    """One model's tokenizer and chat template."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None: the model has none, and chat requests are refused."""
    tokenizer_source: str
    """For the log: the source of the tokenizer, with the reason."""
    template_source: str
    fim: FimTokens | None = None
    """The tokens of fill-in-the-middle prompts; None if the model has none."""
    fitting: Sequence[str] = ()
    """Names of Ballast's templates for this model."""

    def require_template(self) -> ChatTemplate:
        """The template. Raises RequestError when the model has none."""
        if not self.tokenizer.has_vocabulary:
            raise no_vocabulary()
        if self.template is None:
            raise RequestError(
                "this model has no chat template, so chat requests cannot be answered; use /v1/completions, or start "
                "the server with --model_path and a directory that holds chat_template.jinja or tokenizer_config.json, "
                f"or with --chat_template {_listed(self.fitting or ['FILE'])}",
                code="no_chat_template",
            )
        return self.template


def _fitting_templates(tokenizer: Tokenizer, architecture: str) -> list[str]:
    """The templates of the tokenizer's family and architecture whose tokens the vocabulary has."""
    return [name for name in templates_for(tokenizer.reply, architecture) if not _missing_tokens(name, tokenizer)]


def _missing_tokens(name: str, tokenizer: Tokenizer) -> list[str]:
    """The tokens of a release's template that identify its family and that the vocabulary lacks."""
    family, release = RELEASES[name]
    source = source_of(release)
    return [token for token in family.vocabulary if token in source and tokenizer.id_of(token) is None]


def _listed(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def load_text(
    model_path: Path | None,
    metadata: Mapping[str, Any],
    gguf_name: str,
    chat_template: str | None = None,
    num_ids: int | None = None,
    today: str | None = None,
) -> Text:
    """Tokenizer and template from the directory `model_path` if it has them, else from the GGUF's `metadata`.

    `chat_template` replaces the model's own template: the name of one of Ballast's, or a file. `gguf_name` is for
    messages. `num_ids` is the number of tokens that the model knows; if given, a model without a vocabulary is served
    with token ids alone. `today` is the date that the template reads, as YYYY-MM-DD; None: the clock's.
    Raises ModelError when neither place has a tokenizer or a file cannot be used, ConfigError for `chat_template`.
    """
    directory = ModelDirectory.read(model_path)
    tokenizer, tokenizer_source = _load_tokenizer(directory, metadata, gguf_name, num_ids)
    if not tokenizer.has_vocabulary:
        return Text(tokenizer, None, tokenizer_source, "none: there is no vocabulary")
    architecture = str(metadata.get("general.architecture"))
    fitting = _fitting_templates(tokenizer, architecture)
    if chat_template:
        found: tuple[str, str] | None = _chosen_template(chat_template, tokenizer, fitting)
    else:
        found = _find_template(directory, metadata, gguf_name)
    if found is None and (own := without_template(tokenizer.reply, architecture)) is not None:
        found = source_of(RELEASES[own][1]), own
    template, template_source = _make_template(found, tokenizer, today)
    return Text(tokenizer, template, tokenizer_source, template_source, fim_tokens(tokenizer, metadata), fitting)


def _load_tokenizer(
    directory: ModelDirectory, metadata: Mapping[str, Any], gguf_name: str, num_ids: int | None
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


def _tokenizer_from_json(file: Path, directory: ModelDirectory, metadata: Mapping[str, Any]) -> Tokenizer:
    loaded = load_tokenizer_json(file)
    backend = loaded.backend
    bos_ids = _special_ids("bos", file, backend, directory, metadata)
    bos_id = bos_ids[0] if bos_ids else None
    # Without the key, ask the tokenizer itself: does it put BOS before an empty text?
    adds_bos = directory.tokenizer_config.add_bos_token
    if adds_bos is None:
        adds_bos = bos_id in loaded.around_nothing
    return Tokenizer(
        backend,
        bos_id=bos_id,
        eos_ids=_special_ids("eos", file, backend, directory, metadata),
        add_bos=adds_bos,
        name=str(file),
        encoder=loaded.encoder,
    )


def _special_ids(
    kind: Literal["bos", "eos"],
    file: Path,
    backend: tokenizers.Tokenizer,
    directory: ModelDirectory,
    metadata: Mapping[str, Any],
) -> list[int]:
    """Ids of the `bos` or `eos` tokens, from the files of the directory or, if they name none, from the GGUF."""
    texts, ids = directory.tokenizer_config, directory.generation_config
    text = texts.bos_token if kind == "bos" else texts.eos_token
    more = ids.bos_token_id if kind == "bos" else ids.eos_token_id
    found: list[int] = []
    if text is not None:
        token_id = backend.token_to_id(text)
        if token_id is None:
            raise ModelError(
                file, f"{kind}_token {shown(repr(text))} of tokenizer_config.json is not in the vocabulary"
            )
        found.append(token_id)
    if more is None and text is None:
        in_gguf = optional_id(metadata, f"{kind}_token_id", "the GGUF's metadata")
        more = [] if in_gguf is None else [in_gguf]
    return [*found, *(more or [])]


def _make_template(
    found: tuple[str, str] | None, tokenizer: Tokenizer, today: str | None
) -> tuple[ChatTemplate | None, str]:
    """The template, and where it came from."""
    if found is None:
        return None, "none: chat requests will be refused"
    source, name = found
    release = RELEASES[name][1] if name in RELEASES else release_of(source)
    if release is not None and release.name != name and not is_own(source):
        name = f"{release.name}, which corrects the one in {name}"
    if release is not None:
        source = source_of(release)
    return template_for(tokenizer, source, name, release=release, today=today), name


def template_for(
    tokenizer: Tokenizer, source: str, name: str, *, release: Release | None = None, today: str | None = None
) -> ChatTemplate:
    """The template `source` for the replies of this tokenizer's family. Raises as `ChatTemplate` does."""
    bos_token, eos_token = (
        "" if token_id is None else tokenizer.decode([token_id], skip_control=False)
        for token_id in (tokenizer.bos_id, tokenizer.eos_id)
    )
    return ChatTemplate(
        source,
        bos_token=bos_token,
        eos_token=eos_token,
        name=name,
        release=release,
        numbers_calls=tokenizer.reply.numbers_calls,
        has_channels=tokenizer.reply.has_channels,
        tags=tags_of(tokenizer.reply),
        today=today,
    )


def _chosen_template(choice: str, tokenizer: Tokenizer, fitting: Sequence[str]) -> tuple[str, str]:
    """(source, name) of the template that `--chat_template` names. `fitting`: those that may be chosen instead."""
    if choice in RELEASES:
        if missing := _missing_tokens(choice, tokenizer):
            raise ConfigError(
                "chat_template",
                choice,
                f"writes {', '.join(missing)}, which this model's vocabulary lacks; leave the option out or choose "
                f"{_listed(fitting or ['a file'])}",
            )
        return source_of(RELEASES[choice][1]), choice
    try:
        return read_template(Path(choice)), choice
    except DocumentError as error:
        raise ConfigError(
            "chat_template", choice, f"neither a file that can be read ({error}) nor one of {', '.join(RELEASES)}"
        ) from error


def _find_template(directory: ModelDirectory, metadata: Mapping[str, Any], gguf_name: str) -> tuple[str, str] | None:
    """(source, where it was found), looking in the most specific place first; None if there is no template."""
    file = directory.file("chat_template.jinja")
    if file is not None:
        try:
            return read_template(file), str(file)
        except DocumentError as error:
            raise ModelError(file, str(error)) from error
    source = directory.tokenizer_config.chat_template
    if source is not None:
        return source, f"{directory.path}/tokenizer_config.json"
    source = metadata.get("tokenizer.chat_template")
    if source is not None and not isinstance(source, str):
        raise ModelError(gguf_name, f"tokenizer.chat_template={shown(source)}; expected a text")
    return None if source is None else (source, f"{gguf_name} (metadata)")
