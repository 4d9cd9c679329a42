"""The tokens of prompts that ask a model to fill the gap between two texts (fill in the middle)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ballast.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class FimTokens:
    """One model's tokens, in the order of a prompt: prefix, text before, suffix, text after, middle."""

    prefix: int
    suffix: int
    middle: int
    ends: frozenset[int] = frozenset()
    """Tokens that end a filling besides the model's end tokens: padding, and those that begin another file."""


@dataclass(frozen=True, slots=True)
class _Token:
    keys: Sequence[str]
    """Of a GGUF file, the newer first, without `tokenizer.ggml.` and `_token_id`."""
    spellings: Sequence[str]


# The spellings are those that llama.cpp knows (`llama-vocab.cpp`), of byte-level vocabularies.
_PREFIX = _Token(
    ("fim_pre", "prefix"),
    ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<|code_prefix|>"),
)
_SUFFIX = _Token(
    ("fim_suf", "suffix"),
    ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<|code_suffix|>"),
)
_MIDDLE = _Token(
    ("fim_mid", "middle"),
    ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<|code_middle|>"),
)
_ENDS = (
    _Token(("fim_pad",), ("<|fim_pad|>", "<fim-pad>", "<fim_pad>")),
    _Token(("fim_rep",), ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<repo_name>")),
    _Token(("fim_sep",), ("<|file_sep|>", "<file_sep>")),
)


def fim_tokens(tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> FimTokens | None:
    """The model's tokens, by the keys of the GGUF's `metadata` or else by their spellings; None if it lacks one of the
    three that a prompt needs."""
    needed = [_id(token, tokenizer, metadata) for token in (_PREFIX, _SUFFIX, _MIDDLE)]
    prefix, suffix, middle = needed
    if prefix is None or suffix is None or middle is None or len(set(needed)) < len(needed):
        return None
    ends = (_id(token, tokenizer, metadata) for token in _ENDS)
    return FimTokens(prefix, suffix, middle, frozenset(end for end in ends if end is not None) - set(needed))


def _id(token: _Token, tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> int | None:
    """A token's id. A key whose value is no id of the vocabulary counts as missing."""
    keyed = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in token.keys)
    spelled = (tokenizer.id_of(spelling) for spelling in token.spellings)
    return next((each for each in (*keyed, *spelled) if type(each) is int and 0 <= each < tokenizer.vocab_size), None)
