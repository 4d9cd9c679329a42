"""Plans of models whose layers differ: memory for all caches, and work buffers for the largest layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ballast.host.machine import Memory
from ballast.model.hybrid.device_mixers import device_mixers
from ballast.model.hybrid.sparse.sizes import MAX_CHOSEN
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.latent import IndexSpec, LatentSpec
from ballast.model.spec import ModelSpec
from ballast.plan import Numbers, make_plan
from ballast.plan.gpus.gpu_limits import why_not_fp8, why_not_on_gpu
from ballast.weights.gguf import open_gguf
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import common_types, write_hollow_model
from devkit.models.specs.deepseek import V2_LITE_SPEC
from devkit.models.specs.deepseek4 import V4_FLASH_SPEC, V4_PRO_SPEC
from devkit.models.specs.glm import GLM52_SPEC, GLM53_FLASH_SPEC
from devkit.models.specs.gpt_oss import GPT_OSS_20B_SPEC
from devkit.models.specs.kimi import KIMI_LINEAR_48B_SPEC
from devkit.models.specs.laguna import LAGUNA_M1_SPEC, LAGUNA_XS_SPEC
from devkit.models.specs.mimo import MIMO_FLASH_SPEC
from devkit.models.specs.mistral import MISTRAL_LARGE3_SPEC, MISTRAL_SMALL4_SPEC
from devkit.models.specs.qwen3 import FLASH_NEXT_125B_SPEC, QWEN3_30B_SPEC, QWEN3_NEXT_80B_SPEC
from devkit.models.specs.step import STEP35_FLASH_SPEC

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


def test_a_gpu_refuses_latent_attention_beside_other_kinds() -> None:
    assert why_not_on_gpu(SMALL) is why_not_on_gpu(LARGE) is why_not_on_gpu(MIXED) is None
    grouped = QWEN3_30B_SPEC.layers[0].mixer
    assert isinstance(grouped, GroupedSpec)
    first, *others = V2_LITE_SPEC.layers
    latent = first.mixer
    assert isinstance(latent, LatentSpec)
    for mixer in (replace(grouped, rope=V2_LITE_SPEC.rope), replace(latent, kv_lora_rank=256)):
        refusal = why_not_on_gpu(replace(V2_LITE_SPEC, layers=(replace(first, mixer=mixer), *others)))
        assert refusal is not None
        assert refusal.startswith("its layers have different kinds of latent attention")


@pytest.mark.parametrize(
    "spec",
    [
        GPT_OSS_20B_SPEC,
        MIMO_FLASH_SPEC,
        STEP35_FLASH_SPEC,
        LAGUNA_XS_SPEC,
        LAGUNA_M1_SPEC,
        MISTRAL_LARGE3_SPEC,
        MISTRAL_SMALL4_SPEC,
        QWEN3_NEXT_80B_SPEC,
        GLM53_FLASH_SPEC,
        KIMI_LINEAR_48B_SPEC,
        FLASH_NEXT_125B_SPEC,
        V4_FLASH_SPEC,
        V4_PRO_SPEC,
    ],
    ids=lambda spec: spec.name,
)
def test_a_gpu_supports_windows_gates_scaled_queries_state_and_compressed_entries(spec: ModelSpec) -> None:
    assert why_not_on_gpu(spec) is None


def test_a_gpu_keeps_compressed_entries_in_16_bits_and_selects_a_limited_number() -> None:
    refusal = why_not_fp8(V4_FLASH_SPEC)
    assert refusal is not None
    assert refusal.startswith("its attention reads compressed entries, and no kernels exist for them in 8 bits")
    many = tuple(
        replace(layer, mixer=replace(layer.mixer, index=replace(layer.mixer.index, top_k=MAX_CHOSEN + 1)))
        if isinstance(layer.mixer, CompressedSpec) and layer.mixer.index is not None
        else layer
        for layer in V4_FLASH_SPEC.layers
    )
    refusal = why_not_on_gpu(replace(V4_FLASH_SPEC, layers=many))
    assert refusal is not None
    assert refusal.startswith("a token attends to 8193 compressed entries, and kernels on a GPU select at most 8192")


def test_a_gpu_mixes_rows_whose_number_is_a_power_of_two() -> None:
    assert GLM53_FLASH_SPEC.stream is not None
    stream = replace(GLM53_FLASH_SPEC.stream, num_rows=3)
    layers = tuple(replace(layer, stream=stream) for layer in GLM53_FLASH_SPEC.layers)
    refusal = why_not_on_gpu(replace(GLM53_FLASH_SPEC, layers=layers))
    assert refusal is not None
    assert refusal.startswith("its residual stream has 3 rows, and kernels on a GPU support powers of two")


def test_a_gpu_selects_blocks_of_positions_up_to_its_limit() -> None:
    def with_blocks(top_k: int) -> ModelSpec:
        layers = []
        for layer in FLASH_NEXT_125B_SPEC.layers:
            mixer = layer.mixer
            if isinstance(mixer, GroupedSpec):
                assert mixer.index is not None
                mixer = replace(mixer, index=replace(mixer.index, top_k=top_k))
            layers.append(replace(layer, mixer=mixer))
        return replace(FLASH_NEXT_125B_SPEC, layers=tuple(layers))

    assert why_not_on_gpu(with_blocks(4 * MAX_CHOSEN)) is None
    refusal = why_not_on_gpu(with_blocks(4 * MAX_CHOSEN + 4))
    assert refusal is not None
    assert refusal.startswith("a token attends to 8193 pools of 4 positions, and kernels on a GPU select at most 8192")
    assert why_not_fp8(FLASH_NEXT_125B_SPEC) is not None


def test_a_device_computes_recurrent_layers_beside_one_kind_of_latent_attention() -> None:
    mixers = tuple(layer.mixer for layer in KIMI_LINEAR_48B_SPEC.layers)
    assert device_mixers(KIMI_LINEAR_48B_SPEC) == mixers
    first, *others = KIMI_LINEAR_48B_SPEC.layers
    latent = KIMI_LINEAR_48B_SPEC.attentions[0]
    assert isinstance(latent, LatentSpec)
    index = IndexSpec(num_heads=2, key_dim=64, top_k=32, pairs_apart=True, has_indexer=True)
    for other in (replace(latent, kv_lora_rank=256), replace(latent, index=index)):
        layers = (replace(first, mixer=other), *others)
        assert device_mixers(replace(KIMI_LINEAR_48B_SPEC, layers=layers)) is None
    only_indexed = tuple(
        replace(layer, mixer=replace(layer.mixer, index=index)) if isinstance(layer.mixer, LatentSpec) else layer
        for layer in KIMI_LINEAR_48B_SPEC.layers
    )
    indexed = device_mixers(replace(KIMI_LINEAR_48B_SPEC, layers=only_indexed))
    assert indexed == tuple(layer.mixer for layer in only_indexed)


def test_a_gpu_supports_layers_that_share_an_indexer() -> None:
    assert len(GLM52_SPEC.mixers) == 2
    assert why_not_on_gpu(GLM52_SPEC) is None
