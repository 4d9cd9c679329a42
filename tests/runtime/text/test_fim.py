"""The model's fill-in-the-middle tokens: from the file's keys, otherwise from their spellings."""

from typing import Any

import pytest

from ballast.text.fim import FimTokens, fim_tokens
from ballast.text.gguf_vocab import tokenizer_from_gguf
from devkit.models.vocabulary import byte_metadata

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
FIRST = 2 + 256
"""The id of the first token that a test adds."""


def found(*spellings: str, **keys: Any) -> FimTokens | None:
    metadata = byte_metadata(user_defined=spellings) | {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
    return fim_tokens(tokenizer_from_gguf(metadata, "bytes.gguf"), metadata)


@pytest.mark.parametrize(
    "spellings",
    [
        QWEN,
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
        ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ],
)
def test_tokens_are_found_by_their_spellings(spellings: tuple[str, ...]) -> None:
    assert found(*spellings) == FimTokens(FIRST, FIRST + 1, FIRST + 2)


def test_tokens_that_begin_another_file_end_infill() -> None:
    tokens = found(*QWEN, "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
    assert tokens == FimTokens(FIRST, FIRST + 1, FIRST + 2, frozenset({FIRST + 3, FIRST + 4, FIRST + 5}))


@pytest.mark.parametrize(
    "names",
    [
        ("fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id"),
        ("prefix_token_id", "suffix_token_id", "middle_token_id"),
    ],
)
def test_keys_of_the_file_take_precedence_over_spellings(names: tuple[str, str, str]) -> None:
    keys = dict(zip(names, (7, 8, 9), strict=True))
    assert found(**keys) == FimTokens(7, 8, 9)
    assert found(*QWEN, **keys) == FimTokens(7, 8, 9)


@pytest.mark.parametrize("wrong", [-1, 2**32 - 1, True, "7", 7.0])
def test_a_key_that_is_not_an_id_counts_as_missing(wrong: Any) -> None:
    assert found(*QWEN, fim_pre_token_id=wrong) == FimTokens(FIRST, FIRST + 1, FIRST + 2)
    assert found(fim_pre_token_id=wrong, fim_suf_token_id=8, fim_mid_token_id=9) is None


def test_a_model_without_all_infill_tokens_has_none() -> None:
    assert found() is None
    assert found(*QWEN[:2]) is None
    assert found(*QWEN[:2], fim_mid_token_id=FIRST) is None, "one token cannot have two roles"
