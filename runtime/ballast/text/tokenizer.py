"""Text to token ids and back: the `tokenizers` library plus the rules that serving needs.

Added here: exactly one BOS; control tokens that client text cannot forge; and the raw bytes of every token, since a
token may hold half a character.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import tokenizers
from tokenizers import AddedToken

from ballast.errors import ModelError, RequestError, shown
from ballast.families.family import ReplyForm
from ballast.families.registry import DEFAULT_FORM, family_of_vocabulary
from ballast.text import byte_alphabet
from ballast.text.control_text import ControlText, unescape

MAX_ADDED = 16_384
"""DeepSeek's vocabularies have 818 added tokens at most, the largest known one 6,400."""
MAX_ADDED_CHARS = 256
"""Of one added token."""
MAX_ALL_ADDED_CHARS = 1 << 18

_TEXT_BYTES = frozenset({*b"\t\n\r", *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF5)})
"""All bytes that text in UTF-8 is made of, but for control characters."""

END_SPELLINGS = (
    "<｜end▁of▁sentence｜>",
    "<|EOT|>",
    "<|im_end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "[EOS]",
    "[EOT]",
)
"""How model families spell their end-of-turn tokens, which their metadata may not list, or not as control tokens."""


class Encoder(Protocol):
    """Turns texts into token ids. `parse_special`: spellings of added tokens become those tokens."""

    def __call__(self, texts: Sequence[str], *, parse_special: bool) -> list[list[int]]:
        """Ids of every text. Raises RequestError for what cannot be encoded."""


class LocalEncoder:
    """Encodes with the library, in this process. Thread-safe."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._plain = _without_added_tokens(backend)

    def __call__(self, texts: Sequence[str], *, parse_special: bool) -> list[list[int]]:
        """As Encoder says."""
        backend = self._backend if parse_special else self._plain
        try:
            # No special tokens: the file's post-processor adds different ones in each release.
            # A batch releases the GIL, a single call does not. Fast: offsets are not needed.
            return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]
        except TypeError as error:
            for text in texts:
                if (at := _first_surrogate(text)) is not None:
                    raise RequestError(f"the text has an unpaired surrogate at character {at}") from error
            raise
        except BaseException as error:
            # The library's splitter panics on some very long texts; a PanicException is no Exception.
            if type(error).__name__ != "PanicException":
                raise
            raise RequestError(
                f"the tokenizer cannot process this text of {sum(map(len, texts))} characters; shorten it or break up "
                "its long runs"
            ) from error


class Tokenizer:
    """A byte-level BPE tokenizer. Thread-safe.

    `backend` neither cuts texts nor pads them. The first of `eos_ids` becomes `eos_id`; end tokens with well-known
    spellings are added to them. Raises ModelError when a vocabulary entry is not byte-level, or a byte has no token.
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
    reply: ReplyForm
    """How replies are divided, by the family that the vocabulary tells."""
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
        encoder: Encoder | None = None,
    ) -> None:
        """`encoder` encodes in the place of `backend`, with the same ids."""
        self._backend = backend
        self._encode = encoder or LocalEncoder(backend)
        added = backend.get_added_tokens_decoder()
        _check_added(added, name)
        self._control_text = ControlText({token.content: token_id for token_id, token in added.items()})
        self.added_ids = frozenset(added)
        self._bytes = _token_bytes(backend, name)
        self._longest = max(map(len, self._bytes), default=1)
        strips = any(token.lstrip or token.rstrip for token in added.values())
        # An empty normalizer sequence is falsy.
        self._keeps_every_byte = not (backend.normalizer or strips)
        self.vocab_size = len(self._bytes)
        self.bos_id = bos_id
        self.add_bos = add_bos and bos_id is not None
        family = family_of_vocabulary({token.content for token in added.values()})
        self.reply = DEFAULT_FORM if family is None else family.reply
        ends, never = ((), ()) if family is None else (family.ends, family.never_ends)
        spelled = self.added_ids.intersection(backend.token_to_id(text) for text in (*END_SPELLINGS, *ends))
        self.eos_ids = (frozenset(eos_ids) | spelled) - {backend.token_to_id(text) for text in never}
        self.eos_id = next((token_id for token_id in eos_ids if token_id in self.eos_ids), None)
        # Some files declare the end of a turn as a user-defined token, whose text would be part of replies.
        self._control = spelled | {token_id for token_id, token in added.items() if token.special}
        # Where reasoning stays in the content, its tags do, whatever their type.
        self._control -= {backend.token_to_id(text) for text in self.reply.thinking.values()}
        for token_id in self.eos_ids | ({bos_id} if bos_id is not None else set()):
            if not 0 <= token_id < self.vocab_size:
                raise ModelError(name, f"BOS or EOS id {token_id} is outside the vocabulary of {self.vocab_size}")

    def encode(self, text: str, *, parse_special: bool = True, add_bos: bool = False) -> list[int]:
        """Token ids of `text`.

        `parse_special=False` reads the spellings of added tokens as plain text. `add_bos` puts BOS in front,
        unless the ids already start with it. Raises RequestError for an unpaired surrogate.
        """
        (ids,) = self._encode([text], parse_special=parse_special)
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
        encoded = iter(self._encode([part for part in parts if isinstance(part, str)], parse_special=False))
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

    def spelling(self, token_id: int) -> str | None:
        """The vocabulary's entry of an id, in byte-level spelling; None for an id without a token."""
        return self._backend.id_to_token(token_id)

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
            raise ModelError(
                name, f"token {token_id} {shown(repr(text))} is not byte-level BPE, the only kind that is supported"
            )
        table[token_id] = raw
    missing = _TEXT_BYTES.difference(
        byte_alphabet.BYTE_OF_CHAR[text] for text in vocab if text in byte_alphabet.BYTE_OF_CHAR
    )
    if missing:
        raise ModelError(
            name, f"the vocabulary has no token for the byte 0x{min(missing):02x}; text with it would be lost"
        )
    return table


def _check_added(added: Mapping[int, AddedToken], name: str) -> None:
    """Finding spellings takes time and memory in proportion to their number and length."""
    for token_id, token in added.items():
        if len(token.content) > MAX_ADDED_CHARS:
            raise ModelError(
                name,
                f"added token {token_id}, {shown(repr(token.content), 40)}, has {len(token.content)} characters; "
                f"expected at most {MAX_ADDED_CHARS}",
            )
    num_chars = sum(len(token.content) for token in added.values())
    if len(added) > MAX_ADDED or num_chars > MAX_ALL_ADDED_CHARS:
        raise ModelError(
            name,
            f"{len(added)} added tokens of {num_chars} characters; expected at most {MAX_ADDED} of "
            f"{MAX_ALL_ADDED_CHARS}",
        )


def _first_surrogate(text: str) -> int | None:
    return next((at for at, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
