"""Access: keys, TLS, pages of other origins, and a proxy's prefix."""

import json
import ssl
import time
import urllib.error
import urllib.request

import httpx
import openai
import pytest
import trustme

from ballast.errors import ConfigError
from ballast.server.http import keys
from ballast.server.http.keys import Keys, read_keys
from ballast.server.http.tls import Tls
from devkit.servers.process import FAKE, JSON, ServerProcess

ORIGIN = "https://chat.example.org"
BODY = {"prompt": "abc", "max_tokens": 2}


@pytest.fixture
def key_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# of the tests\nfirst-key\n\n  second-key  \n")
    return file


def status(server, key=None, path="/v1/completions", header="Authorization", scheme="Bearer "):
    headers = {} if key is None else {header: scheme + key}
    method = "POST" if path == "/v1/completions" else "GET"
    return httpx.request(method, server.url + path, json=BODY, headers=headers, timeout=60)


def until(condition, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- keys --------------------------------------------------------------------------------------------------


def test_all_paths_except_the_probes_require_a_key(key_file):
    with ServerProcess("--api_key_file", str(key_file), module=FAKE) as server:
        for path in ("/v1/models", "/metrics", "/debug/state", "/version", "/nowhere"):
            assert status(server, path=path).status_code == 401, path
            assert status(server, "first-key", path=path).status_code in (200, 404), path
        for path in ("/livez", "/readyz"):
            assert status(server, path=path).status_code == 200, path

        refused = status(server)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.headers["x-request-id"]
        assert refused.json()["error"]["type"] == "authentication_error"
        assert refused.json()["error"]["code"] == "invalid_api_key"
        for key in ("first-key", "second-key"):
            assert status(server, key).status_code == 200
            assert status(server, key, header="X-Api-Key", scheme="").status_code == 200
        assert status(server, "first-key", scheme="bearer  ").status_code == 200
        for wrong in ("first-ke", "first-key2", "First-key", "x", "# of the tests"):
            assert status(server, wrong).status_code == 401, wrong
        assert status(server, "first-key", scheme="Basic ").status_code == 401

        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError, match="not valid here") as caught:
                client.models.list()
            assert caught.value.code == "invalid_api_key"


def test_the_admin_port_wants_no_key(key_file):
    with ServerProcess("--api_key_file", str(key_file), "--admin_port", "0", module=FAKE) as server:
        assert server.get("/metrics", admin=True)[0] == server.get("/debug/state", admin=True)[0] == 200
        assert server.get("/v1/models")[0] == 401


def test_a_changed_key_file_is_reloaded_and_a_deleted_one_keeps_the_last_keys(key_file):
    with ServerProcess("--api_key_file", str(key_file), module=FAKE) as server:
        assert status(server, "third-key").status_code == 401
        key_file.write_text("third-key\n")
        until(lambda: status(server, "third-key").status_code == 200)
        assert status(server, "first-key").status_code == 401
        key_file.unlink()
        until(lambda: status(server, "third-key") and any("stays valid" in event["event"] for event in server.events))
        assert status(server, "third-key").status_code == 200
        key_file.write_text("")
        until(
            lambda: status(server, "third-key") and any("contains no keys" in e.get("error", "") for e in server.events)
        )
        assert status(server, "third-key").status_code == 200
        key_file.write_text("fourth-key\n")
        until(lambda: status(server, "fourth-key").status_code == 200)
        assert not any("-key" in json.dumps(event) for event in server.events), "a key was logged"


async def test_a_file_that_is_checked_again_logs_a_problem_once(key_file, monkeypatch, caplog):
    monkeypatch.setattr(keys, "MAX_AGE_S", 0.0)
    valid = Keys(key_file)
    key_file.unlink()
    for _ in range(3):
        assert await valid.find("first-key")
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "contains no keys"),
        (b"# nothing\n\n", "contains no keys"),
        (b"good\nsecret with spaces\n", "line 2 is not a key"),
        (b"\xff\xfesecret\n", "line 1 is not a key"),
        (b"x" * ((1 << 20) + 1), "expected one API key per line"),
    ],
)
def test_a_file_without_usable_keys_is_refused_without_repeating_it(tmp_path, content, sentence):
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"api_key_file=.*{sentence}") as caught:
        Keys(file)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"api_key_file=.*absent: cannot be read: No such file"):
        Keys(tmp_path / "absent")


def test_the_file_may_have_windows_line_endings(tmp_path):
    plain, windows = tmp_path / "plain", tmp_path / "windows"
    plain.write_bytes(b"a\nb\n")
    windows.write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    assert read_keys(windows) == read_keys(plain)


# --- TLS ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def write_pair(authority, directory):
    pair = authority.issue_cert("127.0.0.1")
    cert, key = directory / "tls.crt", directory / "tls.key"
    cert.write_bytes(b"".join(part.bytes() for part in pair.cert_chain_pems))
    key.write_bytes(pair.private_key_pem.bytes())
    return cert, key


def test_the_api_speaks_https_and_the_admin_port_does_not(authority, tmp_path):
    cert, key = write_pair(authority, tmp_path)
    options = ("--tls_cert_file", str(cert), "--tls_key_file", str(key), "--admin_port", "0")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with ServerProcess(*options, module=FAKE) as server:
        body = json.dumps({**BODY, "max_tokens": 30, "stream": True}).encode()
        url = f"https://127.0.0.1:{server.port}/v1/completions"
        request = urllib.request.Request(url, body, JSON)
        with urllib.request.urlopen(request, timeout=30, context=trusting) as reply:
            assert reply.read().endswith(b"data: [DONE]\n\n")
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(url, timeout=30, context=ssl.create_default_context())
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.url + "/livez", timeout=60)
        assert server.get("/livez", admin=True)[0] == 200


def test_a_renewed_certificate_is_used_only_with_its_key(authority, tmp_path):
    cert, key = write_pair(authority, tmp_path)
    tls = Tls.load(cert, key)
    before = key.read_bytes()
    write_pair(authority, tmp_path)
    after = key.read_bytes()
    key.write_bytes(before)
    tls.certificate.refresh()
    assert tls.certificate._problem, "a certificate whose key has not been written yet"
    key.write_bytes(after)
    tls.certificate.refresh()
    assert not tls.certificate._problem


def test_a_certificate_with_the_wrong_key_is_rejected(authority, tmp_path):
    cert, key = write_pair(authority, tmp_path)
    (tmp_path / "other").mkdir()
    _, other_key = write_pair(authority, tmp_path / "other")
    for bad_cert, bad_key, sentence in (
        (cert, other_key, "belong together: KEY_VALUES_MISMATCH"),
        (key, cert, "belong together"),
        (tmp_path / "absent", key, "cannot be read: No such file"),
        (cert, tmp_path / "absent", "tls_key_file=.*cannot be read: No such file"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            Tls.load(bad_cert, bad_key)


# --- other origins, other paths ------------------------------------------------------------------------------


def test_pages_of_other_origins_are_allowed_only_if_configured(key_file):
    ask = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    ask["Access-Control-Request-Headers"] = "authorization,content-type"
    options = ("--cors_origins", ORIGIN, "--api_key_file", str(key_file))
    with ServerProcess(*options, module=FAKE) as server:
        leave = httpx.options(server.url + "/v1/completions", headers=ask, timeout=60)
        assert leave.status_code == 200
        assert leave.headers["access-control-allow-origin"] == ORIGIN
        assert "authorization" in leave.headers["access-control-allow-headers"]
        refused = httpx.post(server.url + "/v1/completions", json=BODY, headers={"Origin": ORIGIN}, timeout=60)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == ORIGIN
        readable = set(refused.headers["access-control-expose-headers"].split(", "))
        assert readable >= {"X-Request-Id", "Request-Id", "Retry-After", "Retry-After-Ms"}
        ask["Origin"] = "https://evil.example.org"
        other = httpx.options(server.url + "/v1/completions", headers=ask, timeout=60)
        assert "access-control-allow-origin" not in other.headers
    with ServerProcess("--root_path", "/llm/ballast", module=FAKE) as server:
        assert "access-control-allow-origin" not in httpx.get(server.url + "/livez", headers=ask, timeout=60).headers
        for prefix in ("", "/llm/ballast"):
            assert server.get(prefix + "/v1/models")[0] == server.get(prefix + "/livez")[0] == 200
        assert server.get("/llm/ballast2/livez")[0] == 404
