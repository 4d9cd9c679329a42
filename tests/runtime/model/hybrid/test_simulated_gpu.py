"""A server starts and serves on a GPU, which torch's CPU device simulates: what the CPU alone never runs, from the plan
of the GPU's memory to captured steps and the tier in host memory."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.models.written import MakeTiny
from devkit.servers import prefork
from devkit.servers.process import JSON, ServerProcess

SIMULATED = ("devkit.servers.simulated_gpu",)
MODULES = (*prefork.SERVER_MODULES, "ballast.engine.startup.loading", "devkit.models.cpu_backend")
SMALL = ("--cache_lens", "1024", "--max_batch_size", "2", "--max_new_tokens", "100", "--cpu_threads", "1")
SHORT = ("--chunk_size", "64", "--prefill_chunk_size", "128")


@pytest.fixture(scope="module", autouse=True)
def forked_servers_with_torch(forked_servers: None) -> Iterator[None]:
    template = prefork.Template(MODULES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerProcess, "start", template.start)
        yield
    template.end()


def reply(server: ServerProcess, num_words: int) -> int:
    """The number of tokens that a completion has."""
    body = {"prompt": "Once upon a time. " * num_words, "max_tokens": 20, "min_tokens": 20}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), JSON)
    with urllib.request.urlopen(request, timeout=60) as response:
        tokens: int = json.loads(response.read())["usage"]["completion_tokens"]
    return tokens


@pytest.mark.parametrize(("device", "kv_type", "counts"), [("cuda", "fp16", [12]), ("cuda:0,cuda:1", "fp8", [4, 8])])
def test_what_a_server_learns_about_use_is_there_for_the_next_one(
    written: MakeTiny, tmp_path: Path, device: str, kv_type: str, counts: list[int]
) -> None:
    file = written(arch="v3", quant="f32").gguf
    experts = ("--gpu_experts", str(sum(counts)), "--gpu_experts_update", "on", "--kv_type", kv_type)
    options = ("--gguf_path", str(file), "--device", device, *experts)
    cache = {"FLASHINFER_WORKSPACE_BASE": str(tmp_path)}
    for start in range(2):
        assert len(list(tmp_path.glob("expert_uses/*.json"))) == start
        with ServerProcess(*options, *SMALL, *SHORT, module=SIMULATED, environment=cache) as server:
            assert reply(server, 1) == 20
            server.wait_until_empty()
            metrics = server.metrics()
            devices = json.loads(server.get("/debug/state", admin=True)[2])["devices"]
            for number, (each, count) in enumerate(zip(devices, counts, strict=True)):
                label = f'{{device="cpu:{number}"}}'
                assert metrics[f"ballast_resident_experts{label}"] == count
                assert metrics[f"ballast_expert_selections_total{label}"] > 0
                assert 0 < each["expert_hits"] < each["expert_selections"]
            server.send_signal(signal.SIGTERM)
            assert server.wait() == 0


@pytest.mark.parametrize(
    ("device", "arch", "num_experts", "lanes"),
    [("cuda", "v3", "auto", 2), ("auto", "gptoss", "0", 1), ("cuda:0,cuda:1", "v3", "0", 1)],
)
def test_a_server_starts_and_serves(
    written: MakeTiny, tmp_path: Path, device: str, arch: str, num_experts: str, lanes: int
) -> None:
    """With all experts on the GPU, and with all in host memory."""
    file = written(arch=arch, quant="f32").gguf
    options = ("--gguf_path", str(file), "--device", device, "--gpu_experts", num_experts)
    cache = {"FLASHINFER_WORKSPACE_BASE": str(tmp_path)}  # with nothing measured
    with ServerProcess(*options, *SMALL, *SHORT, module=SIMULATED, environment=cache) as server:
        devices = device if "," in device else "cuda:0"
        assert server.event("device")["device"] == devices
        warning = "several GPUs: of whole models, only DeepSeek-R1's shape was tested on two; device=cuda:0 uses one"
        assert server.has_logged(warning) == ("," in device)
        captured = server.wait_for_events(
            lambda event: event["event"] == "decode graphs captured", devices.count(",") + 1
        )
        assert {event["graphs"] for event in captured} == {2}
        assert len(server.wait_for_events(lambda event: event["event"] == "steps measured", lanes)) == lanes
        assert server.has_logged("PCIe share measured") == (num_experts == "0")
        assert [reply(server, num_words) for num_words in (1, 40)] == [20, 20]
        server.wait_until_empty()
        metrics = server.metrics()
        assert metrics["ballast_decode_graphs"] == 2
        state = json.loads(server.get("/debug/state", admin=True)[2])
        assert [each["name"] for each in state["devices"]] == devices.replace("cuda", "cpu").split(",")
        for name in devices.split(","):
            simulated = name.replace("cuda", "cpu")
            assert (metrics[f'ballast_resident_experts{{device="{simulated}"}}'] > 0) == (num_experts == "auto")
            assert metrics[f'ballast_vram_limit_bytes{{device="{name}"}}'] == 80 << 30
        assert state["device"] == devices
        assert [tier["name"] for tier in state["kv_tiers"]] == ["host"]
        not_pinned = {"streamed_experts": "the experts' memory is not pinned"}
        assert state["switched_off"] == ({} if num_experts == "auto" else not_pinned)
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
