"""A decode row with draft tokens produces the logits of single steps; so do steps after rejected draft tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ballast._core import kernels, sched
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.model.batch import Batch
from ballast.model.hybrid.graphs.decode_inputs import DecodeInputs
from ballast.model.metadata import read_spec
from ballast.model.runner import Runner
from ballast.weights.gguf import open_gguf
from devkit.models.cpu_backend import copied
from devkit.models.float_hybrid import load_hybrid
from devkit.models.written import MakeTiny

SETTINGS = EngineSettings(
    cache_lens=256,
    max_batch_size=4,
    max_new_tokens=32,
    chunk_size=64,
    prefill_chunk_size=64,
    max_queue=4,
    block_tokens=16,
)
PROMPTS = {0: np.arange(3, 45, 3, dtype=np.int32), 1: np.arange(100, 146, dtype=np.int32)}
"""By sequence. The draft tokens of both cross the border of a block of 16 tokens."""
TEXTS = {seq: [(seq + 7) * n % 300 for n in range(1, 12)] for seq in PROMPTS}
"""The tokens that each sequence samples, independent of its logits."""
WRONG = 299


def cpu_runner(isa: str) -> Callable[[Path], Runner]:
    def load(file: Path) -> Runner:
        model = open_gguf(file)
        spec = read_spec(model)
        return load_runner(model, spec, spec.vocab_size, replace(SETTINGS, cpu_isa=isa, activation_bytes=2))

    return load


def hybrid_runner(file: Path) -> Runner:
    device = torch.device("cpu")
    return load_hybrid(file, device, SETTINGS, kv_dtype=torch.float32)


RUNNERS = {"cpu": cpu_runner(kernels.usable_isas()[0]), "reference": cpu_runner("reference"), "hybrid": hybrid_runner}


class Decoding:
    """The two sequences, step by step."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._scheduler = sched.Scheduler(scheduler_config(SETTINGS))
        self._num_sampled = dict.fromkeys(PROMPTS, 0)
        self.logits: dict[tuple[int, int], NDArray[np.float32]] = {}
        """By sequence and index of the token that they select."""
        for seq, prompt in PROMPTS.items():
            self._scheduler.add(seq, prompt, 32, np.array([], np.int32))
        while min(self._num_sampled.values()) == 0:
            self.step({})

    def step(self, draft_tokens: Mapping[int, Sequence[int]]) -> int:
        """Run one step. Returns its number of tokens."""
        for seq, tokens in draft_tokens.items():
            self._scheduler.propose(seq, np.array(tokens, np.int32))
        plan = self._scheduler.plan()
        rows = iter(self._runner.forward(Batch.from_plan(plan), lambda: None).copy())
        sampled: list[int] = []
        for seq, count in zip(plan.seqs.tolist(), plan.samples.tolist(), strict=True):
            first = self._num_sampled[seq]
            sampled += TEXTS[seq][first : first + count]
            own = [next(rows) for _ in range(count)]
            is_right = [
                guess == token for guess, token in zip(draft_tokens.get(seq, ()), TEXTS[seq][first:], strict=False)
            ]
            num_right = is_right.index(False) if False in is_right else len(is_right)
            self.logits |= {(seq, first + n): row for n, row in enumerate(own[: num_right + 1])}
        committed = self._scheduler.commit(np.array(sampled, np.int32))
        for seq in committed.seqs.tolist():
            self._num_sampled[seq] += 1
        self._scheduler.check()
        return plan.num_tokens


@pytest.mark.parametrize("arch", ["qwen3", "v3", "v32"])
@pytest.mark.parametrize("load", RUNNERS.values(), ids=RUNNERS.keys())
def test_a_row_of_three_tokens_matches_three_single_steps(
    written: MakeTiny, arch: str, load: Callable[[Path], Runner]
) -> None:
    runner = load(written(arch=arch, quant="f32").gguf)
    single = Decoding(runner)
    for _ in range(9):
        assert single.step({}) == 2
    drafted = Decoding(runner)
    own, other = TEXTS[0], TEXTS[1]
    assert drafted.step({0: own[1:3]}) == 4, "at most as many tokens as the batch has slots"
    assert drafted.step({0: [own[4], WRONG], 1: [other[2], other[3]]}) == 6
    assert drafted.step({0: [WRONG, own[7]]}) == 4
    assert drafted.step({}) == 2
    assert max(drafted.logits) == (1, 6)
    assert len(drafted.logits) == 15
    for at, logits in drafted.logits.items():
        np.testing.assert_allclose(logits, single.logits[at], rtol=1e-4, atol=1e-4, err_msg=str(at))


def test_the_input_of_a_decode_step_has_a_row_for_each_token() -> None:
    scheduler = sched.Scheduler(scheduler_config(SETTINGS))
    for seq, prompt in PROMPTS.items():
        scheduler.add(seq, prompt, 32, np.array([], np.int32))
    scheduler.plan()
    scheduler.commit(np.array([1, 2], np.int32))
    scheduler.propose(0, np.array([5, 6], np.int32))
    batch = Batch.from_plan(scheduler.plan())
    assert batch.is_decode
    inputs = DecodeInputs(4, 4, 8, torch.device("cpu"), copied)
    inputs.send_tables(batch)
    step = inputs.of_size(4).step
    assert step.positions.tolist() == [14, 15, 16, 46]
    assert step.requests.lens.tolist() == [15, 16, 17, 47]
    assert step.requests.adds_one_each
    own, other = (batch.kv_indices[first:last].tolist() for first, last in ((0, 2), (2, 5)))
    assert step.requests.blocks.tolist() == [[*own, 0, 0]] * 3 + [[*other, 0]]
