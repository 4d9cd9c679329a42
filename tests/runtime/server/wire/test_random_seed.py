"""The seed -1 requests a random seed, in every API. All other integers are seeds, except 2**32 - 1 in llama.cpp's
API."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from ballast.errors import RequestError
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.llama_cpp.request import LlamaRequest, parse_llama
from ballast.wire.openai.request import ChatCompletionRequest, CompletionRequest, parse_body, to_sampling
from ballast.wire.responses.request import parse_responses, to_chat

MESSAGES = [{"role": "user", "content": "hi"}]


def completion(seed: Any) -> CompletionRequest:
    return parse_body(CompletionRequest, orjson.dumps({"prompt": "a", "seed": seed}), 999, IgnoredFields())


def chat(seed: Any) -> ChatCompletionRequest:
    return parse_body(ChatCompletionRequest, orjson.dumps({"messages": MESSAGES, "seed": seed}), 999, IgnoredFields())


def response(seed: Any) -> ChatCompletionRequest:
    body = parse_responses(orjson.dumps({"input": "hi", "seed": seed}), 999, IgnoredFields())
    return to_chat(body, IgnoredFields())[0]


def llama(seed: Any) -> LlamaRequest:
    return parse_llama(LlamaRequest, orjson.dumps({"prompt": "a", "seed": seed}), 999, IgnoredFields())


APIS = (completion, chat, response, llama)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("requested", "used"),
    [
        (-1, None),
        (-1.0, None),
        (None, None),
        (0, 0),
        (7, 7),
        (-2, -2),
        (2**32, 2**32),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
    ],
)
def test_minus_one_and_null_are_random(api: Any, requested: Any, used: int | None) -> None:
    assert to_sampling(api(requested), max_tokens=1, eos_ids=frozenset()).seed == used


@pytest.mark.parametrize("api", APIS)
def test_minus_one_as_32_bits_is_random_for_llamas_clients(api: Any) -> None:
    used = to_sampling(api(2**32 - 1), max_tokens=1, eos_ids=frozenset()).seed
    assert used == (None if api is llama else 2**32 - 1)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("wrong", ["7", "-1", 1.5, 2**63, True, [1], {}])
def test_an_invalid_seed_is_rejected_by_name(api: Any, wrong: Any) -> None:
    with pytest.raises(RequestError, match=r"^seed: ") as refused:
        api(wrong)
    assert refused.value.param == "seed"
