"""Logits against Hugging Face transformers on the same dequantised weights: max relative error 1e-3 in float32.

All cases use the real scheduler: chunks, decode steps, and a second pass served from the prefix cache. The kernels of
an instruction set, and their choice by the number of rows, do not depend on the architecture; layers do not depend on
the instruction set. Therefore each architecture runs with one type, chunk size and instruction set, a different one
each, and all combinations run with `--long`.

Fast kernels round activations, which changes the input of a router or an indexer by about 3e-5. If the scores of two
experts or positions are closer than that, another one may be chosen, which changes this and later tokens as much as an
error would. A fast kernel may therefore exceed the bound from the first position at which transformers' own choice
changes with noise of 1e-4. Nearly all models and prompts have no such position, and test the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType
from gguf import GGUFReader

from ballast._core import kernels
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.model.batch import Batch
from ballast.model.layers.stream import StreamSpec
from ballast.model.metadata import read_spec
from ballast.model.runner import Runner
from ballast.tiny import TinyModel
from ballast.tiny.presets import PRESETS, QWEN3_NEXT, V3
from ballast.tiny.shape import TinyShape
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.generate import generate
from devkit.kernels.isas import FAST_ISAS, isa_params
from devkit.long import spread, times
from devkit.models.flash_next_files import other_flash_next
from devkit.models.mixed_types import with_all_types
from devkit.models.random_blocks import FORMATS
from devkit.models.written import MakeTiny, write_tiny_model
from devkit.oracles.hf_oracle import hf_logits, hf_model, near_ties

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_RELATIVE_ERROR = 1e-3
ROUNDING_NOISE = 1e-4
PROMPT_TOKENS = 80
NEW_TOKENS = 12
COMPRESSED_TOKENS = 280
"""Of prompts of a model with entries of 128 tokens: more than two."""
LATENT = ("v2lite", "v2", "v3", "k2", "glm47flash", "mistral4", "mistrallarge3")  # Mistral scales queries by position
VARIANTS = [(arch, mla) for arch in LATENT for mla in ("split", "joint")]
SPARSE = ["v32", "glm5"]  # prompts are more than twice as long as the number of attended positions
# glm45air differs from glm45 only in its norms, which have their own test.
GROUPED = [
    (arch, quant)
    for arch, shape in PRESETS.items()
    if shape.heads is not None and shape.heads.window is None and shape.delta_net is None and arch != "glm45air"
    for quant in ("f32", "q4_k")
]
OWN_QUANTS = {"gptoss": ("f32", "mxfp4", "q8_0"), "mimov2": ("f32", "nvfp4", "q4_k")}
WINDOWED = [  # prompts are five times as long as the window
    (arch, quant)
    for arch, shape in PRESETS.items()
    if shape.heads is not None and shape.heads.window is not None
    for quant in OWN_QUANTS.get(arch, ("f32", "q4_k", "q8_0"))
]
RECURRENT = [
    (arch, quant)
    # the last two have pools of 4 positions as well
    for arch in ("qwen3next", "qwen35", "kimilinear", "glm53flash", "qwen38flashnext")
    for quant in ("f32", "q4_k", "q8_0")
]
CHUNKS = [1, 7, 64, 256]
ISAS = isa_params(*FAST_ISAS, "reference")
QUANTS = [
    "f32",
    "f16",
    "bf16",
    "q8_0",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq4_nl",
    "iq4_xs",
    "mxfp4",
    "nvfp4",
]


@dataclass(frozen=True)
class Subject:
    """A tiny model, opened once for all cases, and the same weights in transformers."""

    gguf: GgufModel
    oracle: PreTrainedModel
    logits: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict)
    ties: dict[tuple[int, ...], set[int]] = field(default_factory=dict)

    # Chunks and instruction sets share a few texts, and a transformers pass takes longer than all of ours.

    def oracle_logits(self, ids: tuple[int, ...]) -> np.ndarray:
        """The logits of transformers for these tokens."""
        if ids not in self.logits:
            self.logits[ids] = hf_logits(self.oracle, ids)
        return self.logits[ids]

    def near_ties(self, ids: tuple[int, ...]) -> set[int]:
        """The positions of these tokens at which rounding decides transformers' choice."""
        if ids not in self.ties:
            self.ties[ids] = near_ties(self.oracle, ids, ROUNDING_NOISE)
        return self.ties[ids]


def subject_of(model: TinyModel) -> Subject:
    return Subject(open_gguf(model.gguf), hf_model(model.gguf, model.config_dir))


class RecordingRunner(Runner):
    """Computes the logits of every token and stores them by position."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.window = runner.window
        self.state_slots = runner.state_slots
        self.seen: dict[int, np.ndarray] = {}

    def forward(self, batch: Batch, alive: Callable[[], None]) -> np.ndarray:
        everything = replace(batch, sampled=np.arange(batch.token_ids.size, dtype=np.int64))
        logits = self._runner.forward(everything, alive)
        self.seen.update(zip(batch.positions.tolist(), logits, strict=True))
        return logits[batch.sampled]


def make_core(gguf_model: GgufModel, chunk_size: int, isa: str) -> tuple[EngineCore, RecordingRunner]:
    settings = EngineSettings(
        cache_lens=512,
        max_batch_size=1,
        max_new_tokens=64,
        chunk_size=chunk_size,
        prefill_chunk_size=chunk_size,
        max_queue=4,
        block_tokens=16,
        cpu_threads=1,
        cpu_isa=isa,
        activation_bytes=2,
    )
    spec = read_spec(gguf_model, None)
    runner = RecordingRunner(load_runner(gguf_model, spec, spec.vocab_size, settings))
    return EngineCore(runner, scheduler_config(settings)), runner


def relative_errors(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """The relative error at each position."""
    return np.abs(ours - theirs).max(axis=1) / np.abs(theirs).max()


def make_prompt(num_tokens: int = PROMPT_TOKENS) -> tuple[int, ...]:
    return tuple(np.random.default_rng(7).integers(0, 300, num_tokens).tolist())


def compare(subject: Subject, chunk_size: int, isa: str, prompt: tuple[int, ...] | None = None) -> None:
    prompt = prompt or make_prompt()
    core, runner = make_core(subject.gguf, chunk_size, isa)
    request = Request("oracle", prompt, SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0))
    texts = []
    first_wrong: int | None = None
    for seq, min_cached in ((1, 0), (2, len(prompt) // 2)):
        runner.seen.clear()
        (result,) = generate(core, [request], first_seq=seq)
        assert result.cached_tokens >= min_cached
        assert len(runner.seen) == len(prompt) + NEW_TOKENS - 1 - result.cached_tokens
        theirs = subject.oracle_logits((*prompt, *result.token_ids[:-1]))
        positions = sorted(runner.seen)
        ours = np.stack([runner.seen[position] for position in positions])
        errors = relative_errors(ours, theirs[positions, : ours.shape[1]])
        wrong = [position for position, error in zip(positions, errors, strict=True) if error > MAX_RELATIVE_ERROR]
        if wrong and first_wrong is None:
            first_wrong = wrong[0]
            assert isa != "reference"
            assert first_wrong in subject.near_ties((*prompt, *result.token_ids[:-1]))
        assert all(position >= first_wrong for position in wrong)
        texts.append(result.token_ids)
    assert texts[0] == texts[1]


@pytest.fixture(scope="module")
def subjects(written: MakeTiny) -> Callable[..., Subject]:
    made: dict[tuple[object, ...], Subject] = {}

    def get(arch: str, mla: str, quant: str, overrides: TinyShape | None = None) -> Subject:
        key = (arch, mla, quant, repr(overrides))
        if key not in made:
            model = written(arch=arch, mla=mla, quant=quant, overrides=overrides)
            made[key] = subject_of(model)
        return made[key]

    return get


@pytest.mark.parametrize(
    ("arch", "mla"),
    times(
        [(arch, "split") for arch in ("v3", "qwen3", "gptoss", "kimilinear")],  # one of each kind of attention
        [*VARIANTS, *((arch, "split") for arch in (*dict(GROUPED), *SPARSE, *dict(WINDOWED), *dict(RECURRENT)))],
    ),
)
def test_near_ties_between_experts_are_rare(subjects: Callable[..., Subject], arch: str, mla: str):
    oracle = subjects(arch, mla, "q4_k").oracle
    assert len(near_ties(oracle, make_prompt(), ROUNDING_NOISE)) <= 3
    assert near_ties(oracle, make_prompt(), 0.0, num_copies=2) == set()
    assert len(near_ties(oracle, make_prompt(), 1.0, num_copies=2)) > PROMPT_TOKENS / 2


@pytest.mark.parametrize(("arch", "mla", "chunk_size", "isa"), spread(LATENT, ("split", "joint"), CHUNKS, ISAS))
def test_logits_agree_in_every_architecture_and_layout(
    subjects: Callable[..., Subject], arch: str, mla: str, chunk_size: int, isa: str
):
    compare(subjects(arch, mla, "q4_k"), chunk_size, isa)


@pytest.mark.parametrize(
    ("arch", "quant", "chunk_size", "isa"), spread(list(dict(GROUPED)), ("f32", "q4_k"), CHUNKS, ISAS)
)
def test_logits_agree_where_heads_share_keys_and_values(
    subjects: Callable[..., Subject], arch: str, quant: str, chunk_size: int, isa: str
):
    compare(subjects(arch, "split", quant), chunk_size, isa)


@pytest.mark.parametrize(
    ("arch", "quant", "chunk_size", "isa"),
    spread(
        list(dict(WINDOWED)),
        sorted({quant for _, quant in WINDOWED}),
        CHUNKS,
        ISAS,
        where=lambda arch, quant, *_: (arch, quant) in WINDOWED,
    ),
)
def test_logits_agree_where_attention_has_windows(
    subjects: Callable[..., Subject], arch: str, quant: str, chunk_size: int, isa: str
):
    compare(subjects(arch, "split", quant), chunk_size, isa)


@pytest.mark.parametrize(
    ("arch", "quant", "chunk_size", "isa"), spread(list(dict(RECURRENT)), ("f32", "q4_k", "q8_0"), CHUNKS, ISAS)
)
def test_logits_agree_where_layers_have_recurrent_state(
    subjects: Callable[..., Subject], arch: str, quant: str, chunk_size: int, isa: str
):
    compare(subjects(arch, "split", quant), chunk_size, isa)


@pytest.mark.parametrize(
    ("quant", "chunk_size", "isa"), spread(("f32", "q8_0", "mxfp4"), [1, 7, 64, COMPRESSED_TOKENS], ISAS)
)
def test_logits_agree_where_entries_stand_for_several_tokens(
    subjects: Callable[..., Subject], quant: str, chunk_size: int, isa: str
):
    compare(subjects("v4", "split", quant), chunk_size, isa, make_prompt(COMPRESSED_TOKENS))


@pytest.mark.parametrize(("chunk_size", "isa"), spread([1, 33], ISAS))
def test_logits_agree_with_other_windows_groups_and_kinds_of_entries(
    subjects: Callable[..., Subject], chunk_size: int, isa: str
):
    """As in V4-Pro, no layer is without entries. Windows are no multiple of anything, and no experts are looked up."""
    base = PRESETS["v4"]
    assert base.compressed is not None
    assert base.index is not None
    shape = replace(
        base,
        num_heads=8,
        index=replace(base.index, top_k=3),
        compressed=replace(
            base.compressed, ratios=(128, 128, 4, 128, 4), window=23, output_groups=4, output_rank=48, num_hashed=0
        ),
        stream=StreamSpec(num_rows=3, rounds=2, eps=1e-3, weighs_end=True),
    )
    compare(subjects("v4", "split", "f32", shape), chunk_size, isa, make_prompt(200))


@pytest.mark.parametrize("isa", ISAS)
def test_logits_agree_where_products_are_grouped_by_key_head(subjects: Callable[..., Subject], isa: str):
    assert QWEN3_NEXT.delta_net is not None
    shape = replace(QWEN3_NEXT, delta_net=replace(QWEN3_NEXT.delta_net, product_layout="grouped"))
    compare(subjects("qwen3next", "split", "q8_0", shape), 64, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_logits_agree_where_decays_are_bounded_and_steps_end_within_pools(subjects: Callable[..., Subject], isa: str):
    compare(subjects("glm53flash", "split", "f32"), 7, isa)


@pytest.mark.parametrize(("chunk_size", "isa"), spread([1, 64], ISAS))
def test_logits_agree_with_other_pools_streams_and_decays(subjects: Callable[..., Subject], chunk_size: int, isa: str):
    """The rows of a stream are so wide that they are multiplied and added in several parts."""
    base = PRESETS["glm53flash"]
    assert base.index is not None
    assert base.kimi_delta is not None
    shape = replace(
        base,
        hidden=1280,
        index=replace(base.index, pool=16),
        kimi_delta=replace(base.kimi_delta, lower_bound=0.0),
        stream=StreamSpec(num_rows=3, rounds=1, eps=1e-3),
    )
    compare(subjects("glm53flash", "split", "f32", shape), chunk_size, isa)


@pytest.mark.parametrize(("chunk_size", "isa"), spread([1, 7], ISAS))
def test_logits_agree_where_texts_end_within_a_prompt(subjects: Callable[..., Subject], chunk_size: int, isa: str):
    """N-grams never reach across the end of a text."""
    prompt = list(make_prompt())
    [end] = {
        layer.ngram.end_id
        for layer in read_spec(subjects("qwen38flashnext", "split", "f32").gguf).layers
        if layer.ngram
    }
    for position in (0, 5, 6, 13, 15, 40, 42, 64, PROMPT_TOKENS - 1):
        prompt[position] = end
    compare(subjects("qwen38flashnext", "split", "f32"), chunk_size, isa, tuple(prompt))


OTHER_FLASH_NEXT = other_flash_next(pool=16)


@pytest.mark.parametrize(("case", "isa"), spread(list(OTHER_FLASH_NEXT), ISAS))
def test_logits_agree_with_other_tables_and_layouts(subjects: Callable[..., Subject], case: str, isa: str):
    shape = replace(PRESETS["qwen38flashnext"], **OTHER_FLASH_NEXT[case])
    compare(subjects("qwen38flashnext", "split", "f32", shape), 7, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_logits_agree_where_latent_attention_without_positions_is_joint(subjects: Callable[..., Subject], isa: str):
    compare(subjects("kimilinear", "joint", "q4_k"), 64, isa)


@pytest.mark.parametrize(
    ("arch", "isa"), spread(["k2", "k25", "glm47flash", "mistral4", "mistrallarge3"], kernels.usable_isas())
)
def test_logits_agree_in_families_with_deepseeks_arithmetic_and_plain_weights(
    subjects: Callable[..., Subject], arch: str, isa: str
):
    compare(subjects(arch, "split", "f32"), 7, isa)


@pytest.mark.parametrize("quant", ["f16", "bf16", "q8_0"])
def test_logits_agree_without_norms_of_heads(subjects: Callable[..., Subject], quant: str):
    compare(subjects("glm45air", "split", quant), 64, kernels.usable_isas()[0])


@pytest.mark.parametrize(("arch", "quant", "chunk_size", "isa"), spread(SPARSE, ["f32", "q4_k"], CHUNKS, ISAS))
def test_logits_agree_where_positions_are_chosen(
    subjects: Callable[..., Subject], arch: str, quant: str, chunk_size: int, isa: str
):
    compare(subjects(arch, "split", quant), chunk_size, isa)


def test_logits_agree_where_gates_are_beyond_exp(tmp_path: Path):
    """Laguna's softplus of a gate above 89, whose exponential is infinite."""
    model = write_tiny_model(tmp_path, arch="laguna", quant="f32")
    for tensor in GGUFReader(model.gguf, "r+").tensors:
        if tensor.name.endswith("attn_gate.weight"):
            tensor.data[...] *= 1000
    compare(subject_of(model), 64, "reference")


# The file of all types has the others.
@pytest.mark.parametrize(("quant", "isa"), spread(times(("f32", "q8_0", "q4_k", "nvfp4"), QUANTS), ISAS))
def test_logits_agree_in_every_quantisation(subjects: Callable[..., Subject], quant: str, isa: str):
    compare(subjects("v3", "split", quant), 256, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_logits_agree_in_a_file_of_all_types(mixed: Subject, isa: str):
    compare(mixed, 256, isa)
    compare(mixed, 7, isa)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    directory = tmp_path_factory.mktemp("mixed")
    shape = replace(V3, num_layers=6)
    model, types = with_all_types(
        write_tiny_model(directory, arch="v3", quant="f32", overrides=shape), directory / "mixed.gguf"
    )
    assert types == set(FORMATS) - {GgmlType.F32}
    return subject_of(model)
