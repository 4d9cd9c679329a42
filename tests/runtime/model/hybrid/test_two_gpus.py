"""What differs between two GPUs and two parts of one: the current device, streams, pinned memory, and whole servers."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

from ballast.model.hybrid import device_wait
from ballast.model.hybrid.copies.blocks_of_devices import BlocksOfDevices
from ballast.model.hybrid.copies.device_blocks import DeviceBlocks
from ballast.model.hybrid.graphs.capture import captured
from ballast.model.hybrid.platforms.platform_of import platform_of
from devkit.models.written import MakeTiny
from devkit.servers.process import JSON, ServerProcess

pytestmark = pytest.mark.gpu2

GPUS = torch.device("cuda:0"), torch.device("cuda:1")
START_LIMIT_S = 240.0
BLOCK_TOKENS = 16
SMALL = ("--cpu_threads", "1", "--cache_lens", "1024", "--max_batch_size", "2", "--max_new_tokens", "64")


@pytest.mark.parametrize("device", GPUS[::-1], ids=str)
def test_work_is_captured_on_the_current_device(device: torch.device) -> None:
    """Also after a capture on another device."""
    kept = []  # a graph that is deleted during the next capture would end it
    for each in (GPUS[0], device):
        with torch.cuda.device(each):
            x = torch.ones(8, device=each)
            with captured() as graph:
                assert torch.cuda.current_device() == each.index
                y = x + 1
            kept.append((graph, y))
            x.fill_(4.0)
            graph.replay()
            torch.cuda.synchronize(each)
            assert y.device == each
            assert y.tolist() == [5.0] * 8


def test_memory_pinned_on_one_device_is_pinned_for_both() -> None:
    with torch.cuda.device(GPUS[0]):
        memory = torch.from_numpy(platform_of(GPUS[0]).host_memory()(1 << 20))
    memory.random_()
    for device in GPUS:
        with torch.cuda.device(device):
            assert memory.is_pinned()
            assert torch.equal(memory.to(device, non_blocking=True).cpu(), memory)


def test_blocks_of_both_devices_return_unchanged_from_host_memory() -> None:
    sizes = zip((24, 40), GPUS, strict=True)
    layers = [torch.randn(40 * BLOCK_TOKENS, width, device=device).half() for width, device in sizes]
    before = [layer.clone() for layer in layers]
    take = platform_of(GPUS[0]).host_memory()
    blocks = BlocksOfDevices([DeviceBlocks([layer], BLOCK_TOKENS, take) for layer in layers], take)
    memory, order = blocks.new_memory(39), (np.random.default_rng(5).permutation(39) + 1).tolist()
    device_wait.wait_for([blocks.copy_out(order, list(memory))], lambda: None)
    for layer in layers:
        layer[BLOCK_TOKENS:] = 0
        torch.cuda.synchronize(layer.device)
    device_wait.wait_for([blocks.copy_in(order, list(memory))], lambda: None)
    assert all(torch.equal(one, other) for one, other in zip(layers, before, strict=True))


def num_reply_tokens(server: ServerProcess, prompt: list[int]) -> int:
    body = {"prompt": prompt, "max_tokens": 20, "min_tokens": 20}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), JSON)
    with urllib.request.urlopen(request, timeout=60) as response:
        return int(json.loads(response.read())["usage"]["completion_tokens"])


@pytest.mark.parametrize("arch", ["v3", "qwen3"])
def test_a_server_computes_on_both_and_keeps_blocks_of_both(written: MakeTiny, tmp_path: Path, arch: str) -> None:
    """The cache cannot hold all prompts together, so that they return from host memory."""
    file = written(arch=arch, mla="split", quant="q4_k").gguf
    options = ("--gguf_path", str(file), "--device", "cuda:0,cuda:1", "--kv_host_bytes", "64MiB")
    cache = {"FLASHINFER_WORKSPACE_BASE": str(tmp_path)}  # with nothing measured
    with ServerProcess(*options, *SMALL, environment=cache, until_ready=False) as server:
        server.event("ready", START_LIMIT_S)
        rng = np.random.default_rng(7)
        prompts = [rng.integers(0, 250, 200).tolist() for _ in range(8)]
        assert [num_reply_tokens(server, prompt) for prompt in prompts * 2] == [20] * 16
        server.wait_until_empty()
        metrics = server.metrics()
        for device in GPUS:
            assert metrics[f'ballast_vram_allocated_bytes{{device="{device}"}}'] > 0
        assert metrics["ballast_decode_graphs"] == 2
        state = json.loads(server.get("/debug/state", admin=True)[2])
        assert [each["name"] for each in state["devices"]] == ["cuda:0", "cuda:1"]
        assert state["kv_tiers"][0]["hit_tokens"] > 0
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
