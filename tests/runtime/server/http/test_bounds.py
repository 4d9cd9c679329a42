"""Limits per client: connections, heads, bodies and replies that are too large, too slow or never read."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import uvloop

from ballast.config.options import Config, SchedulingConfig, ServerConfig
from ballast.engine.startup.build import EngineSettings, build_engine
from ballast.generation.text_threads import TextThreads
from ballast.prepared_model import PreparedModel
from ballast.server.composition import Composition
from ballast.server.http.middleware import RequestScope
from ballast.text.loading import load_text
from devkit.models.vocabulary import byte_metadata, byte_tokenizer
from devkit.servers.process import FAKE, JSON, ServerProcess

SLOW = ("--step_s", "0.05", "--max_batch_size", "1", "--max_new_tokens", "1000")
IMPATIENT = (
    *("--max_connections", "8", "--head_timeout_s", "2", "--body_timeout_s", "2", "--stalled_timeout_s", "0.5"),
    *("--max_new_tokens", "60000", "--cache_lens", "65536", "--max_batch_size", "1", "--max_head_bytes", "10000"),
)
PATIENT = ("--whole_body_timeout_s", "1.5")
GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def server():
    with ServerProcess(*SLOW, module=FAKE) as process:
        yield process


@pytest.fixture(scope="module")
def impatient():
    """A server with short limits, but longer than any delay between two lines of a test."""
    with ServerProcess(*IMPATIENT, module=FAKE) as process:
        yield process


@pytest.fixture(scope="module")
def patient():
    """A server whose only short limit is the one for a whole body."""
    with ServerProcess(*PATIENT, module=FAKE) as process:
        yield process


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def request(body, path="/v1/completions", version="1.1", headers=""):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\n{headers}Content-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def everything(connection):
    """All bytes until the server closes the connection."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def error_of(reply):
    """(status, error) of a raw reply."""
    head, body = reply.split(b"\r\n\r\n", 1)
    assert b"Connection: close" in head
    return int(head.split()[1]), json.loads(body)["error"]


def exchange(server, data):
    with connect(server) as connection:
        connection.sendall(data)
        return everything(connection)


# --- connections -------------------------------------------------------------------------------------------


def test_a_connection_that_brings_no_request_is_closed(impatient):
    with contextlib.ExitStack() as stack:
        connections = []
        for sent in (b"", b"\r\n", b"GET /livez HTTP/1.1\r\nHost", GET + b"\r\n"):
            connections.append(stack.enter_context(connect(impatient)))
            connections[-1].sendall(sent)
        *silent, answered = map(everything, connections)
        assert silent == [b"", b"", b""]
        assert answered.startswith(b"HTTP/1.1 200 ")


def test_a_head_sent_byte_by_byte_gets_no_extra_time(impatient):
    with connect(impatient) as connection:
        connection.settimeout(0.05)
        closed = False
        for byte in GET + b"X: " + b"x" * 400:
            try:
                connection.sendall(bytes([byte]))
                closed = connection.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
            if closed:
                break
        assert closed


def test_connections_over_the_limit_are_rejected_and_others_are_served(impatient):
    with contextlib.ExitStack() as held:
        # Accepted in order; with a request in progress, none of them is closed.
        for _ in range(8):
            connection = held.enter_context(connect(impatient))
            connection.sendall(request({"prompt": "a", "max_tokens": 60000, "stream": True}))
        with connect(impatient) as late:
            status, error = error_of(everything(late))
            assert (status, error["code"]) == (503, "too_many_connections")
    deadline = time.monotonic() + 30
    while impatient.get("/livez")[0] != 200:
        assert time.monotonic() < deadline, "connection slots of disconnected clients are not released"
        time.sleep(0.01)
    impatient.wait_until_empty(timeout_s=30)


@pytest.mark.parametrize(
    "head",
    [
        GET + b"X: " + b"x" * 4_000_000,
        GET + b"".join(b"X-%d: y\r\n" % n for n in range(200_000)),
        b"GET /" + b"x" * 2_000_000,
    ],
    ids=["one long header", "many headers", "a long path"],
)
def test_a_head_that_is_too_large_is_refused(impatient, head):
    status, error = error_of(exchange(impatient, head))
    assert (status, error["type"]) == (431, "invalid_request_error")
    assert "10000 bytes" in error["message"]


def test_a_trailer_that_is_too_large_ends_the_connection(impatient):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
    with connect(impatient) as connection:
        connection.sendall(head + b"X: " + b"x" * 4_000_000)
        assert error_of(everything(connection))[0] == 431


def test_invalid_http_gets_an_error_in_the_usual_format(impatient):
    status, error = error_of(exchange(impatient, b"hello\r\n\r\n"))
    assert (status, error["type"]) == (400, "invalid_request_error")


def test_a_body_that_stops_arriving_is_refused(impatient):
    with connect(impatient) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        reply = everything(connection)
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert b'"nothing of the request\'s body arrived for 2 s"' in reply


def test_a_body_that_trickles_is_refused_when_its_time_is_up(patient):
    with connect(patient) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        connection.settimeout(0.1)
        reply = b""
        for _ in range(200):
            connection.sendall(b" ")
            try:
                reply = connection.recv(65536)
                break
            except TimeoutError:
                continue
        connection.settimeout(20)
        reply += everything(connection)
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert b"the request's body did not arrive within 1.5 s" in reply


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_reads_nothing_is_disconnected(impatient, stream):
    """With a long model name, even a short stream is larger than the sockets' buffers."""
    gone = 'ballast_requests_total{endpoint="completions",outcome="client_gone"}'
    before = impatient.metrics().get(gone, 0)
    body = {"prompt": "a", "model": "m" * 100_000, "max_tokens": 60000, "stream": True}
    path = "/v1/completions" if stream else "/v1/chat/completions"
    if not stream:
        gone = gone.replace('"completions"', '"chat_completions"')
        before = impatient.metrics().get(gone, 0)
        body = {"messages": [{"role": "user", "content": "a"}], **{k: v for k, v in body.items() if k != "prompt"}}
    with connect(impatient) as connection:
        connection.sendall(request(body, path))
        impatient.wait_for(lambda now: now.get(gone, 0) == before + 1, timeout_s=30)
        impatient.wait_until_empty()
    assert not [event for event in impatient.events if event.get("level") == "error"]


# --- pipelining and departures ------------------------------------------------------------------------------


@pytest.mark.parametrize("second", [request({"prompt": "b"}), GET + b"\r\n", b"GET /li"], ids=["post", "get", "part"])
def test_a_client_that_pipelined_and_left_is_noticed(server, second):
    gone = 'ballast_requests_total{endpoint="completions",outcome="client_gone"}'
    before = server.metrics().get(gone, 0)
    with connect(server) as connection:
        connection.sendall(request({"prompt": "abc", "max_tokens": 1000}) + second)
        server.wait_for(lambda now: now["ballast_batch_running"] == 1)
    server.wait_until_empty()
    server.wait_for(lambda now: now.get(gone, 0) == before + 1)
    assert not [event for event in server.events if event.get("level") == "error"]


def test_a_pipelined_request_gets_no_reply_and_the_previous_reply_closes_the_connection(server):
    first, second = (request({"prompt": prompt, "max_tokens": 3}) for prompt in ("abc", "xyz"))
    reply = exchange(server, first + second)
    assert reply.count(b"HTTP/1.1 200 ") == 1
    assert b"connection: close" in reply
    assert b'"text":"def"' in reply


def test_requests_one_after_the_other_share_a_connection(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for stream in (True, False, True):
        connection.request(
            "POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 2, "stream": stream}), JSON
        )
        used = connection.sock
        assert connection.getresponse().read()
        assert connection.sock is used
    connection.close()


def test_a_reply_to_a_closed_connection_is_not_an_error():
    """After uvloop closes the connection and before uvicorn knows, writing raises RuntimeError."""
    counted = []

    async def converse():
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, *server.sockets[0].getsockname()
        )
        transport.abort()
        await asyncio.sleep(0.01)

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})

        async def send(message):
            transport.write(b"x")

        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        await RequestScope(app, counted.append)(scope, None, send)
        server.close()

    uvloop.run(converse())
    assert [(record.endpoint, record.outcome) for record in counted] == [("other", "client_gone")]


# --- the protocol's corners ---------------------------------------------------------------------------------


def test_an_upgrade_is_declined_and_the_request_is_answered_if_readable(server):
    websocket = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n"
    reply = exchange(server, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + websocket.encode() + b"\r\n")
    assert reply.startswith(b"HTTP/1.1 200 ")
    h2c = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
    status, error = error_of(exchange(server, request({"prompt": "abc", "max_tokens": 3}, headers=h2c)))
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert "Upgrade" in error["message"]
    assert not [event for event in server.events if "pip install" in json.dumps(event)]


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/version", "/metrics", "/debug/state", "/v1/models"])
def test_head_is_get_without_a_body(server, path):
    requested = urllib.request.Request(server.url + path, method="HEAD")
    with urllib.request.urlopen(requested, timeout=20) as response:
        assert (response.status, response.read()) == (200, b"")


def test_head_of_a_post_route_is_not_allowed(server):
    reply = exchange(server, b"HEAD /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 405 ")
    assert reply.endswith(b"\r\n\r\n")


def test_a_non_streamed_reply_to_http_1_0_has_a_length_and_is_not_chunked(server):
    head = exchange(server, request({"prompt": "abc", "max_tokens": 2}, version="1.0")).split(b"\r\n\r\n")[0].lower()
    assert b"content-length:" in head
    assert b"chunked" not in head


def test_a_stream_to_http_1_0_is_not_chunked_and_ends_with_the_connection(server):
    body = {"prompt": "abc", "max_tokens": 3, "stream": True}
    head, reply = exchange(server, request(body, version="1.0", headers="Connection: keep-alive\r\n")).split(
        b"\r\n\r\n", 1
    )
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    frames = reply.split(b"\n\n")
    assert frames.pop() == b""
    assert [frame[:6] for frame in frames] == [b"data: "] * 5
    assert frames[-1] == b"data: [DONE]"


def test_a_client_of_http_1_0_that_reads_slowly_gets_everything(patient):
    """Large frames make the server wait for it."""
    body = {"prompt": "abc", "model": "m" * 20_000, "max_tokens": 200, "stream": True}
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", patient.port))
        connection.sendall(request(body, version="1.0"))
        time.sleep(0.2)
        reply = everything(connection)
    assert reply.count(b"data: {") == 201
    assert reply.endswith(b"data: [DONE]\n\n")


# --- bodies -------------------------------------------------------------------------------------------------


def refused(server, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    connection.request("POST", path, json.dumps(body), JSON)
    response = connection.getresponse()
    error = json.loads(response.read())["error"]
    connection.close()
    return response.status, error["param"], error["code"], error["message"]


def parts(*numbers):
    return {"messages": [{"role": "user", "content": [""] * number} for number in numbers]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": [5] * 40_000}, "prompt"),
        ({"prompt": [[5] * 40_000]}, "prompt"),
        ({"prompt": ["x"] * 40_000}, "prompt"),
        (parts(40_000), "messages"),
        (parts(20_000, 20_000), "messages"),
        ({"messages": [{}] * 40_000}, "messages"),
        ({"prompt": " " * 400_000}, "prompt"),
    ],
    ids=["ids", "ids in a list", "prompts", "parts", "parts of two", "messages", "text"],
)
def test_a_prompt_that_cannot_fit_is_rejected_as_too_long(server, body, param):
    status, named, code, message = refused(server, body)
    assert (status, named, code) == (400, param, "context_length_exceeded")
    assert message.startswith("This model's maximum context length is 32768 tokens. However, ")


def test_the_largest_body_follows_from_the_context(server):
    status, _, _, message = refused(server, {"prompt": "a", "metadata": "x" * (1 << 20)})
    assert status == 413
    assert message == "the request's body is larger than 1048576 bytes; send less, or raise --max_body_bytes"


def test_bodies_over_the_total_limit_are_rejected():
    with ServerProcess("--max_bodies", "2", "--max_body_bytes", "100000", module=FAKE) as server:
        held = [connect(server) for _ in range(3)]
        for connection in held[:2]:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b" " * 99_999
            )
        held[2].sendall(request({"prompt": "x" * 1000}))
        reply = held[2].recv(65536)
        assert reply.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1" in reply.lower()
        for connection in held:
            connection.close()
        again = urllib.request.Request(server.url + "/v1/completions", b'{"prompt": "a", "max_tokens": 1}', JSON)
        with urllib.request.urlopen(again, timeout=20) as response:
            assert response.status == 200


def test_the_time_limit_covers_the_reading_of_the_body():
    with ServerProcess("--request_timeout_s", "0.5", module=FAKE) as server, connect(server) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert connection.recv(65536).startswith(b"HTTP/1.1 504 ")


@pytest.fixture
async def blocked():
    """An application whose only text thread is busy until the event is set, and that thread's pool."""
    config = Config(server=ServerConfig(request_timeout_s=1.5), scheduling=SchedulingConfig(max_queue=2))
    settings = EngineSettings(
        cache_lens=4096, max_batch_size=1, max_new_tokens=10, chunk_size=64, prefill_chunk_size=64, max_queue=2
    )

    def load(report):
        raise AssertionError("the engine is not started")

    engine = build_engine(load, settings, 4096)
    text = load_text(None, byte_metadata(), "bytes.gguf")
    shutting_down = asyncio.get_running_loop().create_future()
    release = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(release.wait, 60)
        model = PreparedModel(config, text, load, "m", 4096)
        app = Composition(model, engine, TextThreads(executor, executor), shutting_down, "0.0.0.0").apps().api
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:
            yield client, release
        release.set()


async def test_checking_and_tokenising_are_time_limited_and_not_on_the_event_loop(blocked):
    client, _ = blocked
    bodies = ({"prompt": "a"}, {"unknown": 1})
    for reply in await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies)):
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "request_timeout")
    assert (await client.get("/version")).status_code == 200
    assert (await client.get("/debug/state")).json()["preparing"] == 0, (
        "requests that timed out before they began are not processed"
    )


async def test_requests_waiting_for_tokenisation_are_limited_by_the_queue(blocked):
    client, _ = blocked
    replies = await asyncio.gather(*(client.post("/v1/completions", json={"prompt": "a"}) for _ in range(5)))
    assert sorted(reply.status_code for reply in replies) == [429, 429, 429, 504, 504]


def test_other_threads_run_while_a_text_is_tokenised():
    tokenizer = byte_tokenizer()
    encoding = threading.Thread(target=tokenizer.encode, args=("hello " * 200_000,))
    encoding.start()
    num_turns = 0
    while encoding.is_alive():
        num_turns += 1
        time.sleep(0.001)
    assert num_turns > 2
