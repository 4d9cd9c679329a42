"""Paths of vLLM, SGLang and llama.cpp's server that OpenAI's API does not have."""

import json

import httpx
import pytest

from devkit.servers.process import FAKE, ServerProcess

SLOW = ("--step_s", "0.02", "--max_batch_size", "2", "--max_new_tokens", "2000")
CHAT = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def server():
    with ServerProcess(*SLOW, module=FAKE) as process:
        yield process


def get(server, path, **more):
    return httpx.get(server.url + path, timeout=60, **more)


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/ping"])
def test_health_reports_whether_requests_are_accepted_without_a_key(tmp_path, server, path):
    assert (get(server, path).status_code, get(server, path).json()) == (200, {"status": "ok"})
    keys = tmp_path / "keys"
    keys.write_text("right\n")
    with ServerProcess("--load_s", "30", "--api_key_file", str(keys), module=FAKE, until_ready=False) as loading:
        reply = get(loading, path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "not_ready")
        assert get(loading, "/props").status_code == 401
    assert httpx.post(server.url + "/ping", timeout=60).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", CHAT),
        ("/completions", {"prompt": "abc", "max_tokens": 2}),
        ("/responses", {"input": "abc", "max_output_tokens": 2}),
    ],
)
def test_openais_paths_are_understood_without_their_prefix(server, path, body):
    short, long = (httpx.post(server.url + prefix + path, json=body, timeout=60).json() for prefix in ("", "/v1"))
    assert short.keys() == long.keys()
    assert short["object"] == long["object"]


def test_models_too(server):
    assert get(server, "/models").json() == get(server, "/v1/models").json()
    assert get(server, "/models/alphabet").json() == get(server, "/v1/models/alphabet").json()


def test_load_and_slots_show_running_requests(server):
    assert get(server, "/load").json() == {"server_load": 0}
    assert [slot["is_processing"] for slot in get(server, "/slots").json()] == [False, False]
    body = {"prompt": ["topsecret", "other"], "stream": True, "max_tokens": 900}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.wait_for(lambda metrics: metrics["ballast_batch_running"] == 2)
        assert get(server, "/load").json() == {"server_load": 2}
        slots = get(server, "/slots")
        assert [slot["is_processing"] for slot in slots.json()] == [True, True]
        assert b"secret" not in slots.content
        full = get(server, "/slots", params={"fail_on_no_slot": "1"})
        assert (full.status_code, full.json()["error"]["code"]) == (503, "no_free_slot")
    server.wait_until_empty()
    assert get(server, "/slots", params={"fail_on_no_slot": "1"}).status_code == 200


def test_props_have_the_fields_that_llama_clients_read(server):
    props = get(server, "/props").json()
    assert (props["total_slots"], props["model_alias"]) == (2, "alphabet")
    assert (
        props["default_generation_settings"]["n_ctx"]
        == json.loads(server.get("/v1/models")[2])["data"][0]["max_model_len"]
    )
    assert "messages" in props["chat_template"]


def test_a_template_is_applied(server):
    reply = httpx.post(server.url + "/apply-template", json=CHAT, timeout=60).json()
    assert reply["prompt"].endswith("abc")
    tokens = httpx.post(server.url + "/tokenize", json={"content": reply["prompt"]}, timeout=60).json()["count"]
    usage = httpx.post(server.url + "/v1/chat/completions", json=CHAT, timeout=60).json()["usage"]
    assert tokens == usage["prompt_tokens"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/v1/rerank", "/rerank"])
def test_embeddings_are_refused_by_name(server, path):
    reply = httpx.post(server.url + path, json={"input": "a"}, timeout=60)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "no_embeddings")
