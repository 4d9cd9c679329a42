"""The tokenizer that a GGUF file carries in its own metadata (`tokenizer.ggml.*`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from ballast.errors import ModelError, shown
from ballast.text.tokenizer import END_SPELLINGS, Tokenizer


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, one per token. Source: the GGUF specification."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def _char_class(ranges: str) -> str:
    """A regex class from hexadecimal code points. Unicode normalisation of this file would alter literals."""
    spans = ("-".join(rf"\x{{{point}}}" for point in span.split("-")) for span in ranges.split())
    return f"[{''.join(spans)}]"


# Letters of the alphabets that DeepSeek's first tokenizer keeps together: Latin, Greek, Cyrillic, Armenian, Georgian,
# Cherokee, Coptic, Glagolitic, Deseret and their kin.
_ALPHABETIC = _char_class(
    """
    0041-005A 0061-007A 00B5 00C0-00D6 00D8-00F6 00F8-01BA 01BC-01BF 01C4-0293 0295-02AF 0370-0373 0376
    0377 037B-037D 037F 0386 0388-038A 038C 038E-03A1 03A3-03F5 03F7-0481 048A-052F 0531-0556 10A0-10C5
    13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45
    1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3
    1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D
    212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D
    A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A
    10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
    """
)
_PUNCTUATION = _char_class("0021-002F 003A-007E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002")
_HAN_AND_HANGUL = _char_class("4E00-9FA5 0800-4E00 AC00-D7FF")
_HAN = r"\p{Han}"
_HAN_AND_KANA = _char_class("4E00-9FA5 3040-309F 30A0-30FF")


def _cased_words(without: str = "", *, contraction: str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?") -> str:
    """A regex of words by their case, with contractions. `without`: a class of characters that are no part of them."""
    but = f"&&[^{without}]" if without else ""
    upper, lower = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]", rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}{upper}*{lower}+{contraction}|{before}{upper}+{lower}*{contraction}"


# `tokenizer.ggml.pre` → the splits, applied one after the other. Sources: the tokenizer.json of DeepSeek V2 and V3,
# llama.cpp's table for deepseek-coder, glm4, hunyuan-dense and gpt-4o, where it quotes the original, transformers'
# tokenization_qwen2.py and tokenization_qwen3_5.py, `pat_str` of Moonshot's tokenization_kimi.py, and the tekken.json
# of mistral-common.
_GLM = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+",
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    rf"{_HAN_AND_KANA}+",
    r"[!-/:-@\[-`{-~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+",
)
_GPT_4O = (
    f"{_cased_words()}"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+",
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
SPLITS: Mapping[str, Sequence[str]] = {
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?{_ALPHABETIC}+",
        rf"\s?{_PUNCTUATION}+",
        # The lookbehind changes no match, but without it a long run of spaces takes quadratic time.
        r"(?<!\s)\s+$",
        rf"{_HAN_AND_HANGUL}+",
        r"\p{N}",
    ),
    "deepseek-coder": (
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        rf"{_HAN_AND_HANGUL}+",
        r"\p{N}",
    ),
    "deepseek-v3": _DEEPSEEK_V3,
    "hunyuan-dense": _DEEPSEEK_V3,
    "step35": _DEEPSEEK_V3,
    "glm4": _GLM,
    "glm5": _GLM,
    "gpt-4o": _GPT_4O,
    "minimax-m2": _GPT_4O,
    "tekken": (
        f"{_cased_words(contraction='')}"
        r"|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
        r"|\s*[\r\n]+"
        r"|\s+(?!\S)"
        r"|\s+",
    ),
    "qwen2": (_QWEN2,),
    "qwen35": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
        r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
        r"|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+"
        r"|\s+(?!\S)"
        r"|\s+",
    ),
    # Each run of line breaks begins a piece, with the text that follows it.
    "laguna": (r"(?:\r?\n)+(?:[^\r\n]+|\r(?!\n))*", _QWEN2),
    "kimi-k2": (
        rf"{_HAN}+|{_cased_words(_HAN)}"
        r"|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+"
        r"|\s+(?!\S)"
        r"|\s+",
    ),
}

_WHOLE_FIRST = frozenset({"glm4", "glm5", "tekken"})
"""Pre-tokenizers whose words become one token if the vocabulary has it, before any merges."""

_ADD_BOS = frozenset({"tekken"})
"""Pre-tokenizers of models that begin every text with BOS, unless the file says otherwise."""

COMPOSED_FIRST = frozenset({"qwen2", "qwen35"})
"""Splits whose text is brought into Unicode's composed form (NFC) first."""

_WAY_OUT = "pass --model_path with a directory that holds the model's tokenizer.json"


def tokenizer_from_gguf(metadata: Mapping[str, Any], gguf_name: str) -> Tokenizer:
    """The tokenizer that `metadata` describes. `gguf_name` is for error messages.

    Raises ModelError when a key is missing or its value is not supported.
    """
    bos_id = optional_id(metadata, "bos_token_id", gguf_name)
    ends = (optional_id(metadata, key, gguf_name) for key in ("eos_token_id", "eot_token_id"))
    return Tokenizer(
        build_backend(metadata, gguf_name),
        bos_id=bos_id,
        eos_ids=[end for end in ends if end is not None],
        add_bos=_switch(metadata, "add_bos_token", gguf_name, default=metadata.get("tokenizer.ggml.pre") in _ADD_BOS),
        name=gguf_name,
    )


def build_backend(metadata: Mapping[str, Any], gguf_name: str) -> tokenizers.Tokenizer:
    """Byte-level BPE with the file's tokens, merges and splits. Raises ModelError as `tokenizer_from_gguf` does."""
    _require_value(metadata, "model", ("gpt2",), gguf_name)
    pre = _require_value(metadata, "pre", tuple(SPLITS), gguf_name)
    tokens = _list(metadata, "tokens", str, gguf_name)
    types: list[int] = [TokenType.NORMAL] * len(tokens)
    if metadata.get("tokenizer.ggml.token_type") is not None:
        types = _list(metadata, "token_type", int, gguf_name)
    if len(types) != len(tokens):
        raise ModelError(
            gguf_name,
            f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens; {_WAY_OUT}",
        )
    merges = [_merge(entry, n, gguf_name) for n, entry in enumerate(_list(metadata, "merges", str, gguf_name))]
    # As in llama.cpp, tokens with these spellings end a turn, and the file's type does not matter.
    types = [TokenType.CONTROL if text in END_SPELLINGS else kind for text, kind in zip(tokens, types, strict=True)]
    # UNUSED rows only pad the embedding; they must not be encoded and do not count as vocabulary.
    vocab = {text: n for n, text in enumerate(tokens) if types[n] != TokenType.UNUSED}
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=pre in _WHOLE_FIRST))
    except Exception as error:  # the library raises nothing more specific
        raise ModelError(gguf_name, f"tokenizer.ggml.merges: {shown(str(error))}; {_WAY_OUT}") from error
    if pre in COMPOSED_FIRST:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS[pre]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(
        [
            AddedToken(text, special=kind == TokenType.CONTROL, normalized=False)
            for text, kind in zip(tokens, types, strict=True)
            if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
        ]
    )
    return backend


def optional_id(metadata: Mapping[str, Any], key: str, gguf_name: str) -> int | None:
    """A token id; None for a file without the key. Raises ModelError."""
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise _invalid(key, value, "a token id", gguf_name)
    return value


_Item = TypeVar("_Item", str, int)


def _list(metadata: Mapping[str, Any], key: str, item: type[_Item], gguf_name: str) -> list[_Item]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        raise _missing(key, gguf_name)
    # All items of a GGUF array are of one type.
    if not isinstance(value, list) or (value and type(value[0]) is not item):
        raise _invalid(key, value, f"a list of {'texts' if item is str else 'whole numbers'}", gguf_name)
    return value


def _switch(metadata: Mapping[str, Any], key: str, gguf_name: str, *, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(value, bool):
        raise _invalid(key, value, "true or false", gguf_name)
    return value


def _require_value(metadata: Mapping[str, Any], key: str, supported: Sequence[str], gguf_name: str) -> str:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        raise _missing(key, gguf_name)
    if not isinstance(value, str) or value not in supported:
        raise ModelError(
            gguf_name,
            f"tokenizer.ggml.{key}={shown(value)} is not supported, only {', '.join(supported)}; {_WAY_OUT}",
        )
    return value


def _missing(key: str, gguf_name: str) -> ModelError:
    return ModelError(gguf_name, f"tokenizer.ggml.{key} is missing; {_WAY_OUT}")


def _invalid(key: str, value: object, expected: str, gguf_name: str) -> ModelError:
    return ModelError(gguf_name, f"tokenizer.ggml.{key}={shown(value)}; expected {expected}; {_WAY_OUT}")


def _merge(entry: str, index: int, gguf_name: str) -> tuple[str, str]:
    left, space, right = entry.partition(" ")
    if not space:
        quoted = shown(repr(entry))
        raise ModelError(gguf_name, f"tokenizer.ggml.merges: entry {index}, {quoted}, is not two tokens; {_WAY_OUT}")
    return left, right
