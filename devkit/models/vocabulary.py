"""Small tokenizers as GGUF metadata: a vocabulary of single bytes, plus what a test adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ballast.text import byte_alphabet
from ballast.text.gguf_vocab import TokenType, tokenizer_from_gguf
from ballast.text.tokenizer import Tokenizer

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"


def byte_metadata(
    pre: str = "deepseek-v3",
    *,
    merges: Sequence[tuple[bytes, bytes]] = (),
    user_defined: Sequence[str] = ("<think>", "</think>"),
    num_words: int = 0,
    num_unused: int = 0,
) -> dict[str, Any]:
    """Metadata with ids 0 BOS, 1 EOS, 2…257 the bytes 0…255, then one token per merge, `user_defined`, words that no
    text is encoded as, padding."""
    byte_tokens = [bytes([byte]) for byte in range(256)]
    spelled = [(_spell(left), _spell(right)) for left, right in merges]
    entries = [
        *((text, TokenType.CONTROL) for text in (BOS, EOS)),
        *((_spell(token), TokenType.NORMAL) for token in byte_tokens),
        *((left + right, TokenType.NORMAL) for left, right in spelled),
        *((text, TokenType.USER_DEFINED) for text in user_defined),
        *((_spell(b" word%d" % n), TokenType.NORMAL) for n in range(num_words)),
        *((f"[PAD{n}]", TokenType.UNUSED) for n in range(num_unused)),
    ]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [text for text, _ in entries],
        "tokenizer.ggml.token_type": [int(kind) for _, kind in entries],
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in spelled],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
    }


def byte_tokenizer(
    *, merges: Sequence[tuple[bytes, bytes]] = (), user_defined: Sequence[str] = ("<think>", "</think>")
) -> Tokenizer:
    """The tokenizer of `byte_metadata`: without merges, every byte of a text is one token, id 2 + byte."""
    return tokenizer_from_gguf(byte_metadata(merges=merges, user_defined=user_defined), "bytes.gguf")


def _spell(token: bytes) -> str:
    return "".join(byte_alphabet.CHAR_OF_BYTE[byte] for byte in token)
