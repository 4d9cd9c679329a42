"""/tokenize, /detokenize and /tokenizer_info, as clients of vLLM and of llama.cpp use them."""

import json

import httpx
import pytest

from ballast.text.loading import load_text
from devkit.models.written import write_tiny_model
from devkit.servers.process import FAKE, JSON, ServerProcess


@pytest.fixture(scope="module")
def server():
    with ServerProcess("--strict_model_name", module=FAKE) as process:
        yield process


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(server, tokenizer) of a model that has BOS, control tokens and a chat template."""
    model = write_tiny_model(tmp_path_factory.mktemp("tiny"), arch="v3")
    text = load_text(model.config_dir, {}, "tiny")
    with ServerProcess("--gguf_path", str(model.gguf), "--model_path", str(model.config_dir)) as process:
        yield process, text.tokenizer


def post(server, path, **body):
    reply = httpx.post(server.url + path, json=body, timeout=60)
    return reply.status_code, reply.json()


def test_vllms_format(tiny):
    server, tokenizer = tiny
    plain = tokenizer.encode("Hello, world")
    status, reply = post(server, "/tokenize", prompt="Hello, world")
    assert status == 200
    assert reply["tokens"] == [tokenizer.bos_id, *plain]
    assert reply["count"] == len(plain) + 1
    assert reply["max_model_len"] > 0
    assert reply["token_strs"] is None
    _, reply = post(server, "/tokenize", prompt="Hello, world", add_special_tokens=False, return_token_strs=True)
    assert reply["tokens"] == plain
    assert "".join(reply["token_strs"]) == "Hello, world"
    _, reply = post(server, "/detokenize", tokens=plain)
    assert reply == {"prompt": "Hello, world", "content": "Hello, world"}
    assert post(server, "/detokenize", tokens=[float(token_id) for token_id in plain])[1] == reply


def test_llama_cpps_format(tiny):
    server, tokenizer = tiny
    plain = tokenizer.encode("Hello, world")
    assert post(server, "/tokenize", content="Hello, world")[1]["tokens"] == plain
    assert post(server, "/tokenize", content="Hello, world", add_special=True)[1]["tokens"] == [
        tokenizer.bos_id,
        *plain,
    ]
    end = tokenizer.decode([tokenizer.eos_id], skip_control=False)
    assert post(server, "/tokenize", content=end)[1]["tokens"] == [tokenizer.eos_id]
    assert len(post(server, "/tokenize", content=end, parse_special=False)[1]["tokens"]) > 1
    pieces = post(server, "/tokenize", content="é", with_pieces=True)[1]["tokens"]
    data = b"".join(bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces)
    assert data.decode() == "é"


def test_a_conversation_has_the_tokens_that_a_chat_request_pays_for(tiny):
    server, _ = tiny
    messages = [{"role": "user", "content": "Hello <｜User｜> there"}]
    _, reply = post(server, "/tokenize", messages=messages)
    _, chat = post(server, "/v1/chat/completions", messages=messages, max_tokens=1)
    assert reply["count"] == len(reply["tokens"]) == chat["usage"]["prompt_tokens"]
    _, without = post(server, "/tokenize", messages=messages, add_generation_prompt=False)
    assert without["tokens"] == reply["tokens"][: without["count"]]
    assert without["count"] < reply["count"]


def test_tokenizer_info_has_the_fields_of_evaluation_tools(tiny):
    server, tokenizer = tiny
    info = httpx.get(server.url + "/tokenizer_info", timeout=60).json()
    assert (info["bos_token_id"], info["eos_token_id"]) == (tokenizer.bos_id, tokenizer.eos_id)
    assert info["eos_token"] == tokenizer.decode([tokenizer.eos_id], skip_control=False)
    assert info["vocab_size"] == tokenizer.vocab_size


def test_tokenizer_info_has_no_paths_of_the_server(tiny):
    server, _ = tiny
    values = httpx.get(server.url + "/tokenizer_info", timeout=60).json().values()
    assert [each for each in values if isinstance(each, str) and "/" in each] == []


def test_characters_in_parts_become_replacement_characters(server):
    ids = post(server, "/tokenize", content="é")[1]["tokens"]
    assert len(ids) == 2
    assert post(server, "/detokenize", tokens=ids[:1])[1]["content"] == "\ufffd"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "a"}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"text": "a"}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"content": "\ud800"}, None),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_an_invalid_body_is_rejected(server, path, body, param):
    reply = httpx.post(server.url + path, content=json.dumps(body), headers=JSON, timeout=60)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_a_model_of_another_name_is_not_found(server):
    assert post(server, "/tokenize", prompt="a", model="other")[0] == 404
    assert post(server, "/detokenize", tokens=[5], model="alphabet")[0] == 200
