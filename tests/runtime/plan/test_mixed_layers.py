"""Plans of models whose layers differ: memory for all caches, and work buffers for the largest layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ballast.families.architecture import ClampedSilu
from ballast.host.machine import Memory
from ballast.model.layers.feed_forward import DenseSpec
from ballast.model.layers.grouped import GATE, OUTPUT_BIAS, QK_NORM, SINKS, GroupedSpec
from ballast.model.spec import ModelSpec
from ballast.plan import Numbers, make_plan
from ballast.plan.gpu_limits import why_not_on_gpu
from ballast.weights.gguf import open_gguf
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import common_types, write_hollow_model
from devkit.models.specs.deepseek import V2_LITE_SPEC
from devkit.models.specs.glm import GLM46_SPEC, GLM52_SPEC
from devkit.models.specs.gpt_oss import GPT_OSS_20B_SPEC, with_windows
from devkit.models.specs.laguna import LAGUNA_M1_SPEC, LAGUNA_XS_SPEC
from devkit.models.specs.mimo import MIMO_FLASH_SPEC
from devkit.models.specs.qwen3 import QWEN3_30B_SPEC

GIB = 1 << 30
NUMBERS = Numbers(cache_lens=4096, block_tokens=32, max_batch_size=4, chunk_size=256, prefill_chunk_size=256)
SMALL = changed(QWEN3_30B_SPEC, num_layers=4)
LARGE = changed(SMALL, num_heads=64, num_kv_heads=8)
MIXED = replace(SMALL, layers=(*LARGE.layers[:1], *SMALL.layers[1:]))


@pytest.fixture(scope="module")
def uses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """Bytes of each use of memory."""
    return {
        name: bytes_of(tmp_path_factory.mktemp(name) / "m.gguf", spec)
        for name, spec in (("small", SMALL), ("large", LARGE), ("mixed", MIXED))
    }


def bytes_of(file: Path, spec: ModelSpec) -> dict[str, int]:
    gguf = open_gguf(write_hollow_model(file, spec, common_types(spec)))
    plan = make_plan(gguf, spec, NUMBERS, Memory(64 * GIB, 64 * GIB, None))
    return {use.name: use.num_bytes for use in plan.uses}


@pytest.mark.parametrize("use", ["KV cache", "weights"])
def test_each_layer_counts_with_its_own_size(uses: dict[str, dict[str, int]], use: str) -> None:
    def changes(name: str) -> int:
        return uses[name][use] - uses["small"][use]

    assert changes("mixed") * len(SMALL.layers) == pytest.approx(changes("large"), rel=0.01)
    assert changes("mixed") > 0


def test_work_buffers_fit_the_largest_layer(uses: dict[str, dict[str, int]]) -> None:
    assert uses["small"]["work buffers"] < uses["mixed"]["work buffers"] == uses["large"]["work buffers"]


def test_a_gpu_refuses_layers_of_different_attention() -> None:
    assert why_not_on_gpu(SMALL) is why_not_on_gpu(LARGE) is None
    expected = "its layers have different kinds of attention, and a GPU supports one kind; the CPU supports all"
    assert why_not_on_gpu(MIXED) == expected
    grouped = QWEN3_30B_SPEC.layers[0].mixer
    assert isinstance(grouped, GroupedSpec)
    first, *others = V2_LITE_SPEC.layers
    mixer = replace(grouped, rope=V2_LITE_SPEC.rope)
    assert why_not_on_gpu(replace(V2_LITE_SPEC, layers=(replace(first, mixer=mixer), *others))) == expected


_LIMITED = replace(GLM46_SPEC.layers[0], feed_forward=DenseSpec(12288, ClampedSilu(2.0)))
_WINDOWS, _SINKS, _OUTPUT_BIAS = "attention windows", "attention sinks", "bias of the attention's output"


@pytest.mark.parametrize(
    ("spec", "features"),
    [
        (
            GPT_OSS_20B_SPEC,
            [_WINDOWS, _SINKS, "bias of the attention's output", "biases of experts", "clamped units of experts"],
        ),
        (with_windows(QWEN3_30B_SPEC, 128), [_WINDOWS]),
        (changed(QWEN3_30B_SPEC, options=frozenset({QK_NORM, SINKS})), [_SINKS]),
        (changed(QWEN3_30B_SPEC, options=frozenset({QK_NORM, OUTPUT_BIAS})), [_OUTPUT_BIAS]),
        (MIMO_FLASH_SPEC, ["scaled values", "fused queries, keys and values", _WINDOWS, _SINKS]),
        (LAGUNA_XS_SPEC, [_WINDOWS, "gates of heads"]),
        (LAGUNA_M1_SPEC, ["gates of heads"]),
        (changed(QWEN3_30B_SPEC, value_scale=0.5), ["scaled values"]),
        (changed(QWEN3_30B_SPEC, fuses_qkv=True), ["fused queries, keys and values"]),
        (changed(QWEN3_30B_SPEC, has_biases=True), ["biases of experts"]),
        (changed(QWEN3_30B_SPEC, unit=GPT_OSS_20B_SPEC.architecture.unit), ["clamped units of experts"]),
        (changed(QWEN3_30B_SPEC, options=frozenset({QK_NORM, GATE})), ["gates of heads"]),
        (changed(QWEN3_30B_SPEC, has_factors=True), ["factors of rotary frequencies"]),
        (changed(GLM46_SPEC, shared_unit=ClampedSilu(16.0)), ["clamped units of dense layers or shared experts"]),
        (
            replace(GLM46_SPEC, layers=(_LIMITED, *GLM46_SPEC.layers[1:])),
            ["clamped units of dense layers or shared experts"],
        ),
    ],
    ids=[
        *(
            "gpt-oss",
            "windows",
            "sinks",
            "output bias",
            "mimo",
            "laguna",
            "laguna without windows",
            "scaled values",
            "fused matrices",
        ),
        *(
            "biases of experts",
            "unit of experts",
            "gates",
            "factors",
            "unit of shared experts",
            "unit of a dense layer",
        ),
    ],
)
def test_a_gpu_names_the_features_that_its_kernels_do_not_support(spec: ModelSpec, features: list[str]) -> None:
    refusal = why_not_on_gpu(spec)
    assert refusal is not None
    assert refusal.startswith("only the CPU computes its ")
    assert sorted(refusal.removeprefix("only the CPU computes its ").split(", its ")) == sorted(features)


def test_a_gpu_supports_layers_that_share_an_indexer() -> None:
    assert len(GLM52_SPEC.mixers) == 2
    assert why_not_on_gpu(GLM52_SPEC) is None
