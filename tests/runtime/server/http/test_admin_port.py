"""Health, metrics and debugging on a separate port."""

import json
import signal
import urllib.request

import pytest

from devkit.servers.process import FAKE, JSON, ServerProcess

ADMIN_PATHS = ("/metrics", "/debug/state", "/debug/numa")
PROBES = ("/livez", "/readyz", "/version")


@pytest.fixture(scope="module")
def server():
    with ServerProcess("--admin_port", "0", "--step_s", "0.02", module=FAKE) as process:
        yield process


def test_the_admin_port_serves_probes_and_metrics_but_no_model(server):
    assert server.admin_port != server.port
    for path in ADMIN_PATHS + PROBES:
        assert server.get(path, admin=True)[0] == 200, path
    assert server.get("/v1/models", admin=True)[0] == 404
    assert server.get("/v1/chat/completions", admin=True)[0] == 404


def test_the_apis_port_keeps_only_the_probes(server):
    for path in ADMIN_PATHS:
        assert server.get(path)[0] == 404, path
    for path in (*PROBES, "/v1/models"):
        assert server.get(path)[0] == 200, path


def test_without_an_admin_port_the_apis_port_has_everything():
    with ServerProcess(module=FAKE) as server:
        assert server.admin_port is None
        for path in (*ADMIN_PATHS, *PROBES, "/v1/models"):
            assert server.get(path)[0] == 200, path


def test_both_ports_answer_until_the_last_request_has_ended():
    slow = ("--step_s", "0.05", "--max_new_tokens", "100")
    with ServerProcess("--admin_port", "0", *slow, module=FAKE) as server:
        body = json.dumps({"prompt": "abc", "max_tokens": 70, "stream": True}).encode()
        request = urllib.request.Request(server.url + "/v1/completions", body, JSON)
        with urllib.request.urlopen(request, timeout=30) as stream:
            server.send_signal(signal.SIGTERM)
            server.event("stopping")
            for admin in (True, False):
                assert server.get("/livez", admin=admin)[0] == 200
                assert server.get("/readyz", admin=admin)[0] == 503
            assert server.metrics()["ballast_batch_running"] == 1
            assert stream.read().endswith(b"data: [DONE]\n\n")
        assert server.wait() == 0
