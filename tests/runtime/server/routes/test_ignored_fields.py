"""Unknown fields over HTTP: each API answers and reports what it ignored."""

import json

import httpx
import pytest

from devkit.servers.process import FAKE, ServerProcess

USER = {"role": "user", "content": "abc"}
BODIES = {
    "/v1/completions": {"prompt": "abc", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [USER], "max_tokens": 2},
    "/v1/messages": {"messages": [USER], "model": "m", "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [USER], "model": "m"},
    "/v1/responses": {"input": "abc", "max_output_tokens": 2},
    "/tokenize": {"prompt": "abc"},
    "/detokenize": {"tokens": [5]},
}


@pytest.fixture(scope="module")
def server():
    with ServerProcess(module=FAKE) as process:
        yield process


@pytest.mark.parametrize("path", BODIES)
def test_an_unknown_field_is_ignored_reported_and_counted(server, path):
    before = server.metrics()["ballast_ignored_fields_total"]
    reply = httpx.post(server.url + path, json=BODIES[path] | {"magic": 1, "a\r\nSet-Cookie: b": 2}, timeout=60)
    assert (reply.status_code, reply.headers["x-ballast-ignored"]) == (200, "magic, a??Set-Cookie??b")
    assert "set-cookie" not in reply.headers
    server.wait_for(lambda metrics: metrics["ballast_ignored_fields_total"] == before + 2)
    assert "x-ballast-ignored" not in httpx.post(server.url + path, json=BODIES[path], timeout=60).headers


def test_a_stream_and_the_log_report_ignored_fields_too(server):
    fields = {"stream": True, "temprature": 0}
    reply = httpx.post(server.url + "/v1/completions", json=BODIES["/v1/completions"] | fields, timeout=60)
    assert reply.headers["x-ballast-ignored"] == "temprature"
    assert reply.text.endswith("[DONE]\n\n")
    server.wait_for(lambda _: any(event.get("ignored_fields") == "temprature" for event in server.events))
    assert server.event("fields ignored")["level"] == "warning"


def test_they_can_be_refused():
    with ServerProcess("--unknown_fields", "refuse", module=FAKE) as server:
        for path, body in BODIES.items():
            reply = httpx.post(server.url + path, json=body | {"magic": 1}, timeout=60)
            assert reply.status_code == 400
            assert "magic: this server does not know this field" in json.dumps(reply.json())
            assert httpx.post(server.url + path, json=body, timeout=60).status_code == 200
