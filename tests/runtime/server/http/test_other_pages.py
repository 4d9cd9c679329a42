"""Pages from other origins and host names: requests that they can make a browser send are rejected; requests meant for
this server are not."""

import json
import socket

import httpx
import pytest

from ballast.config.options import read_config
from ballast.errors import ConfigError
from ballast.server.http.hosts import default_hosts, is_allowed
from ballast.server.http.origins import is_same_origin
from devkit.servers.process import FAKE, ServerProcess

BODY = json.dumps({"prompt": "abc", "max_tokens": 2}).encode()
EVIL = "http://evil.example"


@pytest.fixture(scope="module")
def server():
    with ServerProcess("--admin_port", "0", module=FAKE) as process:
        yield process


def post(server, content_type="application/json", path="/v1/completions", **headers):
    """The reply to a POST of BODY, with no Content-Type for None."""
    given = {} if content_type is None else {"Content-Type": content_type}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(server.url + path, content=BODY, headers=given, timeout=60)


def get(url, path, **headers):
    return httpx.get(url + path, headers=headers, timeout=60)


def problem(reply):
    error = reply.json()["error"]
    return reply.status_code, error["code"], error["message"]


def raw(server, head):
    """The status of a hand-written request."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(head)
        return int(connection.recv(65536).split()[1])


# --- what a browser sends for any page -----------------------------------------------------------------------


def test_a_post_from_another_origin_does_no_work(server):
    before = server.metrics()["ballast_prompt_tokens_total"]
    moved = post(server, "text/plain;charset=UTF-8", Host="evil.example:10002", Origin=f"{EVIL}:10002")
    assert (moved.status_code, bool(moved.headers["x-request-id"])) == (421, True)
    assert post(server, "text/plain;charset=UTF-8", Origin=EVIL).status_code == 403
    assert post(server, "text/plain;charset=UTF-8").status_code == 415
    assert server.metrics()["ballast_prompt_tokens_total"] == before


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "text/plain",
        "text/plain; a=application/json",
        "text/plain, application/json",
        "application/json, text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "application/+json",
        "json",
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/tokenize"])
def test_a_body_that_is_not_declared_as_json_is_refused(server, content_type, path):
    reply = post(server, content_type, path)
    assert reply.status_code == 415
    message = reply.json()["error"]["message"]
    assert "-H 'Content-Type: application/json'" in message
    assert (f"Content-Type: {content_type};" if content_type else "has no Content-Type") in message


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON", "application/json; charset=utf-8", "application/vnd.api+json;v=1"],
)
def test_a_body_with_a_json_content_type_is_read(server, content_type):
    assert post(server, content_type).status_code == 200


# --- origins ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin",
    [
        EVIL,
        "null",
        "",
        "http://127.0.0.1",
        "http://127.0.0.1:1",
        "http://localhost.evil.example",
        "chrome-extension://abc",
        "http://",
    ],
)
def test_a_page_of_another_origin_is_refused_by_name(server, origin):
    status, code, message = problem(post(server, Origin=origin))
    assert (status, code) == (403, "origin_not_allowed")
    assert f"Origin: {origin} differs" in message
    assert f"Host: 127.0.0.1:{server.port}" in message
    assert "--cors_origins" in message
    assert get(server.url, "/v1/models", Origin=origin).status_code == 403
    assert get(server.admin_url, "/debug/state", Origin=origin).status_code == 403


def test_proxy_headers_are_ignored(server):
    given = {"X-Forwarded-Host": "evil.example", "Forwarded": "host=evil.example"}
    assert post(server, **given, Origin=EVIL).status_code == 403
    assert post(server, **{"X-Forwarded-Host": "127.0.0.1"}, Host="evil.example").status_code == 421


def test_the_servers_own_page_is_allowed(server):
    assert post(server, Origin=f"http://127.0.0.1:{server.port}").status_code == 200
    assert post(server, Host="localhost:8080", Origin="http://LocalHost:8080").status_code == 200
    # A proxy has changed Host; the browser reports that the page is from the same origin.
    assert post(server, Origin="https://chat.example.org", Sec_Fetch_Site="same-origin").status_code == 200
    assert post(server, Origin="https://chat.example.org", Sec_Fetch_Site="same-site").status_code == 403


@pytest.mark.parametrize(
    ("origin", "host", "scheme", "same"),
    [
        ("https://a.example", "a.example", "http", True),  # a proxy speaks https
        ("https://a.example", "a.example:443", "http", True),
        ("http://a.example", "a.example:80", "http", True),
        ("http://a.example", "a.example.:80", "http", True),
        ("https://a.example", "a.example", "https", True),
        ("http://a.example", "a.example", "https", False),
        ("https://a.example", "a.example:80", "http", False),
        ("http://[::1]:10002", "[::1]:10002", "http", True),
        ("http://a.example:10002", "a.example", "http", False),
        ("http://a.example@b.example", "b.example", "http", False),
        ("null", "null", "http", False),
        ("http://a.example", "", "http", False),
    ],
)
def test_an_origin_is_the_server_s_own_when_host_and_port_are(origin, host, scheme, same):
    assert is_same_origin(origin, host, scheme) is same


def test_pages_of_allowed_origins_are_served():
    options = ("--cors_origins", "https://chat.example.org", "--cors_origins", "app://obsidian.md")
    with ServerProcess(*options, module=FAKE) as server:
        for origin in ("https://chat.example.org", "app://obsidian.md"):
            reply = post(server, Origin=origin)
            assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, origin)
        assert post(server, Origin=EVIL).status_code == 403
        assert post(server, Origin="null").status_code == 403
        # A page of an allowed origin can read the reason of a rejection.
        misdirected = post(server, Origin="https://chat.example.org", Host="evil.example")
        assert misdirected.status_code == 421
        assert misdirected.headers["access-control-allow-origin"] == "https://chat.example.org"


# --- hosts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1", "127.1.2.3:8080", "[::1]:10002", "10.1.2.3:30002"],
)
def test_addresses_and_localhost_are_hosts_of_every_server(server, host):
    assert post(server, Host=host).status_code == 200
    assert get(server.admin_url, "/metrics", Host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "host.docker.internal:10002",
        "Host.Docker.Internal.",
        "gateway.docker.internal",
        "host.containers.internal",
        "host.lima.internal",
        "ballast.localhost:8080",
    ],
)
def test_container_host_names_are_always_allowed(server, host):
    assert post(server, Host=host).status_code == 200
    assert post(server, Host=host, Origin=f"http://{host}").status_code == 200
    assert post(server, Host=host, Origin=EVIL).status_code == 403
    assert get(server.admin_url, "/metrics", Host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:10002",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "host.docker.internal.evil.example",
        "evil.docker.internal",
        "docker.internal",
        "metadata.google.internal",
        "evillocalhost",
        "0x7f.1",
        "evil.example@127.0.0.1",
        "127.0.0.1/evil.example",
        "::1",
        "[::1",
        "localhost:80:80",
        "localhost..",
        "",
    ],
)
def test_another_name_is_refused(server, host):
    status, code, message = problem(post(server, Host=host))
    assert (status, code) == (421, "host_not_allowed")
    assert f"Host: {host} is not a host of this server" in message
    assert "--allowed_hosts" in message
    assert get(server.url, "/", Host=host).status_code == 421
    assert get(server.admin_url, "/debug/state", Host=host).status_code == 421


def test_anthropics_clients_get_rejections_in_their_own_format(server):
    error = post(server, path="/v1/messages", Host="evil.example").json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    error = post(server, path="/v1/messages", Origin=EVIL).json()
    assert (error["type"], error["error"]["type"]) == ("error", "permission_error")


def test_probes_are_answered_for_any_client(server):
    for path in ("/livez", "/readyz"):
        for url in (server.url, server.admin_url):
            assert get(url, path, Host="evil.example", Origin=EVIL).status_code == 200


def test_only_http_1_0_may_omit_the_host(server):
    assert raw(server, b"GET /version HTTP/1.0\r\n\r\n") == 200
    assert raw(server, b"GET /version HTTP/1.1\r\n\r\n") == 400
    assert raw(server, b"GET /version HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n") == 400
    assert raw(server, b"GET /version HTTP/1.0\r\nHost: evil.example\r\n\r\n") == 421


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://evil.example", "localhost", 421),
        ("http://localhost@evil.example", "localhost", 421),
        ("http://localhost:1", "evil.example", 200),
        ("http://[::1]:1", "evil.example", 200),
    ],
)
def test_an_absolute_request_target_overrides_the_host_header(server, target, host, status):
    assert raw(server, f"GET {target}/version HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()) == status


def test_allowed_host_names_apply_to_the_api_port():
    options = ("--allowed_hosts", "Chat.Example.org.", "--allowed_hosts", "*.lan", "--admin_port", "0")
    with ServerProcess(*options, module=FAKE) as server:
        for host in ("chat.example.org", "CHAT.example.org.:443", "gpu.lan", "a.b.lan:80", "127.0.0.1", "localhost"):
            assert post(server, Host=host).status_code == 200, host
        for host in ("example.org", "x.chat.example.org", "lan", "lan.", "evillan", "chat.example.org.evil.example"):
            assert post(server, Host=host).status_code == 421, host
        assert post(server, Host="gpu.lan", Origin="http://gpu.lan").status_code == 200
        assert post(server, Host="gpu.lan", Origin="http://chat.lan").status_code == 403
        assert get(server.admin_url, "/metrics", Host="gpu.lan").status_code == 421


def test_where_every_request_wants_a_key_the_name_makes_no_difference(tmp_path):
    (tmp_path / "keys").write_text("the-key\n")
    options = ("--api_key_file", str(tmp_path / "keys"), "--admin_port", "0")
    with ServerProcess(*options, module=FAKE) as server:
        assert post(server, Host="chat.example.org", Authorization="Bearer the-key").status_code == 200
        assert post(server, Host="chat.example.org").status_code == 401
        # The admin port requires no key.
        assert get(server.admin_url, "/metrics", Host="chat.example.org").status_code == 421


@pytest.mark.parametrize(
    ("host", "address", "wants_key", "name", "allowed"),
    [
        ("127.0.0.1", "127.0.0.1", False, "evil.example", False),
        ("localhost", "::1", False, "evil.example", False),
        ("gpu.lan", "192.168.1.5", False, "gpu.lan", True),
        ("gpu.lan", "192.168.1.5", False, "evil.example", False),
        ("0.0.0.0", "0.0.0.0", False, "service.namespace.svc", True),
        ("::", "::", False, "service.namespace.svc", True),
        ("0", "0.0.0.0", False, "service.namespace.svc", True),
        ("fe80::1%eth0", "fe80::1%eth0", False, "evil.example", False),
        ("127.0.0.1", "127.0.0.1", True, "evil.example", True),
    ],
)
def test_by_default_a_server_has_the_name_that_it_listens_on(host, address, wants_key, name, allowed):
    assert is_allowed(name, default_hosts(host, address, wants_key=wants_key)) is allowed


@pytest.mark.parametrize("host", ["http://chat.example.org", "chat.example.org:80", "*example.org", "a.*", "bücher.de"])
def test_a_host_that_no_header_could_have_is_refused_at_start(host):
    with pytest.raises(ConfigError, match=r"allowed_hosts=.*must be a host name without port"):
        read_config({"allowed_hosts": [host]})
