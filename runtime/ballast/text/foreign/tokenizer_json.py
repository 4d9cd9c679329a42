"""The supported content of a tokenizer.json: byte-level BPE, with parts whose work is proportional to the text.

The library takes much more, and trusts it: it aborts the process on a large padding, panics on a broken table of
characters, and turns one letter into a megabyte where a rule says so. Parts that are not listed here are refused by
name; parts that serving does not use are left out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ballast.documents.json_document import read_json
from ballast.documents.small_file import DocumentError
from ballast.errors import ModelError, shown
from ballast.text.gguf_vocab import SPLITS
from ballast.text.tokenizer import MAX_ADDED

MAX_BYTES = 64 << 20
"""DeepSeek's files have 8 MB."""
MAX_ID = (1 << 21) - 1
"""The largest vocabularies have a million tokens."""
_MAX_PARTS = 64
_MAX_PADDING = 1 << 24
_MAX_GROWTH = 16
"""How many times as long the parts together may make a text that is encoded without a guard."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


_TokenId = Annotated[int, Field(ge=0, le=MAX_ID)]
_Short = Annotated[str, Field(min_length=1, max_length=16)]

# The first splits a run of spaces before a letter in quadratic time, the second does the same in linear time.
_LINEAR = {r"\s+$": r"(?<!\s)\s+$"}
_Regex = Annotated[str, Field(min_length=1, max_length=16_384), AfterValidator(lambda regex: _LINEAR.get(regex, regex))]


class _Pattern(_Part):
    Regex: _Regex | None = None
    String: _Short | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.Regex is None) == (self.String is None):
            raise ValueError("expected one of Regex and String")
        return self


# Not "Removed": what is removed would be missing in the prompt.
_Behavior = Literal["Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


class _PlainNormalizer(_Part):
    type: Literal["NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "ByteLevel"]


class _Strip(_Part):
    type: Literal["Strip"]
    strip_left: bool
    strip_right: bool


class _Prepend(_Part):
    type: Literal["Prepend"]
    prepend: _Short


class _Replace(_Part):
    type: Literal["Replace"]
    pattern: _Pattern
    content: Annotated[str, Field(max_length=16)]


class _Normalizers(_Part):
    type: Literal["Sequence"]
    normalizers: list[_Normalizer]


_Normalizer = Annotated[_PlainNormalizer | _Strip | _Prepend | _Replace | _Normalizers, Field(discriminator="type")]


class _UnicodeScripts(_Part):
    type: Literal["UnicodeScripts"]


class _ByteLevel(_Part):
    type: Literal["ByteLevel"]
    add_prefix_space: bool = True
    trim_offsets: bool = True
    use_regex: bool = True


class _Digits(_Part):
    type: Literal["Digits"]
    individual_digits: bool = False


class _Punctuation(_Part):
    type: Literal["Punctuation"]
    behavior: _Behavior = "Isolated"


class _Split(_Part):
    type: Literal["Split"]
    pattern: _Pattern
    behavior: _Behavior
    invert: bool = False


class _PreTokenizers(_Part):
    type: Literal["Sequence"]
    pretokenizers: list[_PreTokenizer]


_PreTokenizer = Annotated[
    _UnicodeScripts | _ByteLevel | _Digits | _Punctuation | _Split | _PreTokenizers, Field(discriminator="type")
]


class _AddedToken(_Part):
    id: _TokenId
    content: Annotated[str, Field(min_length=1)]
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


def _checked_strategy(strategy: Any) -> Any:
    length = strategy.get("Fixed") if isinstance(strategy, dict) else 0
    if not isinstance(length, int) or not 0 <= length <= _MAX_PADDING:
        raise ValueError(f"expected BatchLongest, or Fixed of at most {_MAX_PADDING}")
    return strategy


class _Padding(_Part):
    """Not used, but a length that no text has is a sign of a damaged file."""

    strategy: Annotated[Any, AfterValidator(_checked_strategy)]


class _Bpe(_Part):
    """Without `dropout`, which is for training."""

    type: Literal["BPE"] = "BPE"
    unk_token: str | None = None
    continuing_subword_prefix: Literal["", None] = None
    end_of_word_suffix: Literal["", None] = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False
    vocab: dict[str, _TokenId]
    merges: list[str] | list[tuple[str, str]]

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.unk_token is not None and self.unk_token not in self.vocab:
            raise ValueError(f"unk_token {shown(repr(self.unk_token))} is not in the vocabulary")
        if len(set(self.vocab.values())) < len(self.vocab):
            raise ValueError("the vocabulary has an id twice")
        return self


def _limited_parts(part: Any) -> Any:
    if sum(1 for _ in _parts(part)) > _MAX_PARTS:
        raise ValueError(f"more than {_MAX_PARTS} parts")
    return part


class TokenizerJson(_Part):
    """The file's content. Truncation and the decoder are not read: serving has its own."""

    version: Literal["1.0"] = "1.0"
    padding: _Padding | None = None
    added_tokens: Annotated[list[_AddedToken], Field(max_length=MAX_ADDED)] = []
    normalizer: Annotated[_Normalizer | None, AfterValidator(_limited_parts)] = None
    pre_tokenizer: Annotated[_PreTokenizer | None, AfterValidator(_limited_parts)] = None
    post_processor: dict[str, Any] | None = None
    """Only tried, in a guarded process, to learn whether it puts BOS before a text."""
    model: _Bpe

    @property
    def needs_guard(self) -> bool:
        """Whether encoding may take more than in proportion to the text: time for a pattern, or memory, where one part
        makes longer what another made longer before."""
        parts = [*_parts(self.normalizer), *_parts(self.pre_tokenizer)]
        if math.prod(map(_growth, parts)) > _MAX_GROWTH:
            return True
        patterns = [part.pattern.Regex for part in parts if isinstance(part, _Replace | _Split)]
        return not all(regex is None or _is_known(regex) for regex in patterns)

    @property
    def is_byte_level(self) -> bool:
        """Whether texts become bytes before they become tokens."""
        return any(
            isinstance(part, _ByteLevel | _PlainNormalizer) and part.type == "ByteLevel"
            for part in (*_parts(self.normalizer), *_parts(self.pre_tokenizer))
        )

    def to_text(self) -> str:
        """What the library needs to encode, as its JSON."""
        return self.model_dump_json(exclude={"padding", "post_processor"}, exclude_none=True)


def read_tokenizer_json(file: Path) -> TokenizerJson:
    """The file's content. Raises ModelError, which names the first field that is wrong."""
    try:
        return read_json(file, TokenizerJson, MAX_BYTES)
    except DocumentError as error:
        raise ModelError(file, str(error)) from error


def _parts(part: Any) -> Iterator[_Part]:
    """The part and those inside it; none of None."""
    if part is not None:
        yield part
    if isinstance(part, _Normalizers | _PreTokenizers):
        inside = part.normalizers if isinstance(part, _Normalizers) else part.pretokenizers
        for below in inside:
            yield from _parts(below)


def _growth(part: _Part) -> float:
    """The factor by which a part can increase the bytes of a text, for parts with no limit in the file.

    Unicode's own normal forms and lower case have bounds of their own, and count as 1.
    """
    if isinstance(part, _Replace):
        shortest = 1 if part.pattern.String is None else len(part.pattern.String.encode())
        return max(1.0, len(part.content.encode()) / shortest)
    is_byte_level = isinstance(part, _ByteLevel | _PlainNormalizer) and part.type == "ByteLevel"
    return 2.0 if is_byte_level else 1.0  # it writes some bytes as characters of two


_PUBLISHED = frozenset(
    {
        # V2
        "5cada29124805d8e0454dc5b67225bbf87075cffd53418e9c56f674708220e2c",
        "38fd0b5eb7e66ecf05e5e89dd0272208b64a6d60fa009c4ea1be70e7b7e739d5",
        "ae6bc1cffa8363b9fcbc8425375b51beb4782b93c6bcc35129ad95e41974f239",
        "a9e31f463e1bd653c3d89fb26abc9a610b23eb0447b1bfcac71c7949e72583e4",
        # V3
        "b17444129c80d563051e7b293e0a93351a65cd7722d7008bcdeecadbf02d12b3",
        "c903ee638e48e525ed7aefd8bcf804c5a88b80358403017a36f52702360a031c",
    }
)
"""SHA-256 of patterns in published files, which spell those of SPLITS in other ways."""


def _is_known(regex: str) -> bool:
    """Whether it is known to take linear time on every text."""
    return (
        any(regex in splits for splits in SPLITS.values()) or hashlib.sha256(regex.encode()).hexdigest() in _PUBLISHED
    )
