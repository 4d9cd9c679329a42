"""The steps measured at start read as many experts as real requests do: these reads dominate the cost of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.engine.startup.step_costs import with_measured_costs
from ballast.model.batch import Batch
from ballast.model.hybrid.model import HybridModel
from ballast.model.metadata import read_spec
from ballast.model.transformer import Transformer
from ballast.tiny import weights
from ballast.tiny.model import rows_for, write_model
from ballast.tiny.presets import PRESETS
from ballast.tiny.tokenizer import make_tokenizer
from ballast.weights.gguf import open_gguf
from devkit.models.float_experts import FloatExperts
from devkit.models.float_hybrid import load_hybrid

NUM_REQUESTS = 16
LEAST_RATIO = 0.8
SETTINGS = EngineSettings(
    cache_lens=2048,
    max_batch_size=NUM_REQUESTS,
    max_new_tokens=64,
    chunk_size=64,
    prefill_chunk_size=64,
    max_queue=NUM_REQUESTS,
    block_tokens=32,
    stream_from_tokens=0,
)
SHAPE = replace(PRESETS["v3"], num_experts=128, num_experts_used=4, expert_dim=32, num_groups=1, num_groups_used=1)
EMBEDDING_GAIN = 0.02
"""Small embeddings make the choice of experts depend on attention."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = make_tokenizer(SHAPE.family)
    tensors = (
        (name, values * np.float32(EMBEDDING_GAIN) if name == "token_embd.weight" else values)
        for name, values in weights.tensors(SHAPE, tokenizer.num_tokens, rows_for(tokenizer.num_tokens), 0)
    )
    return write_model(tmp_path_factory.mktemp("model"), SHAPE, tokenizer, tensors, quant="f32").gguf


def on_cpu(file: Path) -> Transformer:
    model = open_gguf(file)
    spec = read_spec(model, None)
    runner = load_runner(model, spec, spec.vocab_size, SETTINGS)
    assert isinstance(runner, Transformer)
    return runner


def hybrid(file: Path) -> HybridModel:
    torch.set_num_threads(1)
    return load_hybrid(
        file,
        torch.device("cpu"),
        SETTINGS,
        make_experts=FloatExperts,
        kv_dtype=torch.float32,
        stream_from_tokens=0,
    )


@pytest.mark.parametrize("load", [on_cpu, hybrid])
def test_a_measured_decode_step_reads_as_many_experts_as_real_requests(
    file: Path, load: Callable[[Path], Transformer | HybridModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load(file)
    measured: list[int] = []
    forward = runner.forward

    def counted(batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        before = runner.expert_bytes_read
        logits = forward(batch, alive)
        if batch.is_decode and batch.token_ids.size == NUM_REQUESTS:
            measured.append(runner.expert_bytes_read - before)
        return logits

    with monkeypatch.context() as patched:
        patched.setattr(runner, "forward", counted)
        config = with_measured_costs(scheduler_config(SETTINGS), runner, 1024, lambda: None)
    core = EngineCore(runner, config)
    rng = np.random.default_rng(1)
    for seq in range(1, NUM_REQUESTS + 1):
        prompt = tuple(rng.integers(0, 300, 24).tolist())
        core.add(seq, Request(str(seq), prompt, SamplingParams(max_tokens=64, temperature=0.6, top_p=0.95)), seq)
    real: list[int] = []
    while core.stats().running + core.stats().waiting:
        before = runner.expert_bytes_read
        result = core.step()
        if result.kind == "decode" and result.num_tokens == NUM_REQUESTS:
            real.append(runner.expert_bytes_read - before)
    assert min(len(measured), len(real)) >= 2
    assert np.mean(measured) >= LEAST_RATIO * np.mean(real), (measured, real)
