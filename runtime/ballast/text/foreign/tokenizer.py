"""Loads a tokenizer.json: checked, then tried in a guarded process, then loaded here.

Encoding is done here as well, unless a pattern of the file is not known, or its replacements multiply. A pattern can
take hours for a text of a few kilobytes, in which no other thread is stopped but this one never comes back; seven
replacements of a letter by sixteen make gigabytes of it. Such a tokenizer encodes in the guarded process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from ballast.errors import CapacityError, ModelError, RequestError
from ballast.guarded import GuardedProcess, LimitExceededError, Limits, TaskFailedError
from ballast.text.foreign.tokenizer_json import TokenizerJson, read_tokenizer_json
from ballast.text.tokenizer import Encoder, LocalEncoder

LIMITS = Limits(cpu_s=5.0, memory_bytes=1 << 30)
"""Generous: DeepSeek V3's vocabulary is loaded in 0.3 s, and a million tokens are encoded in about as long."""

_MODULE = "ballast.text.foreign.tokenize"


@dataclass(frozen=True, slots=True)
class LoadedJson:
    """What a tokenizer.json gives."""

    backend: tokenizers.Tokenizer
    encoder: Encoder
    around_nothing: frozenset[int]
    """What its post-processor adds to an empty text: its beginning and its end."""


def load_tokenizer_json(file: Path) -> LoadedJson:
    """Raises ModelError, which names the field where one is to blame."""
    content = read_tokenizer_json(file)
    if not content.is_byte_level:
        raise ModelError(file, "pre_tokenizer has no part ByteLevel; only byte-level BPE is supported")
    text = content.to_text()
    around: list[int] = []
    with GuardedProcess(_MODULE, LIMITS) as process:
        _ask(process, file, "the tokenizer", ["try", text])
        if content.post_processor is not None:
            around = _ask(process, file, "post_processor", ["ids around nothing", content.post_processor])
    backend = tokenizers.Tokenizer.from_str(text)
    _check_ids(backend, content, file)
    encoder = ForeignEncoder(text) if content.needs_guard else LocalEncoder(backend)
    return LoadedJson(backend, encoder, frozenset(around))


def _ask(process: GuardedProcess, file: Path, part: str, task: Any) -> Any:
    try:
        return process.ask(task)
    except (TaskFailedError, LimitExceededError) as error:
        raise ModelError(file, f"{part} cannot be loaded: {error}") from error


def _check_ids(backend: tokenizers.Tokenizer, content: TokenizerJson, file: Path) -> None:
    """Check the ids of added tokens: the library assigns the next free id and ignores the file's."""
    for n, token in enumerate(content.added_tokens):
        found = backend.token_to_id(token.content)
        if found != token.id:
            raise ModelError(file, f"added_tokens.{n}.id={token.id}: by the tokens before it, it would be {found}")


class ForeignEncoder:
    """Encodes in a guarded process of its own."""

    def __init__(self, text: str) -> None:
        """`text` is the tokenizer's JSON."""
        self._text = text
        self._key = hashlib.sha256(text.encode()).hexdigest()
        self._process = GuardedProcess(_MODULE, LIMITS)

    def __call__(self, texts: Sequence[str], *, parse_special: bool) -> list[list[int]]:
        """Raises RequestError, also for a text that takes too long, and CapacityError where no process can start."""
        task = ["encode", self._key, texts, parse_special]
        try:
            ids = self._process.ask(task)
            if ids is None:
                ids = self._process.ask([*task, self._text])
        except TaskFailedError as error:
            raise RequestError(str(error)) from error
        except LimitExceededError as error:
            raise RequestError(f"the model's tokenizer was stopped: {error}") from error
        except OSError as error:
            message = f"no process can be started for the model's tokenizer: {error.strerror}"
            raise CapacityError(message, status=503, code="process_not_started") from error
        return list(ids)
