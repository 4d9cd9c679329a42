"""Start, drain and failure, as seen by clients, probes and the shell."""

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from ballast import cli
from ballast.config.options import Config
from ballast.engine.startup.build import EngineSettings, build_engine
from ballast.generation.text_threads import TextThreads
from ballast.prepared_model import PreparedModel
from ballast.server.composition import Composition
from ballast.text.loading import load_text
from devkit.models.vocabulary import byte_metadata
from devkit.servers.process import FAKE, JSON, SERVE, ServerProcess, ended

SLOW = ("--step_s", "0.05", "--max_batch_size", "2", "--max_new_tokens", "1000")


def post(server, **body):
    data = json.dumps({"prompt": "abc", **body}).encode()
    return urllib.request.Request(server.url + "/v1/completions", data, JSON)


def frames(response):
    return [line.removeprefix("data: ") for line in response.read().decode().split("\n\n") if line]


class Background(threading.Thread):
    """Reads one reply on a thread; `result()` is (status, headers, body)."""

    def __init__(self, request):
        super().__init__(daemon=True)
        self.request = request
        self._reply = Future()
        self.start()

    def run(self):
        try:
            with urllib.request.urlopen(self.request, timeout=60) as response:
                self._reply.set_result((response.status, response.headers, response.read().decode()))
        except urllib.error.HTTPError as error:
            with error:
                self._reply.set_result((error.code, error.headers, error.read().decode()))
        except (OSError, http.client.HTTPException) as error:
            self._reply.set_exception(error)

    def result(self):
        return self._reply.result(timeout=60)


def test_a_loading_server_is_alive_not_ready_and_rejects_with_retry_after():
    with ServerProcess("--load_s", "20", module=FAKE, until_ready=False) as server:
        status, headers, body = server.get("/readyz")
        assert (status, json.loads(body)["status"]) == (503, "loading")
        assert 0 <= json.loads(body)["progress"] < 1
        assert headers["Retry-After"]
        assert server.get("/livez")[0] == 200
        assert server.metrics()["ballast_model_load_progress_ratio"] < 1
        status, headers, body = Background(post(server)).result()
        assert status == 503
        assert int(headers["Retry-After"]) > 0
        assert json.loads(body)["error"]["code"] == "not_ready"


def test_a_signal_while_it_loads_stops_the_server_at_once():
    with ServerProcess("--load_s", "60", module=FAKE, until_ready=False) as server:
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout_s=20) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_running_requests_rejects_new_ones_and_exits_cleanly(number):
    with ServerProcess(*SLOW, module=FAKE) as server:
        with urllib.request.urlopen(post(server, max_tokens=50, stream=True), timeout=30) as stream:
            assert server.get("/readyz")[0] == 200
            server.send_signal(number)
            server.event("stopping")
            status, _, body = server.get("/readyz")
            assert (status, json.loads(body)["status"]) == (503, "draining")
            status, headers, _ = Background(post(server)).result()
            assert (status, bool(headers["Retry-After"])) == (503, True)
            *chunks, last, done = frames(stream)
        assert done == "[DONE]"
        assert json.loads(last)["choices"][0]["finish_reason"] == "length"
        assert len(chunks) == 50
        assert server.wait() == 0


def test_a_kept_connection_is_answered_once_more_while_the_server_leaves():
    """The reply is a client's only hint to connect elsewhere: it gets no signal from the orchestrator."""
    with ServerProcess(*SLOW, "--leave_s", "60", module=FAKE) as server:
        kept, idle = (http.client.HTTPConnection("127.0.0.1", server.port, timeout=30) for _ in range(2))
        for connection in (kept, idle):
            connection.request("GET", "/v1/models")
            assert connection.getresponse().read()
        request = post(server, max_tokens=5)
        with urllib.request.urlopen(post(server, max_tokens=50, stream=True), timeout=30):
            server.send_signal(signal.SIGTERM)
            server.event("stopping")
            assert server.get("/readyz")[0] == 503
            kept.request("POST", request.selector, request.data, dict(request.headers))
            reply = kept.getresponse()
            assert (reply.status, reply.headers["Connection"]) == (200, "close")
            assert json.loads(reply.read())["choices"][0]["finish_reason"] == "length"
            assert Background(post(server)).result()[0] == 503, "new clients must connect elsewhere"
        idle.close()
        assert server.wait(timeout_s=20) == 0, "the server must not wait for disconnected clients"


def test_a_reply_begun_before_sigterm_does_not_close_its_connection():
    """The reply does not announce that the connection closes, so the next request may already be on its way."""
    with ServerProcess(*SLOW, "--leave_s", "60", module=FAKE) as server:
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        for tokens, ending in ((30, None), (5, "close")):
            request = post(server, max_tokens=tokens, stream=True)
            kept.request("POST", request.selector, request.data, dict(request.headers))
            reply = kept.getresponse()
            assert (reply.status, reply.headers["Connection"]) == (200, ending)
            if ending is None:
                server.send_signal(signal.SIGTERM)
                server.event("stopping")
            assert frames(reply)[-1] == "[DONE]"
        kept.close()
        assert server.wait(timeout_s=20) == 0


def test_a_connection_without_a_request_is_closed_when_the_server_leaves():
    with ServerProcess("--leave_s", "0.1", module=FAKE) as server:
        idle = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        idle.request("GET", "/v1/models")
        assert idle.getresponse().read()
        server.send_signal(signal.SIGTERM)
        assert idle.sock.recv(1) == b""
        idle.close()
        assert server.wait() == 0


def test_requests_that_outlast_the_drain_get_an_error_and_the_exit_is_clean():
    with ServerProcess(*SLOW, "--drain_timeout_s", "0.5", module=FAKE) as server:
        whole = Background(post(server, max_tokens=1000))
        queued = [Background(post(server, max_tokens=1000)) for _ in range(3)]
        server.wait_for(lambda now: (now["ballast_batch_running"], now["ballast_requests_waiting"]) == (2, 2))
        server.send_signal(signal.SIGTERM)
        for waiting in (whole, *queued):
            status, headers, body = waiting.result()
            assert status == 503
            assert headers["Retry-After"]
            assert json.loads(body)["error"]["message"] == "the server is shutting down"
        assert server.wait() == 0


def test_a_stream_that_outlasts_the_drain_ends_with_an_error_frame():
    with ServerProcess(*SLOW, "--drain_timeout_s", "0.5", module=FAKE) as server:
        with urllib.request.urlopen(post(server, max_tokens=1000, stream=True), timeout=30) as stream:
            server.send_signal(signal.SIGTERM)
            *_, error, done = frames(stream)
        assert json.loads(error)["error"]["message"] == "the server is shutting down"
        assert done == "[DONE]"
        assert server.wait() == 0


@pytest.mark.parametrize("stream", [True, False])
def test_an_endless_step_does_not_prevent_a_clean_exit(stream):
    options = ("--hang_at", "5", "--drain_timeout_s", "0.3", "--stuck_s", "0.3", "--max_new_tokens", "100")
    with ServerProcess(*options, module=FAKE) as server:
        reply = Background(post(server, max_tokens=100, stream=stream))
        server.wait_for(lambda now: now["ballast_generation_tokens_total"] == 3)
        server.send_signal(signal.SIGTERM)
        status, _, body = reply.result()
        if stream:
            assert status == 200
            *_, error, done, _ = body.split("\n\n")
            assert done == "data: [DONE]"
            body = error.removeprefix("data: ")
        else:
            assert status == 503
        assert json.loads(body)["error"]["message"] == "the server is shutting down"
        assert server.wait() == 0
        server.event("leaving while the engine is inside a step")


def test_livez_fails_while_the_engine_hangs():
    with ServerProcess("--hang_at", "5", "--max_silence_s", "0.2", module=FAKE) as server:
        assert server.get("/livez")[0] == 200
        with urllib.request.urlopen(post(server, max_tokens=100, stream=True), timeout=30):
            deadline = time.monotonic() + 20
            while server.get("/livez")[0] == 200 and time.monotonic() < deadline:
                time.sleep(0.05)
            status, _, body = server.get("/livez")
        assert (status, json.loads(body)["status"]) == (503, "hangs")


async def test_livez_fails_once_the_engine_is_dead():
    """The process ends at the same time, so this test queries the application directly."""

    def load(report):
        raise ZeroDivisionError("the weights were eaten")

    config = Config()
    settings = EngineSettings(
        cache_lens=4096, max_batch_size=1, max_new_tokens=10, chunk_size=64, prefill_chunk_size=64, max_queue=4
    )
    died = threading.Event()
    engine = build_engine(load, settings, 4096, on_death=died.set)
    text = load_text(None, byte_metadata(), "bytes.gguf")
    shutting_down = asyncio.get_running_loop().create_future()
    with ThreadPoolExecutor(1) as executor:
        model = PreparedModel(config, text, load, "m", 4096)
        app = Composition(model, engine, TextThreads(executor, executor), shutting_down, "0.0.0.0").apps().api
        engine.start()
        assert await asyncio.to_thread(died.wait, 20)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:
            reply = await client.get("/livez")
    assert (reply.status_code, reply.json()["status"]) == (503, "dead")
    assert "the weights were eaten" in reply.json()["reason"]


def test_a_second_signal_ends_the_server_at_once():
    with (
        ServerProcess(*SLOW, module=FAKE) as server,
        urllib.request.urlopen(post(server, max_tokens=1000, stream=True), timeout=30),
    ):
        server.send_signal(signal.SIGTERM)
        server.event("stopping")
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout_s=60) == 128 + signal.SIGTERM


def test_a_dead_engine_answers_all_requests_and_ends_the_process():
    with ServerProcess(*SLOW, "--fail_at", "40", "--max_batch_size", "1", module=FAKE) as server:
        with urllib.request.urlopen(post(server, max_tokens=1000, stream=True), timeout=30) as stream:
            queued = Background(post(server, max_tokens=1000))
            *chunks, error, done = frames(stream)
        assert len(chunks) == 38
        assert json.loads(error)["error"]["code"] == "engine_dead"
        assert done == "[DONE]"
        status, _, body = queued.result()
        assert (status, json.loads(body)["error"]["code"]) == (500, "engine_dead")
        assert server.wait() == 70
        assert "the fake model failed as requested" in server.stderr.splitlines()[-1]


def test_an_engine_that_hangs_is_declared_dead_and_ends_the_process():
    with ServerProcess("--hang_at", "5", "--fatal_silence_s", "2", module=FAKE) as server:
        with urllib.request.urlopen(post(server, max_tokens=100, stream=True), timeout=30) as stream:
            *chunks, error, done = frames(stream)
        assert len(chunks) == 3
        assert (json.loads(error)["error"]["code"], done) == ("engine_dead", "[DONE]")
        assert server.wait() == 70
        assert "ballast: the engine hangs: no progress for" in server.stderr.splitlines()[-1]


def test_exit_now_waits_for_no_thread_and_no_teardown(tmp_path):
    log = tmp_path / "termination-log"
    log.touch()
    script = f"""
import atexit, logging, pathlib, threading, time
from ballast import process_exit
from ballast.errors import EngineDeadError

process_exit.TERMINATION_LOG = pathlib.Path({str(log)!r})
threading.Thread(target=time.sleep, args=(600,)).start()
atexit.register(time.sleep, 600)
print("said before", end="")
process_exit.exit_now(EngineDeadError.because_of(RuntimeError("CUDA error: unknown error\\nadvice for programmers")))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 70
    assert ran.stdout == "said before"
    assert log.read_text() == (
        "ballast: the engine stopped on an internal error: RuntimeError: CUDA error: unknown error"
    )


def test_a_port_in_use_is_a_configuration_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, message = ended("--port", port)
    assert code == 2
    assert message[-1] == (
        f"ballast: port={port}: cannot listen on 127.0.0.1: another process uses this port; choose another"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--host", "no such host"), "host=no such host: must be an address or host name"),
        (("--host", "256.0.0.1"), "host=256.0.0.1: not an address to listen on: "),
        (("--host", "192.0.2.1"), "host=192.0.2.1: not an address to listen on: Cannot assign requested address"),
        (("--host", "a" * 70), "not an address to listen on: invalid host name"),
        (("--admin_port", "10002"), "admin_port=10002: is also the API's port; choose another"),
    ],
)
def test_an_unusable_address_is_reported_with_its_option(options, sentence):
    code, message = ended(*options)
    assert code == 2
    assert sentence in message[-1]


def test_an_admin_port_in_use_is_reported_with_its_option():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, message = ended("--port", "0", "--admin_port", port)
    assert code == 2
    assert message[-1].startswith(f"ballast: admin_port={port}: cannot listen on 127.0.0.1: another")


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_over_the_time_limit_is_ended_and_leaves_nothing_behind(stream):
    # The head of a stream must have been sent before.
    with ServerProcess(*SLOW, "--request_timeout_s", "2" if stream else "0.5", module=FAKE) as server:
        status, headers, body = Background(post(server, max_tokens=1000, stream=stream)).result()
        if stream:
            assert status == 200
            *_, error, done, _ = body.split("\n\n")
            assert done == "data: [DONE]"
            error = error.removeprefix("data: ")
        else:
            assert (status, headers["X-Should-Retry"]) == (504, "false")
            error = body
        assert json.loads(error)["error"]["code"] == "request_timeout"
        server.wait_until_empty()
        server.wait_for(lambda now: now['ballast_requests_total{endpoint="completions",outcome="timeout"}'] == 1)


def test_a_queued_request_that_takes_too_long_is_ended_too():
    with ServerProcess(*SLOW, "--request_timeout_s", "1", "--backend_type", "ktransformers", module=FAKE) as server:
        replies = [Background(post(server, max_tokens=1000)) for _ in range(3)]
        assert [reply.result()[0] for reply in replies] == [504, 504, 504]
        server.wait_until_empty()


def test_ktransformers_backend_runs_one_request_at_a_time():
    with ServerProcess(*SLOW, "--backend_type", "ktransformers", module=FAKE) as server:
        replies = [Background(post(server, max_tokens=10)) for _ in range(4)]
        seen = set()
        while any(reply.is_alive() for reply in replies):
            seen.add(server.metrics()["ballast_batch_running"])
            time.sleep(0.01)
        assert [reply.result()[0] for reply in replies] == [200] * 4
        assert max(seen) == 1


def cpu_ticks(pid: int) -> int:
    """User and system time of a process, read without waking it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.parametrize("module", [FAKE, SERVE], ids=["server", "with the model's threads"])
def test_an_idle_server_uses_no_processor_time(module):
    """A short measurement; benchmarks/serving/idle_cpu.py takes a full minute."""
    with ServerProcess(module=module) as server:
        Background(post(server, max_tokens=50)).result()
        server.wait_until_empty()
        before = cpu_ticks(server.process.pid)
        time.sleep(3)
        # A single spinning thread would use a hundred times as much.
        assert cpu_ticks(server.process.pid) - before <= 0.01 * 3 * os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_the_program_is_still_importing_ends_it_quietly(number, code):
    script = f"""
import os, sys, time
from ballast import cli

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "ballast.host.machine":
            os.kill(os.getpid(), {int(number)})
            time.sleep(20)

sys.meta_path.insert(0, Interrupted())
sys.exit(cli.main(["serve"]))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (code, "")


def test_an_interrupted_command_ends_without_a_traceback(capfd):
    def interrupted():
        raise KeyboardInterrupt

    assert cli.exit_code(interrupted) == 130
    assert capfd.readouterr().err == ""
