"""A request's priority: the requested one, limited by the server or the client's key."""

import json
from contextlib import contextmanager

import httpx
import pytest

from ballast.cli import serve_config
from ballast.config.whole_range import WholeRange
from ballast.errors import ConfigError
from ballast.generation.priority import granted_priority
from ballast.server.http.keys import read_keys
from devkit.servers.process import FAKE, ServerProcess

SLOW = ("--step_s", "0.02", "--max_new_tokens", "1000", "--admin_port", "0")
PROMPTS = {
    "/v1/completions": {"prompt": "abc"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "abc"}], "model": "m", "max_tokens": 1000},
    "/v1/responses": {"input": "abc"},
}


@pytest.fixture(scope="module")
def plain():
    with ServerProcess(*SLOW, module=FAKE) as process:
        yield process


@pytest.fixture(scope="module")
def ranged(tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("person\nbatch priority=1..9\nurgent\tpriority=-9..0\n")
    options = ("--client_priority", "-5..5", "--api_key_file", str(file))
    with ServerProcess(*SLOW, *options, module=FAKE) as process:
        yield process


def ask(server, key="", path="/v1/completions", **fields):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.stream(
        "POST", server.url + path, json=PROMPTS[path] | {"stream": True} | fields, headers=headers, timeout=60
    )


@contextmanager
def running(server, *args, **fields):
    """(the reply that has begun, the priority of the running request)."""
    server.wait_until_empty()
    with ask(server, *args, **fields) as reply:
        assert reply.status_code == 200, reply.read()
        (request,) = json.loads(server.get("/debug/state", admin=True)[2])["requests"]
        yield reply, request["priority"]


def refused(server, *args, **fields):
    with ask(server, *args, **fields) as reply:
        return reply.status_code, json.loads(reply.read())["error"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_by_default_the_field_is_ignored_and_reported(plain, path):
    with running(plain, path=path, priority=-5) as (reply, priority):
        assert (priority, reply.headers["x-ballast-ignored"]) == (0, "priority")
    plain.wait_for(lambda _: any(event.get("ignored_fields") == "priority" for event in plain.events))
    for fields in ({}, {"priority": None}, {"priority": 0}):
        with running(plain, path=path, **fields) as (reply, priority):
            assert (priority, "x-ballast-ignored" in reply.headers) == (0, False)


@pytest.mark.parametrize(
    ("key", "requested", "granted"),
    [
        ("person", -5, -5),
        ("person", 5, 5),
        ("person", None, 0),
        ("batch", 9, 9),
        ("batch", None, 1),
        ("urgent", -9, -9),
        ("urgent", None, 0),
    ],
)
def test_allowed_priorities_are_granted(ranged, key, requested, granted):
    with running(ranged, key, priority=requested) as (reply, priority):
        assert (priority, "x-ballast-ignored" in reply.headers) == (granted, False)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_a_keys_priority_range_applies_to_apis_without_the_field(ranged, path):
    with running(ranged, "batch", path) as (_, priority):
        assert priority == 1


@pytest.mark.parametrize(
    ("key", "requested", "range_"),
    [
        ("person", -6, "-5..5"),
        ("person", 6, "-5..5"),
        ("batch", 0, "1..9"),
        ("batch", -5, "1..9"),
        ("urgent", 1, "-9..0"),
    ],
)
def test_forbidden_priorities_are_rejected_by_name(ranged, key, requested, range_):
    status, error = refused(ranged, key, priority=requested)
    assert (status, error["param"]) == (400, "priority")
    assert f"priority: {requested} is outside the range of this client" in error["message"]
    assert range_ in error["message"]


def test_the_nearest_to_zero_is_the_default():
    granted = [granted_priority(None, WholeRange(*each)) for each in ((-5, 5), (1, 9), (-9, -2), (0, 0))]
    assert granted == [0, 1, -2, 0]


@pytest.mark.parametrize("words", [("--client_priority", "-5..5"), ("--client-priority=-5..5",)])
def test_a_range_that_begins_with_a_minus_is_no_option(words):
    assert serve_config(words).scheduling.client_priority == WholeRange(-5, 5)


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "5..-5",
        "-5...5",
        "a..b",
        "1..2..3",
        "",
        "٣..٤",
        "1..99999999999",
        "3000000000..4000000000",
        "-9999999999..0",
    ],
)
def test_an_invalid_range_is_rejected(text):
    with pytest.raises(ConfigError, match=r"client_priority=.*must be two whole numbers as LOW\.\.HIGH"):
        serve_config([f"--client_priority={text}"])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("secret priority=5", r"line 1: priority= needs two whole numbers as LOW\.\.HIGH"),
        ("secret priority=5..-5", "line 1: priority= needs"),
        ("secret priority = 1..2", "line 1 is not a key"),
        ("secret priority=1..2 priority=1..2", "line 1 is not a key"),
        ("secret prio=1..2", "line 1 is not a key.*optionally followed by priority=LOW"),
    ],
)
def test_an_invalid_line_is_rejected_without_repeating_it(tmp_path, line, problem):
    (tmp_path / "keys").write_text(line)
    with pytest.raises(ValueError, match=problem) as caught:
        read_keys(tmp_path / "keys")
    assert "secret" not in str(caught.value)
