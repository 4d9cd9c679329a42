"""What whole models take, from loads of a layer of each kind in its real size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from ballast.host.machine import Memory
from ballast.model.hybrid.weights import load_hybrid_weights
from ballast.model.kv_pool import KvPool, StatePool, num_kv_blocks, num_state_slots, num_window_blocks
from ballast.model.layers.feed_forward import EXPERT_TABLE, EXPERTS
from ballast.model.layers.ngram import TABLE
from ballast.model.metadata import read_spec
from ballast.model.packed_tensors import Packing
from ballast.model.residence import weight_memory
from ballast.model.spec import ModelSpec
from ballast.model.tensors import EMBEDDING, expected_tensors
from ballast.model.weights import load_weights
from ballast.plan import MemoryPlan, Numbers, make_plan
from ballast.plan.gpus.gpu_experts import GpuExpertOptions
from ballast.plan.gpus.hybrid import make_hybrid_plan
from ballast.plan.memory import DeviceMemory
from ballast.weights.gguf import GgufModel, block_of, open_gguf
from devkit.long import if_long
from devkit.models.changed_spec import changed
from devkit.models.counted_linears import CountedLinears
from devkit.models.gguf_files import write_hollow_model
from devkit.models.quant_recipes import mxfp4_types, q4_k_m_types
from devkit.models.specs.deepseek4 import V4_FLASH_SPEC
from devkit.models.specs.dots import DOTS1_142B_SPEC
from devkit.models.specs.glm import GLM52_SPEC, GLM53_FLASH_SPEC
from devkit.models.specs.gpt_oss import GPT_OSS_120B_SPEC
from devkit.models.specs.hunyuan import HUNYUAN3_SPEC
from devkit.models.specs.kimi import K2_SPEC, KIMI_LINEAR_48B_SPEC
from devkit.models.specs.laguna import LAGUNA_M1_SPEC, LAGUNA_S_SPEC
from devkit.models.specs.mimo import MIMO_FLASH_SPEC
from devkit.models.specs.minimax import MINIMAX_M2_SPEC
from devkit.models.specs.mistral import MISTRAL_LARGE3_SPEC, MISTRAL_SMALL4_SPEC
from devkit.models.specs.qwen3 import (
    FLASH_NEXT_125B_SPEC,
    QWEN3_NEXT_80B_SPEC,
    QWEN35_35B_SPEC,
    QWEN35_122B_SPEC,
    QWEN35_397B_SPEC,
    with_small_table,
)
from devkit.models.specs.step import STEP35_FLASH_SPEC

NUMBERS = Numbers(
    cache_lens=65536,
    block_tokens=32,
    max_batch_size=4,
    chunk_size=256,
    prefill_chunk_size=256,
    isa=kernels.usable_isas()[0],
)
NUM_EXPERTS, VOCAB_SIZE = 16, 1024
"""Sizes of the loaded parts. Memory is proportional to both if rows of routers and outputs fill whole panels."""
OF_EXPERTS = (EXPERTS, "router", "router_bias", "router_logit_bias")
"""The roles whose memory grows with the number of experts."""


@pytest.mark.parametrize(
    ("spec", "types_of", "file_bytes"),
    [
        (QWEN35_35B_SPEC, q4_k_m_types, 21.2e9),
        (QWEN3_NEXT_80B_SPEC, q4_k_m_types, 48.5e9),
        (QWEN35_122B_SPEC, q4_k_m_types, 74e9),
        (QWEN35_397B_SPEC, q4_k_m_types, 241e9),
        (KIMI_LINEAR_48B_SPEC, q4_k_m_types, 30e9),
        (GLM53_FLASH_SPEC, q4_k_m_types, 188.8e9),
        (FLASH_NEXT_125B_SPEC, q4_k_m_types, 120e9),
        (V4_FLASH_SPEC, mxfp4_types, 155e9),
        (GPT_OSS_120B_SPEC, mxfp4_types, 63.4e9),
        (MIMO_FLASH_SPEC, q4_k_m_types, 187.1e9),
        (LAGUNA_S_SPEC, q4_k_m_types, 71.2e9),
        (MINIMAX_M2_SPEC, q4_k_m_types, None),
        (HUNYUAN3_SPEC, q4_k_m_types, None),
        (STEP35_FLASH_SPEC, q4_k_m_types, None),
        (LAGUNA_M1_SPEC, q4_k_m_types, None),
        (MISTRAL_SMALL4_SPEC, q4_k_m_types, None),
        (GLM52_SPEC, q4_k_m_types, None),
        *if_long(
            (DOTS1_142B_SPEC, q4_k_m_types, None),
            (MISTRAL_LARGE3_SPEC, q4_k_m_types, None),
            (K2_SPEC, q4_k_m_types, None),
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ModelSpec) else "",
)
def test_the_plan_is_the_sum_of_loaded_layers(
    tmp_path: Path, spec: ModelSpec, types_of: Callable[[ModelSpec], dict[str, GgmlType]], file_bytes: float | None
) -> None:
    types = types_of(spec)
    whole = open_gguf(write_hollow_model(tmp_path / "whole.gguf", spec, types))
    if file_bytes is not None:  # a published size is known
        assert sum(info.num_bytes for info in whole.tensors.values()) == pytest.approx(file_bytes, rel=0.02)
    plan = make_plan(whole, read_spec(whole), NUMBERS, Memory(1 << 40, 1 << 40, None))

    examples = examples_of(spec, types)
    gguf = file_of_layers(tmp_path / "layers.gguf", spec, types, tuple(examples.values()))
    packing = Packing(kernels.ThreadPool(1), NUMBERS.isa, 2)
    loaded = load_weights(gguf, read_spec(gguf), VOCAB_SIZE, packing, lambda _: None)
    sizes = {kind: layer_bytes(spec, layer) for kind, layer in zip(examples, loaded.layers, strict=True)}
    output = matrix_bytes(loaded.output) * spec.vocab_size // VOCAB_SIZE
    taken = (
        sum(sizes[kind_of(spec, types, layer)] for layer in range(spec.num_layers))
        + output
        + whole.tensors[EMBEDDING].num_bytes
        + matrix_bytes(loaded.output_tensors)
        + sum(each.nbytes for each in loaded.output_tensors.values() if isinstance(each, np.ndarray))
    )
    assert use(plan, "weights") == pytest.approx(taken, rel=0.0001)

    num_blocks = num_kv_blocks(NUMBERS.cache_lens, NUMBERS.block_tokens)
    num_slots = num_state_slots(spec.states, NUMBERS.cache_lens, NUMBERS.max_batch_size, on_gpu=False)
    states = StatePool(spec.states, num_slots)
    sizes = spec.window, num_blocks, NUMBERS.block_tokens, NUMBERS.max_batch_size, NUMBERS.step_tokens
    pool = KvPool(spec.planes, num_blocks, NUMBERS.block_tokens, num_window_blocks(*sizes, has_tiers=False))
    assert use(plan, "KV cache") == pool.nbytes
    of_states = sum(state.nbytes for of_layer in states.layers for state in of_layer)
    assert sum(row.num_bytes for row in plan.uses if row.name == "recurrent state") == of_states
    estimates = sum(use(plan, name) for name in ("work buffers", "tables", "program"))
    assert estimates < 0.03 * plan.needed_bytes


@pytest.mark.parametrize(
    "spec",
    [
        *(QWEN3_NEXT_80B_SPEC, QWEN35_122B_SPEC, KIMI_LINEAR_48B_SPEC, GLM53_FLASH_SPEC, FLASH_NEXT_125B_SPEC),
        *if_long(QWEN35_35B_SPEC, QWEN35_397B_SPEC),
    ],
    ids=lambda spec: spec.name,
)
def test_a_gpu_keeps_what_the_plan_says(tmp_path: Path, spec: ModelSpec) -> None:
    types = q4_k_m_types(spec)
    gguf = file_of_layers(tmp_path / "layers.gguf", spec, types, tuple(examples_of(spec, types).values()))
    found = read_spec(gguf)
    on_device = CountedLinears()
    loader = on_device.loader(lambda *_: False)
    packing = Packing(kernels.ThreadPool(1), NUMBERS.isa, 2)
    loaded = load_hybrid_weights(gguf, found, VOCAB_SIZE, packing, [loader] * found.num_layers, lambda _: None)
    memory = Memory(1 << 40, 1 << 40, None)
    plan = make_hybrid_plan(gguf, found, NUMBERS, memory, [DeviceMemory("cuda:0", 1 << 36, "it")], GpuExpertOptions(0))
    kept = [each for each in expected_tensors(found).values() if not each.is_packed or each.is_exact]
    floats = sum(4 * prod(tensor.shape) for tensor in kept)
    [planned] = [row.num_bytes for row in plan.devices[0].uses if row.name == "dense weights"]
    assert planned == on_device.num_bytes + floats
    assert plan.uses[0].num_bytes == matrix_bytes(replace(loaded, ngram_table=None))


def kind_of(spec: ModelSpec, types: Mapping[str, GgmlType], layer: int) -> tuple[object, ...]:
    """Equal for layers that take equal memory."""
    of_layer = {name.split(".", 2)[2]: kind for name, kind in types.items() if block_of(name) == layer}
    return spec.layers[layer], *sorted(of_layer.items())


def file_of_layers(file: Path, spec: ModelSpec, types: Mapping[str, GgmlType], layers: Sequence[int]) -> GgufModel:
    """These layers in a file of their own, with fewer experts and a smaller vocabulary."""
    small = changed(spec, num_experts=NUM_EXPERTS, num_experts_used=1, vocab_size=VOCAB_SIZE)
    small = with_small_table(small)
    cut = replace(small, layers=tuple(small.layers[layer] for layer in layers))
    cut_types = {name: kind for name, kind in types.items() if block_of(name) is None}
    for number, layer in enumerate(layers):
        begin = f"blk.{layer}."
        of_layer = {name: kind for name, kind in types.items() if name.startswith(begin)}
        cut_types |= {f"blk.{number}.{name.removeprefix(begin)}": kind for name, kind in of_layer.items()}
    return open_gguf(write_hollow_model(file, cut, cut_types))


def examples_of(spec: ModelSpec, types: Mapping[str, GgmlType]) -> dict[tuple[object, ...], int]:
    """A layer of each kind."""
    kinds = [kind_of(spec, types, layer) for layer in range(spec.num_layers)]
    return {kind: kinds.index(kind) for kind in dict.fromkeys(kinds)}


def layer_bytes(spec: ModelSpec, layer: Mapping[str, object]) -> int:
    """What the layer takes with all of its experts."""
    by_role = {
        role: each.nbytes if isinstance(each, np.ndarray) else matrix_bytes(each)
        for role, each in layer.items()
        if role != TABLE  # of which page cache has the rows that are read
    }
    factor = spec.routing.num_experts // NUM_EXPERTS
    experts = layer.get(EXPERTS)
    if isinstance(experts, kernels.Experts) and experts.biases is not None:
        by_role[EXPERTS] += sum(bias.nbytes for bias in experts.biases)
    if EXPERT_TABLE in by_role:  # its vocabulary and choice are smaller as well
        by_role[EXPERT_TABLE] = by_role[EXPERT_TABLE] * spec.vocab_size * spec.routing.num_experts_used // VOCAB_SIZE
    return sum(size * (factor if role in OF_EXPERTS else 1) for role, size in by_role.items())


def matrix_bytes(loaded: object) -> int:
    """Of its matrices, those that share memory once."""
    found = weight_memory(loaded)
    return sum(size for _, size in {place for ranges in (*found.experts.values(), found.others) for place in ranges})


def use(plan: MemoryPlan, name: str) -> int:
    [found] = [row.num_bytes for row in plan.uses if row.name == name]
    return found
