"""What differs between two GPUs and two parts of one: the current device, streams, pinned memory, experts that both
stream, and whole servers."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T

from ballast._core import kernels
from ballast._core.numa import ANY_CPU, NodeThreads, Placement
from ballast.engine.startup.build import EngineSettings
from ballast.model.batch import Batch, padding
from ballast.model.hybrid.agreement import MAX_DIFFERENCE
from ballast.model.hybrid.copies.blocks_of_devices import BlocksOfDevices
from ballast.model.hybrid.copies.device_blocks import DeviceBlocks
from ballast.model.hybrid.experts.products.expert_sums import ExpertSums
from ballast.model.hybrid.faults import device_wait
from ballast.model.hybrid.graphs.capture import captured
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.platforms.cuda_platform import CudaPlatform
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.platforms.registrar import CudaRegistrar
from ballast.model.hybrid.steps import slices
from ballast.model.hybrid.streaming.host_memory import Pinning, panels_of
from ballast.model.hybrid.streaming.joint_split import JointSplit
from ballast.model.hybrid.streaming.link_speed import measured_speeds
from ballast.model.hybrid.streaming.streamed_layers import StreamedLayers
from ballast.model.metadata import read_spec
from ballast.weights.gguf import open_gguf
from devkit.models.float_hybrid import load_hybrid
from devkit.models.random_blocks import random_blocks
from devkit.models.streamed_on import streamed_on
from devkit.models.written import MakeTiny
from devkit.oracles.divergence import divergences, log_probabilities
from devkit.servers.process import JSON, ServerProcess

pytestmark = pytest.mark.gpu2

GPUS = torch.device("cuda:0"), torch.device("cuda:1")
START_LIMIT_S = 240.0
BLOCK_TOKENS = 16
MAX_DIVERGENCE = 5e-5
"""As in test_model.py."""
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


HIDDEN, WIDTH, EXPERTS, CHOSEN, LAYERS = 512, 512, 16, 4, 4
MANY_TOKENS = 2048
"""So many that experts are decoded to memory."""
TOLERANCE = 2e-3
"""Relative to the largest result: two orders of additions, and kernels for other numbers of experts."""


class Streaming:
    """Layers with experts of one type in pinned memory, on two nodes."""

    def __init__(self, kind: T) -> None:
        rng = np.random.default_rng(9)
        self.pool = kernels.ThreadPool(Placement([NodeThreads(300 + node, [ANY_CPU]) for node in range(2)]))

        def matrix(rows: int, cols: int) -> kernels.Matrix:
            return kernels.Matrix(random_blocks(rng, kind, EXPERTS * rows, cols), kind, EXPERTS * rows, cols)

        self.layers = [
            kernels.Experts(matrix(WIDTH, HIDDEN), matrix(WIDTH, HIDDEN), matrix(HIDDEN, WIDTH), EXPERTS).packed(
                self.pool, kernels.usable_isas()[0], activation_bytes=2
            )
            for _ in range(LAYERS)
        ]
        self.parts = [panels_of(layer) for layer in self.layers]
        with Pinning(CudaRegistrar(), partial(torch.cuda.set_device, GPUS[0])) as pinning:
            for layer in self.layers:
                pinning.add(layer)
            self.pinned = pinning.finish()
        assert self.pinned.num_bytes > 0

    def on(self, *devices: torch.device, speeds: tuple[float, ...] | None = None) -> StreamedLayers:
        return streamed_on(self.parts, ExpertSums, *devices, speeds=speeds)

    def given(self, num_tokens: int) -> list[torch.Tensor]:
        rng = np.random.default_rng(num_tokens)
        ids = rng.random((num_tokens, EXPERTS)).argsort(1)[:, :CHOSEN].astype(np.int32)
        values = rng.standard_normal((num_tokens, HIDDEN), dtype=np.float32), ids, rng.random(ids.shape, np.float32)
        return [torch.from_numpy(each) for each in values]

    def by_cpu(self, given: list[torch.Tensor]) -> torch.Tensor:
        """The result of the first layer."""
        x, ids, weights = given
        out = torch.empty_like(x)
        self.layers[0].forward(self.pool, x.numpy(), ids.numpy(), weights.numpy(), out.numpy())
        return normed(out)


def normed(x: torch.Tensor) -> torch.Tensor:
    return x / x.square().mean(1, keepdim=True).sqrt()


def one_pass(streamed: StreamedLayers, given: list[torch.Tensor]) -> torch.Tensor:
    """The results of all layers, each the input of the next one, whose owner gets it from the one before."""
    x, ids, weights = given
    streamed.begin(len(x))
    found = []
    for layer in range(streamed.num_layers):
        platform = streamed.platform(layer)
        with platform.active():
            x, ids, weights = (each.to(platform.device, non_blocking=True) for each in (x, ids, weights))
            streamed.submit(layer, x, ids, weights)
            x = normed(streamed.result(layer))
        found.append(x)
    streamed.finish(lambda: None)
    return torch.stack([each.cpu() for each in found])


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("kind", [T.Q2_K, T.Q4_K, T.MXFP4, T.BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("num_tokens", [64, MANY_TOKENS])
@torch.inference_mode()
def test_experts_streamed_by_two_agree_with_those_of_one(kind: T, num_tokens: int) -> None:
    """Both copy their share, and every pass gives the same bits while both compute other work."""
    streaming = Streaming(kind)
    given = streaming.given(num_tokens)
    one, two = streaming.on(GPUS[0]), streaming.on(*GPUS)
    expected = one_pass(one, given)
    found = one_pass(two, given)
    assert relative(found, expected) <= TOLERANCE
    if num_tokens <= 64:
        assert relative(found[0], streaming.by_cpu(given)) <= MAX_DIFFERENCE
    assert [two.bytes_read_by(device) * 2 for device in GPUS] == [two.pass_bytes] * 2
    busy = [(torch.cuda.Stream(device), torch.randn(2048, 2048, device=device)) for device in GPUS]
    for number in range(30):
        for stream, x in busy[: number % 3]:
            with torch.cuda.stream(stream):
                for _ in range(20):
                    x @ x
        assert torch.equal(one_pass(two, given), found), f"pass {number}"
    assert torch.cuda.current_device() == 0
    two.wait()
    one.wait()


@torch.inference_mode()
def test_activations_may_pass_through_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between GPUs that cannot access each other's memory."""
    streaming = Streaming(T.Q4_K)
    for num_tokens in (64, MANY_TOKENS, 100):
        given = streaming.given(num_tokens)
        expected = one_pass(streaming.on(*GPUS), given)
        with monkeypatch.context() as patch:
            patch.setattr(CudaPlatform, "reaches", lambda *_: False)
            through_host = streaming.on(*GPUS)
            for _ in range(10):
                assert torch.equal(one_pass(through_host, given), expected)


@torch.inference_mode()
def test_shares_of_two_follow_the_speeds_of_their_links() -> None:
    streaming = Streaming(T.Q4_K)
    given = streaming.given(64)
    unequal = streaming.on(*GPUS, speeds=(1.0, 0.25))
    assert relative(one_pass(unequal, given), one_pass(streaming.on(GPUS[0]), given)) <= TOLERANCE
    first, second = (unequal.bytes_read_by(device) for device in GPUS)
    assert 3 < first / second < 6
    speeds = measured_speeds(GPUS, streaming.parts)
    assert min(speeds) > 1e9, "links copy from pinned memory at gigabytes per second"


SETTINGS = EngineSettings(
    cache_lens=1024,
    max_batch_size=4,
    max_new_tokens=40,
    chunk_size=64,
    prefill_chunk_size=128,
    max_queue=8,
    block_tokens=16,
)
JOINT = JointSplit([(1, 0.5)], from_tokens=5, to_tokens=31)


@pytest.mark.parametrize(
    ("arch", "split"),
    [
        *(("v3", 2), ("qwen3", 1), ("gptoss", 1), ("qwen3next", 2), ("glm53flash", 2)),
        *(("qwen38flashnext", 1), ("v4", 2)),
    ],
)
def test_prompts_streamed_by_two_give_the_logits_of_one(written: MakeTiny, arch: str, split: int) -> None:
    """In a step of the decode lane, in a joint step, and in a pass next to decode steps."""
    file = written(arch=arch, mla="split", quant="mxfp4" if arch == "gptoss" else "q4_k").gguf
    models = [
        load_hybrid(file, GPUS[0], SETTINGS, stream_from_tokens=32, joint_split=JOINT, **options)
        for options in ({}, {"split": [split], "others": [GPUS[1]]})
    ]
    found = [list(logits_of(model)) for model in models]
    for one, two in zip(*found, strict=True):
        assert divergences(log_probabilities(one), log_probabilities(two)).max() <= MAX_DIVERGENCE
    streamed = models[1].streamed
    assert streamed is not None
    shares = [streamed.bytes_read_by(device) for device in GPUS]
    assert min(shares) > 0
    assert sum(shares) == streamed.bytes_read


@pytest.mark.parametrize(
    ("arch", "split"), [("v3", 2), ("qwen3", 1), ("gptoss", 1), ("qwen3next", 2), ("qwen38flashnext", 1), ("v4", 2)]
)
def test_parts_of_prompts_on_two_give_the_logits_of_one(
    written: MakeTiny, arch: str, split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both hold all experts, and compute different parts of a prompt at the same time."""
    for name in ("_LEAST_OVERLAP", "_MOST_OVERLAP"):
        monkeypatch.setattr(slices, name, 32)
    file = written(arch=arch, mla="split", quant="mxfp4" if arch == "gptoss" else "q4_k").gguf
    spec = read_spec(open_gguf(file), None)
    everything = tuple(tuple(range(spec.routing.num_experts)) for _ in spec.routed_layers)
    found = []
    for options in ({}, {"split": [split], "others": [GPUS[1]]}):
        model = load_hybrid(file, GPUS[0], SETTINGS, gpu_experts=everything, stream_from_tokens=0, **options)
        found.append(list(logits_of(model)))
    for one, two in zip(*found, strict=True):
        assert divergences(log_probabilities(one), log_probabilities(two)).max() <= MAX_DIVERGENCE


def logits_of(model: HybridModel) -> Iterator[np.ndarray]:
    """Logits of a joint step, of a streamed one, and of a pass with a decode step after each of its pieces."""
    for length in (20, 100):
        yield model.forward(prompt(length, first_block=1), lambda: None).copy()
    model.open_prefill_lane()
    model.begin_prefill(prompt(120, first_block=20))
    decoded = []
    while not model.advance_prefill(lambda: None):
        decoded.append(model.forward(prompt(1, first_block=40), lambda: None).copy())
    yield model.prefill_logits().copy()
    assert all(np.array_equal(each, decoded[0]) for each in decoded)


def prompt(num_tokens: int, first_block: int) -> Batch:
    """The first tokens of one request, with a slot for their state."""
    batch, none = padding(num_tokens, SETTINGS.block_tokens), np.zeros(0, np.int32)
    slot = np.array([1 + first_block // 20], np.int32)
    return replace(
        batch,
        states=(np.zeros(1, np.int32), slot, np.zeros(2, np.int32), none, none),
        token_ids=(np.arange(num_tokens, dtype=np.int32) * 7 + first_block) % 250,
        slots=batch.positions + np.int32(first_block * SETTINGS.block_tokens),
        kv_indices=np.arange(first_block, first_block + batch.kv_indices.size, dtype=np.int32),
    )


def num_reply_tokens(server: ServerProcess, prompt: list[int]) -> int:
    body = {"prompt": prompt, "max_tokens": 20, "min_tokens": 20}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), JSON)
    with urllib.request.urlopen(request, timeout=60) as response:
        return int(json.loads(response.read())["usage"]["completion_tokens"])


FOLLOWING = ("--kv_type", "fp8", "--gpu_experts", "14", "--gpu_experts_update", "on", "--device_split", "1,1")


@pytest.mark.parametrize(
    ("arch", "more"), [("v3", ()), ("qwen3", ()), ("v3", FOLLOWING), ("qwen3", FOLLOWING)], ids=lambda each: str(each)
)
def test_a_server_computes_on_both_and_keeps_blocks_of_both(
    written: MakeTiny, tmp_path: Path, arch: str, more: tuple[str, ...]
) -> None:
    """The cache cannot hold all prompts together, so that they return from host memory. Also with a cache of 8 bits and
    experts that follow use."""
    file = written(arch=arch, mla="split", quant="q4_k").gguf
    options = ("--gguf_path", str(file), "--device", "cuda:0,cuda:1", "--kv_host_bytes", "64MiB", *more)
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
        if more:
            assert all(0 < each["expert_hits"] < each["expert_selections"] for each in state["devices"])
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    assert len(list(tmp_path.glob("expert_uses/*.json"))) == bool(more), "the uses of both are kept"
