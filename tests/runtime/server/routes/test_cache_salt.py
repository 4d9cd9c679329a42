"""`cache_salt`: a cached prefix is shared only between requests with the same salt, in every API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from devkit.servers.process import FAKE, ServerProcess

TEXT = "a long beginning that fills more than one block of the cache, "


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--max_new_tokens", "4", module=FAKE) as process:
        yield process


def cached(server: ServerProcess, path: str, prompt: str, **fields: Any) -> int:
    """Number of cached prompt tokens."""
    body: dict[str, Any] = {"max_tokens": 1} | fields
    if path == "/v1/responses":
        body = {"input": prompt, "max_output_tokens": 1} | fields
    elif path in ("/v1/completions", "/completion"):
        body["prompt"] = prompt
    else:
        body |= {"model": "m", "messages": [{"role": "user", "content": prompt}]}
    reply = httpx.post(server.url + path, json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    usage = reply.json().get("usage", {})
    found = {
        "/v1/messages": lambda: usage["cache_read_input_tokens"],
        "/v1/responses": lambda: usage["input_tokens_details"]["cached_tokens"],
        "/completion": lambda: reply.json()["tokens_cached"],
    }
    return int(found.get(path, lambda: usage["prompt_tokens_details"]["cached_tokens"])())


PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/completion"]


@pytest.mark.parametrize("path", PATHS)
def test_only_equal_salts_share_a_prefix(server: ServerProcess, path: str) -> None:
    prompt = f"{path} {TEXT}"
    assert cached(server, path, prompt, cache_salt="one") == 0
    assert cached(server, path, prompt) == 0, "requests without a salt do not share with salted ones"
    assert cached(server, path, prompt, cache_salt="two") == 0
    assert cached(server, path, prompt, cache_salt="one") >= 48
    assert cached(server, path, prompt, cache_salt=None) >= 48
    assert cached(server, path, prompt, cache_salt="two") >= 48


def test_equal_salts_share_a_prefix_across_apis(server: ServerProcess) -> None:
    prompt = f"across {TEXT}"
    assert cached(server, "/v1/chat/completions", prompt, cache_salt="x") == 0
    for path in PATHS:
        assert cached(server, path, prompt, cache_salt="x") >= 48
    assert cached(server, "/v1/completions", prompt) == 0


def test_sglangs_extra_key_keeps_prefixes_apart_too(server: ServerProcess) -> None:
    prompt = f"extra {TEXT}"
    path = "/v1/chat/completions"
    assert cached(server, path, prompt, extra_key="a") == 0
    assert cached(server, path, prompt, cache_salt="a") == 0
    assert cached(server, path, prompt, extra_key="a", cache_salt="a") == 0
    assert cached(server, path, prompt, extra_key="a") >= 48


def test_several_choices_of_a_salted_prompt_share_it(server: ServerProcess) -> None:
    fields = {"n": 3, "cache_salt": "several"}
    assert cached(server, "/v1/completions", f"n {TEXT}", **fields) == 0
    assert cached(server, "/v1/completions", f"n {TEXT}", **fields) >= 48


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("salt", ["", "x" * 1025, 5, ["x"], True])
def test_a_salt_is_a_text_of_bounded_length(server: ServerProcess, path: str, salt: Any) -> None:
    body = {"model": "m", "cache_salt": salt} | ({} if path == "/v1/responses" else {"max_tokens": 1})
    prompts = {"/v1/responses": {"input": "a"}, "/v1/completions": {"prompt": "a"}, "/completion": {"prompt": "a"}}
    body |= prompts.get(path, {"messages": [{"role": "user", "content": "a"}]})
    reply = httpx.post(server.url + path, json=body, timeout=60)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith("cache_salt: ")
