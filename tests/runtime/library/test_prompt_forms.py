"""Prompts in the forms of vLLM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ballast import LLM, SamplingParams, TextPrompt, TokensPrompt
from ballast.errors import RequestError

GREEDY = SamplingParams(temperature=0, max_tokens=3)
TEXT = "What is 2 + 2?"


@pytest.fixture(scope="module")
def ids(llm: LLM) -> list[int]:
    return llm.get_tokenizer().encode(TEXT)


@pytest.fixture(scope="module")
def expected(llm: LLM) -> str:
    return llm.generate(TEXT, GREEDY, use_tqdm=False)[0].outputs[0].text


def test_a_prompt_may_be_a_dict_with_a_text(llm: LLM, expected: str, ids: list[int]) -> None:
    for prompts in (
        {"prompt": TEXT},
        [{"prompt": TEXT}],
        TextPrompt(prompt=TEXT),
        {"prompt": TEXT, "multi_modal_data": None},
    ):
        (output,) = llm.generate(prompts, GREEDY)
        assert (output.outputs[0].text, output.prompt, output.prompt_token_ids) == (expected, TEXT, tuple(ids))


def test_a_prompt_may_be_a_dict_with_token_ids(llm: LLM, expected: str, ids: list[int]) -> None:
    forms: list[Any] = [
        {"prompt_token_ids": ids},
        [{"prompt_token_ids": tuple(ids)}],
        TokensPrompt(prompt_token_ids=ids),
        {"prompt_token_ids": np.array(ids)},
        np.array(ids),
        [np.array(ids)],
        tuple(ids),
        [tuple(ids)],
    ]
    for prompts in forms:
        (output,) = llm.generate(prompts, GREEDY)
        assert (output.outputs[0].text, output.prompt, output.prompt_token_ids) == (expected, None, tuple(ids))


def test_ids_win_over_a_text_in_the_same_dict(llm: LLM, expected: str, ids: list[int]) -> None:
    (output,) = llm.generate({"prompt": "shown", "prompt_token_ids": ids}, GREEDY)
    assert (output.outputs[0].text, output.prompt) == (expected, "shown")


def test_forms_can_be_mixed_and_streamed(llm: LLM, expected: str, ids: list[int]) -> None:
    outputs = llm.generate([TEXT, ids, {"prompt": TEXT}, {"prompt_token_ids": ids}], GREEDY)
    assert [output.outputs[0].text for output in outputs] == [expected] * 4
    for prompt in ({"prompt": TEXT}, {"prompt_token_ids": ids}):
        assert "".join(piece.text for piece in llm.stream(prompt, GREEDY)) == expected
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({}, "a prompt must have `prompt`, a text, or `prompt_token_ids`"),
        ({"prompt": None}, "a prompt must have `prompt`"),
        ({"prompt": 5}, "prompt=5: must be a string"),
        ({"prompt": [1, 2]}, "give token ids as `prompt_token_ids`"),
        ({"prompt_token_ids": "abc"}, "prompt_token_ids=abc: must be a string, a list of token ids"),
        ({"prompt_token_ids": 5}, "prompt_token_ids=5: must be"),
        ({"prompt_token_ids": [1.5]}, "must be a string, a list of token ids"),
        ({"prompt_token_ids": [10**9]}, "is not in the vocabulary"),
        (
            {"prompt": "a", "multi_modal_data": {"image": 1}},
            "multi_modal_data=.*images, audio and video are not supported",
        ),
        ({"prompt_embeds": [1]}, "prompt_embeds=.*prompts are texts or token ids"),
        ({"encoder_prompt": "a"}, "encoder_prompt=a: the models have no encoder"),
        ({"input_ids": [1]}, "give token ids as `prompt_token_ids`"),
        ({"role": "user", "content": "a"}, "give conversations to `chat`"),
        ({"promt": "a"}, "promt=a: unknown key"),
        (None, "must be a string, a list of token ids"),
        (5, "prompt=5: must be a string, a list of token ids"),
        ([None], "must be a string, a list of token ids"),
        (b"abc", "must be a string"),
        ([b"abc"], "must be a string"),
        ([1.5], "must be a string, a list of token ids"),
    ],
    ids=str,
)
def test_other_prompt_forms_are_rejected_with_a_fix(llm: LLM, prompt: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(prompt, GREEDY)
