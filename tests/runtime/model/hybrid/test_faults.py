"""The results for clients and for the server's parent process when a hybrid step fails: an error, and exit code 70 with
the reason, never an endless wait. On the CPU, faults are injected into the transfer; on a GPU they are real."""

import json
import signal
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from devkit.servers import prefork
from devkit.servers.process import JSON, SERVE, ServerProcess, ended

HYBRID = ("devkit.servers.hybrid_server",)
START_LIMIT_S = 300.0
"""A GPU's kernels are compiled at the first start of a server."""
MODULES = (*prefork.SERVER_MODULES, "ballast.engine.startup.loading", "devkit.models.cpu_backend")
"""The modules that these servers import, including torch; the imports take longer than the rest of the test."""
SMALL = ("--cache_lens", "4096", "--max_batch_size", "2", "--max_new_tokens", "1500", "--cpu_threads", "1")


@pytest.fixture(scope="module", autouse=True)
def forked_servers_with_torch(forked_servers):
    template = prefork.Template(MODULES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerProcess, "start", template.start)
        yield
    template.end()


def post(server, num_tokens, **body):
    body |= {"prompt": "Once upon a time", "max_tokens": num_tokens, "min_tokens": num_tokens}
    return urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), JSON)


def whole_reply(server):
    """Returns status and body."""
    try:
        with urllib.request.urlopen(post(server, 1500), timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def dies(directory, fault, sentence, *options):
    """A server with this fault fails a stream and a whole reply, and exits with an internal error."""
    once = directory / "now"
    with (
        ServerProcess(
            "--fault", fault, "--once", str(once), *SMALL, *options, module=HYBRID, until_ready=False
        ) as server,
        ThreadPoolExecutor(1) as executor,
    ):
        server.event("ready", START_LIMIT_S)
        with urllib.request.urlopen(post(server, 1500, stream=True), timeout=60) as stream:
            other = executor.submit(whole_reply, server)
            server.wait_for(lambda now: now["ballast_batch_running"] == 2)
            once.touch()
            *_, error, done = [line.removeprefix("data: ") for line in stream.read().decode().split("\n\n") if line]
        assert (json.loads(error)["error"]["code"], done) == ("engine_dead", "[DONE]")
        status, body = other.result(60)
        assert (status, body["error"]["code"]) == (500, "engine_dead")
        assert server.wait() == 70
        last = server.stderr.splitlines()[-1]
        assert last.startswith("ballast: ")
        assert sentence in last


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("cuda", "internal error: AcceleratorError: CUDA error: the device was lost on demand"),
        ("memory", "internal error: cpu:0 is full: OutOfMemoryError: CUDA out of memory on demand, torch uses "),
        ("experts", "1048"),
        ("silent", "layer 1"),  # the side whose limit ends first reports it
    ],
)
def test_a_fault_in_a_step_fails_its_requests_and_ends_the_process(tmp_path, fault, sentence):
    dies(tmp_path, fault, sentence, "--device", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("fault", "sentence"), [("stray", "illegal memory access"), ("experts", "1048")])
def test_a_fault_on_a_gpu_fails_its_requests_and_ends_the_process(tmp_path, fault, sentence):
    dies(tmp_path, fault, sentence, "--device", "cuda:0", "--gpu_experts", "0")


def test_the_hybrid_serves_without_faults():
    with ServerProcess(*SMALL, "--device", "cpu", module=HYBRID) as server:
        with urllib.request.urlopen(post(server, 5), timeout=60) as reply:
            assert json.loads(reply.read())["usage"]["completion_tokens"] == 5
        server.wait_until_empty()
        state = json.loads(server.get("/debug/state", admin=True)[2])
        not_pinned = "the experts' memory is not pinned"
        assert state["switched_off"] == {"streamed_experts": not_pinned}
        assert server.event("expert streaming is disabled: the CPU computes long steps")["reason"] == not_pinned
        metrics = server.metrics()
        assert metrics['ballast_switched_off{feature="streamed_experts"}'] == 1
        assert metrics['ballast_switched_off{feature="flashinfer"}'] == 0
        assert server.event("device")["device"] == "cpu"
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0


@pytest.mark.gpu
def test_auto_selects_a_usable_gpu():
    with ServerProcess(*SMALL, "--device", "auto", module=HYBRID, until_ready=False) as server:
        server.event("ready", START_LIMIT_S)
        assert server.event("device")["device"] == "cuda:0"
        metrics = server.metrics()
        assert metrics["ballast_decode_graphs"] == 2
        allocated, reserved = (
            metrics[f'ballast_vram_{which}_bytes{{device="cuda:0"}}'] for which in ("allocated", "reserved")
        )
        assert 0 < allocated <= reserved
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0


def test_a_full_device_during_loading_is_an_out_of_memory_error():
    with ServerProcess("--fault", "load", "--device", "cpu", *SMALL, module=HYBRID, until_ready=False) as server:
        assert server.wait() == 4
        last = server.stderr.splitlines()[-1]
        assert "while the model was loaded: cpu:0 is full: OutOfMemoryError: CUDA out of memory on demand, " in last


def test_a_missing_gpu_is_a_configuration_error():
    code, message = ended("--port", "0", "--device", "cuda:15", module=SERVE)
    assert code == 2
    assert message[-1].startswith("ballast: device=cuda:15: ")
