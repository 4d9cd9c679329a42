"""A model whose file has no vocabulary, served for token ids: the real `openai` client against the real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from devkit.models.gguf_files import copy_model
from devkit.models.written import write_tiny_model
from devkit.servers.process import ServerProcess
from devkit.servers.sdk_client import openai_client

PROMPT = [5, 6, 7, 8, 9]
WHY = "this model's file has no vocabulary"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("model")
    file = copy_model(write_tiny_model(folder).gguf, folder / "ids-only.gguf")
    with ServerProcess("--gguf_path", str(file), "--cache_lens", "8192") as process:
        yield process


def complete(client: openai.OpenAI, prompt: Any, **fields: Any) -> Any:
    return client.completions.create(model="m", prompt=prompt, temperature=0, **fields)


def test_token_ids_are_accepted_and_returned(client: openai.OpenAI, server: ServerProcess) -> None:
    reply = complete(client, PROMPT, max_tokens=8)
    [choice] = reply.choices
    assert (choice.text, choice.finish_reason) == ("", "length")
    assert len(choice.token_ids) == reply.usage.completion_tokens == 8
    assert "requests are token ids" in server.event("model")["tokenizer"]
    longer = complete(client, PROMPT + choice.token_ids[:3], max_tokens=5).choices[0]
    assert longer.token_ids == choice.token_ids[3:]


def test_a_stream_carries_empty_text_and_each_id_once(client: openai.OpenAI) -> None:
    whole = complete(client, PROMPT, max_tokens=8).choices[0]
    chunks = list(complete(client, PROMPT, max_tokens=8, stream=True))
    ids = [token for chunk in chunks for token in getattr(chunk.choices[0], "token_ids", None) or ()]
    assert ids == whole.token_ids
    assert {chunk.choices[0].text for chunk in chunks} == {""}
    assert chunks[-1].choices[0].finish_reason == "length"


def test_several_prompts_and_a_stop_token(client: openai.OpenAI) -> None:
    alone = [complete(client, prompt, max_tokens=6).choices[0].token_ids for prompt in (PROMPT, PROMPT[1:])]
    both = complete(client, [PROMPT, PROMPT[1:]], max_tokens=6)
    assert [choice.token_ids for choice in both.choices] == alone
    last = next(index for index, token in enumerate(alone[0]) if token not in alone[0][:index] and index > 0)
    [stopped] = complete(client, PROMPT, max_tokens=6, extra_body={"stop_token_ids": [alone[0][last]]}).choices
    assert (stopped.finish_reason, stopped.token_ids) == ("stop", alone[0][: last + 1])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "hello"}, "prompt"),
        ({"prompt": PROMPT, "stop": ["a"]}, "stop"),
        ({"prompt": PROMPT, "echo": True}, "echo"),
        ({"prompt": PROMPT, "logprobs": 2}, "logprobs"),
        ({"prompt": PROMPT, "extra_body": {"structured_outputs": {"regex": "a+"}}}, "structured_outputs"),
    ],
)
def test_requests_that_need_text_are_rejected_with_the_reason(
    client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=WHY) as refused:
        client.completions.create(model="m", max_tokens=2, **fields)
    assert str(refused.value.param).startswith(param)


def test_chat_and_the_tokenizers_endpoints_say_why(client: openai.OpenAI, server: ServerProcess) -> None:
    with pytest.raises(openai.BadRequestError, match=WHY):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
    for path, body in (("/tokenize", {"prompt": "hello"}), ("/detokenize", {"tokens": [5]})):
        reply = httpx.post(server.url + path, json=body, timeout=60)
        assert (reply.status_code, WHY in reply.text) == (400, True)


def test_any_model_returns_ids_with_the_text_on_request() -> None:
    ask = {"ignore_eos": True, "return_token_ids": True}
    with (
        ServerProcess() as server,
        openai_client(server) as client,
    ):
        reply = complete(client, PROMPT, max_tokens=8, extra_body=ask)
        chunks = list(complete(client, PROMPT, max_tokens=8, stream=True, extra_body=ask))
        messages: Any = [{"role": "user", "content": "hello"}]
        chat: Any = client.chat.completions.create(model="m", messages=messages, max_tokens=4, extra_body=ask)
        plain: Any = complete(client, PROMPT, max_tokens=8)
    assert len(reply.choices[0].token_ids) == 8
    streamed = [token for chunk in chunks for token in getattr(chunk.choices[0], "token_ids", None) or ()]
    assert streamed == reply.choices[0].token_ids
    assert len(chat.choices[0].token_ids) == 4
    assert not hasattr(plain.choices[0], "token_ids")
