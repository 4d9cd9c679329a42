"""Text to token ids and back: the `tokenizers` library plus the rules that serving needs.

Added here: exactly one BOS; control tokens that client text cannot forge; and the raw bytes of every token, since a
token may hold half a character.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import tokenizers

from ballast.errors import ModelError, RequestError
from ballast.text import byte_alphabet
from ballast.text.control_text import ControlText, unescape

# How model families spell their end-of-turn tokens, which their metadata may not list.
_END_SPELLINGS = (
    "<｜end▁of▁sentence｜>",
    "<|EOT|>",
    "<|im_end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "[EOS]",
    "[EOT]",
)


class Tokenizer:
    """A byte-level BPE tokenizer. Thread-safe.

    Takes over `backend` and switches its truncation and padding off. The first of `eos_ids` becomes `eos_id`; end
    tokens with well-known spellings are added to them. Raises ModelError when a vocabulary entry is not byte-level.
    """

    has_vocabulary: ClassVar[bool] = True
    """Whether tokens have text; False only for `IdsOnly`."""
    vocab_size: int
    """Highest real id + 1. The model's embedding may have more rows, which are never sampled."""
    bos_id: int | None
    eos_id: int | None
    """The end token that a chat template writes."""
    eos_ids: frozenset[int]
    """Every token that ends a generation, `eos_id` among them."""
    added_ids: frozenset[int]
    """Tokens outside the BPE vocabulary, matched only by their whole spelling: control tokens and others."""
    add_bos: bool
    """Whether a raw text prompt to this model begins with BOS."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_id: int | None,
        eos_ids: Sequence[int],
        add_bos: bool,
        name: str = "tokenizer",
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._plain = _without_added_tokens(backend)
        added = backend.get_added_tokens_decoder()
        self._control_text = ControlText({token.content: token_id for token_id, token in added.items()})
        self.added_ids = frozenset(added)
        self._control = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bytes = _token_bytes(backend, name)
        self._longest = max(map(len, self._bytes), default=1)
        strips = any(token.lstrip or token.rstrip for token in added.values())
        # An empty normalizer sequence is falsy.
        self._keeps_every_byte = not (backend.normalizer or strips)
        self.vocab_size = len(self._bytes)
        self.bos_id = bos_id
        self.add_bos = add_bos and bos_id is not None
        self.eos_id = eos_ids[0] if eos_ids else None
        spelled = {backend.token_to_id(text) for text in _END_SPELLINGS}
        self.eos_ids = frozenset(eos_ids) | self._control.intersection(spelled)
        for token_id in self.eos_ids | ({bos_id} if bos_id is not None else set()):
            if not 0 <= token_id < self.vocab_size:
                raise ModelError(name, f"BOS or EOS id {token_id} is outside the vocabulary of {self.vocab_size}")

    def encode(self, text: str, *, parse_special: bool = True, add_bos: bool = False) -> list[int]:
        """Token ids of `text`.

        `parse_special=False` reads the spellings of added tokens as plain text. `add_bos` puts BOS in front,
        unless the ids already start with it. Raises RequestError for an unpaired surrogate.
        """
        ids = _encode(self._backend if parse_special else self._plain, text)
        if add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def protect(self, value: Any) -> Any:
        """A copy of `value` (plain data) whose texts `encode_prompt` never turns into added tokens."""
        return self._control_text.protect(value)

    def encode_prompt(self, prompt: str) -> list[int]:
        """Token ids of a prompt whose untrusted parts went through `protect`. Spellings of added tokens in its other
        parts become those tokens. No BOS is added. Raises RequestError as `encode` does."""
        parts = list(self._control_text.split(prompt))
        encoded = iter(_encode_all(self._plain, [part for part in parts if isinstance(part, str)]))
        return [token_id for part in parts for token_id in (next(encoded) if isinstance(part, str) else (part,))]

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the number of tokens of `text`, protected or not. Cheap, so that long text can be refused
        before it is encoded."""
        if not self._keeps_every_byte:
            return 0
        return -(-len(unescape(text).encode("utf-8", errors="replace")) // self._longest)

    def decode(self, ids: Iterable[int], skip_control: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD. Raises RequestError for an id outside the
        vocabulary."""
        data = b"".join(
            self.token_bytes(token_id) for token_id in ids if not (skip_control and self.is_control(token_id))
        )
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Raw bytes of one token, perhaps half a character; empty for an id without a token. Raises RequestError for an
        id outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            raise RequestError(f"token id {token_id} is not in the vocabulary: ids go from 0 to {self.vocab_size - 1}")
        return self._bytes[token_id]

    def is_control(self, token_id: int) -> bool:
        """Whether the token is a control token, which is not shown in text."""
        return token_id in self._control

    def id_of(self, text: str) -> int | None:
        """The id of the added token spelled `text`, or of a vocabulary entry in byte-level spelling."""
        return self._backend.token_to_id(text)


def _without_added_tokens(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer without added tokens. It shares vocabulary and splits with `backend`."""
    plain = tokenizers.Tokenizer(backend.model)
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    return plain


def _token_bytes(backend: tokenizers.Tokenizer, name: str) -> list[bytes]:
    """[vocab_size] bytes of every token."""
    added = {token_id: token.content for token_id, token in backend.get_added_tokens_decoder().items()}
    vocab = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    for text, token_id in vocab.items():
        raw = added[token_id].encode() if token_id in added else byte_alphabet.to_bytes(text)
        if raw is None:
            raise ModelError(name, f"token {token_id} {text!r} is not byte-level BPE, the only kind that is supported")
        table[token_id] = raw
    return table


def _encode(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    return _encode_all(backend, [text])[0]


def _encode_all(backend: tokenizers.Tokenizer, texts: list[str]) -> list[list[int]]:
    """Ids of every text. Raises RequestError for what cannot be encoded."""
    try:
        # No special tokens: what the file's post-processor adds differs by release.
        # A batch releases the GIL, a single call does not. Fast: offsets are not needed.
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]
    except TypeError as error:
        for text in texts:
            if (at := _first_surrogate(text)) is not None:
                raise RequestError(f"the text holds an unpaired surrogate at character {at}") from error
        raise
    except BaseException as error:
        # The library's splitter panics on some very long texts; a PanicException is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise RequestError(
            f"the tokenizer gives up on this text of {sum(map(len, texts))} characters; shorten it or break up its "
            "long runs"
        ) from error


def _first_surrogate(text: str) -> int | None:
    return next((at for at, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
