"""A whole model on simulated NUMA nodes: its text, and the reported locations of its weights."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ballast._core import kernels
from ballast._core.numa import Node, Topology
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.host.numa import WeightMemory, read_report
from ballast.model.batch import Batch
from ballast.model.metadata import read_spec
from ballast.model.runner import Runner
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.generate import generate
from devkit.long import spread
from devkit.models.written import write_tiny_model

FAST = kernels.usable_isas()[:-1]
SUMS_ELSEWHERE = 1e-4
"""Relative to the largest logit: in every layer, float sums are split at other positions."""


def made_up(num_nodes: int) -> Topology:
    """A topology with nodes and CPUs that no machine has, so no test thread is pinned."""
    return Topology([Node(200 + index, [9000 + index], [[9000 + index]]) for index in range(num_nodes)])


MODELS = [("v2lite", "q8_0"), ("v2lite", "q4_k_m"), ("v3", "bf16"), ("gptoss", "mxfp4"), ("step35", "bf16")]


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> GgufModel:
    arch, quant = request.param
    directory: Path = tmp_path_factory.mktemp("tiny")
    return open_gguf(write_tiny_model(directory, arch=arch, mla="split", quant=quant).gguf)


class RecordingRunner(Runner):
    """Records the logits of every step."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.window = runner.window
        self.seen: list[np.ndarray] = []

    def forward(self, batch: Batch, alive: Callable[[], None]) -> np.ndarray:
        logits = self._runner.forward(batch, alive)
        self.seen.append(logits.copy())
        return logits


class Loaded:
    """A model on `num_nodes` nodes with one thread each; a new scheduler for every batch size."""

    def __init__(self, model: GgufModel, num_nodes: int, isa: str) -> None:
        spec = read_spec(model, None)
        self._settings = {
            "cache_lens": 4096,
            "max_new_tokens": 64,
            "chunk_size": 512,
            "prefill_chunk_size": 512,
            "max_queue": 64,
            "block_tokens": 16,
            "cpu_threads": num_nodes,
            "cpu_isa": isa,
            # One byte takes a scale for 256 columns of a node's part, which a tiny model's parts do not have.
            "activation_bytes": 2,
        }
        settings = EngineSettings(
            **self._settings, max_batch_size=8, numa="auto" if num_nodes > 1 else "off", topology=made_up(num_nodes)
        )
        loaded: list[Runner] = []

        def load() -> None:
            loaded.append(load_runner(model, spec, spec.vocab_size, settings, on_placed=self._keep))

        # The loading thread would be pinned if its CPU existed.
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
        self.runner = RecordingRunner(loaded[0])

    def _keep(self, memory: WeightMemory, why_not_pinned: str) -> None:
        self.memory, self.why_not_pinned = memory, why_not_pinned

    def texts(self, requests: list[Request], max_batch_size: int) -> list[tuple[int, ...]]:
        settings = EngineSettings(**self._settings, max_batch_size=max_batch_size)
        results = generate(EngineCore(self.runner, scheduler_config(settings)), requests)
        return [result.token_ids for result in results]


def requests(num: int, num_tokens: int) -> list[Request]:
    rng = random.Random(5)
    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0)
    return [Request(str(i), tuple(rng.randrange(300) for _ in range(rng.randint(5, 40))), sampling) for i in range(num)]


@pytest.mark.parametrize(
    ("model", "isa", "num_nodes"), spread([pytest.param(each) for each in MODELS], FAST, [2, 4]), indirect=["model"]
)
def test_several_nodes_give_the_same_text_as_one_in_any_batch(model: GgufModel, isa: str, num_nodes: int) -> None:
    split, whole = Loaded(model, num_nodes, isa), Loaded(model, 1, isa)
    requested = requests(8, 12)
    for loaded in (split, whole):
        loaded.texts(requests(8, 1), max_batch_size=8)
    np.testing.assert_allclose(
        split.runner.seen[0],
        whole.runner.seen[0],
        rtol=0,
        atol=SUMS_ELSEWHERE * float(np.abs(whole.runner.seen[0]).max()),
    )
    together = split.texts(requested, max_batch_size=8)
    assert len(set(together)) > 1
    assert split.texts(requested, max_batch_size=3) == together
    assert split.texts(requested, max_batch_size=1) == together


def num_bytes(ranges: list[tuple[int, int]]) -> int:
    return sum(size for _, size in ranges)


@pytest.mark.parametrize("num_nodes", [2, 4])
def test_each_node_owns_its_shard_and_the_report_has_the_real_location(model: GgufModel, num_nodes: int) -> None:
    split, whole = Loaded(model, num_nodes, FAST[0]), Loaded(model, 1, FAST[0])
    assert "ballast-cpu-1 to CPU 9001: " in split.why_not_pinned or "ballast-cpu-0 to CPU 9000: " in (
        split.why_not_pinned
    )
    owned = {node: num_bytes(ranges) for node, ranges in split.memory.experts.items()}
    assert sorted(owned) == [200 + index for index in range(num_nodes)]
    total = sum(owned.values())
    in_one_piece = sum(num_bytes(ranges) for ranges in whole.memory.experts.values())
    assert in_one_piece <= total <= 1.01 * in_one_piece, "more than the padding of the additional tile ends"
    assert max(owned.values()) <= 2 * total / num_nodes

    report = read_report(split.memory, split.why_not_pinned)
    # This node does not exist here. Its weights are on existing nodes, and none of them is near its readers.
    assert not {node.node for node in report.nodes} & set(owned)
    resident = sum(node.expert_bytes or 0 for node in report.nodes)
    num_ranges = sum(map(len, split.memory.experts.values()))
    # Every range is its own mapping, so all of it is found; the last page counts only as far as the range uses it.
    assert total - num_ranges <= resident <= total + 4096 * num_ranges
    others = sum(node.weight_bytes or 0 for node in report.nodes) - resident
    assert report.share_local is not None
    assert report.share_local <= others / (resident + others) + 1e-6
    del split
