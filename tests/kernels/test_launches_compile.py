"""Kernels that no other test compiles, for a GPU that is not here, with the arguments that a model passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import KernelInterface

from ballast._core import kernels
from ballast.host.startup.kernel_cache import keep_machine_code_only
from ballast.model.hybrid.attention.expanded import ExpandedSizes
from ballast.model.hybrid.attention.paged import PagedAttention, Tiling, Tilings, choose_tilings
from ballast.model.hybrid.attention.sizes import GroupedSizes, LatentSizes
from ballast.model.hybrid.attention.triton_expanded import TritonExpandedKernels
from ballast.model.hybrid.compressed.compression import CompressedCache, EntryTokens, Rotation
from ballast.model.hybrid.compressed.triton_compression import DeviceLimits, TritonCompression
from ballast.model.hybrid.copies import small_copy_kernels
from ballast.model.hybrid.copies.small_copies import carried
from ballast.model.hybrid.experts.fused_routing import FusedRouter, fused_divide, fused_groups
from ballast.model.hybrid.experts.products.expert_panels import ExpertPanels
from ballast.model.hybrid.experts.products.pair_sums import PairSums
from ballast.model.hybrid.handoff import transport, transport_kernels
from ballast.model.hybrid.handoff.transport import Mailbox
from ballast.model.hybrid.linear import FloatLinear
from ballast.model.hybrid.panels.panel_linear import PanelLinear
from ballast.model.hybrid.pointwise.pointwise import HeadWeights, IndexNorm
from ballast.model.hybrid.pointwise.pools import BlockTokens, PooledTokens, PoolMemory
from ballast.model.hybrid.pointwise.triton_pointwise import TritonPointwise
from ballast.model.hybrid.recurrent.recurrence import Gates
from ballast.model.hybrid.recurrent.state_pool import DeviceStatePool, EntryStates
from ballast.model.hybrid.recurrent.state_rows import PlannedRows
from ballast.model.hybrid.recurrent.triton_convolution import convolve
from ballast.model.hybrid.recurrent.triton_recurrence import TritonRecurrence
from ballast.model.hybrid.residual.residual import Connection
from ballast.model.hybrid.residual.triton_gates import TritonRowGates
from ballast.model.hybrid.residual.triton_stream import TritonStreamMixer
from ballast.model.hybrid.sparse.sizes import IndexSizes
from ballast.model.hybrid.sparse.triton_choice import TritonPositionChoice
from ballast.model.hybrid.sparse.triton_chosen import TritonChosenAttention
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.stream import StreamSpec
from ballast.model.rope import RopeTable, unrotated
from devkit.kernels.attention_cases import attention_case
from devkit.kernels.panel_stacks import NUM_EXPERTS, stack_of
from devkit.models.cpu_platform import CpuPlatform
from devkit.models.random_blocks import random_blocks
from devkit.models.specs.deepseek import R1_SPEC
from devkit.models.specs.deepseek4 import V4_FLASH_SPEC

CPU = torch.device("cpu")
TILE = Tiling(16, 16, 4, 1)
LATENT = LatentSizes(num_heads=4, rank=256, rope_dim=64, scale=0.1, block_tokens=16)


class Hopper:
    """The driver of a GPU that runs nothing."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(
            load_binary=lambda *_: (object(), object(), 32, 0, 1024),
            get_device_properties=lambda _: {"max_shared_mem": 227 << 10},
        )

    def launcher_cls(self, source: object, metadata: object) -> object:
        return lambda *_: None

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def launched(kept_kernels: None, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the kernels that were launched, each of which is compiled once."""
    names: set[str] = set()
    monkeypatch.setattr(driver, "_active", Hopper())
    monkeypatch.setattr(CpuPlatform, "term_dtype", torch.bfloat16)
    monkeypatch.setattr(CpuPlatform, "has_fast_launches", True)
    monkeypatch.setattr(CpuPlatform, "launches_early", True)

    def launch(kernel: Any, grid: Any, *arguments: Any, **known: Any) -> None:
        if kernel.fn.__name__ not in names:
            names.add(kernel.fn.__name__)
            # Compiled kernels of other drivers stay elsewhere.
            monkeypatch.setattr(kernel, "device_caches", type(kernel.device_caches)(kernel.create_binder))
            compiled = kernel.warmup(*arguments, grid=grid, **known)
            assert compiled.asm["ptx"]
            assert compiled.metadata.launch_pdl == ("griddepcontrol.wait" in compiled.asm["ptx"])
            if compiled.metadata.launch_pdl:
                check_that_it_waits(compiled.asm["sass"])

    monkeypatch.setattr(KernelInterface, "__getitem__", lambda kernel, grid: partial(launch, kernel, grid))
    return names


def check_that_it_waits(instructions: str) -> None:
    """A kernel that is launched early waits for the kernel in front before it reads or writes global memory, or ends.
    The compiler might move accesses, so the check is of the GPU's own instructions."""
    before, wait, after = instructions.partition("ACQBULK")
    assert wait
    assert not re.search(r"\b(LDG|STG|LDGSTS|ATOMG|REDG|LD|ST|RED|EXIT)\b", before)
    assert "PREEXIT" in after


def routing() -> None:
    logits = torch.zeros(2, R1_SPEC.routing.num_experts)
    ids, _ = FusedRouter(R1_SPEC.routing, logits[0])(logits)
    slots = torch.zeros(R1_SPEC.routing.num_experts, dtype=torch.int32)
    FusedRouter(V4_FLASH_SPEC.routing, None, ids.repeat(9, 1))(logits, ids[:, 0])
    fused_divide(ids, slots, torch.tensor(0.25), 0.5, torch.tensor(0))
    fused_divide(ids, slots, None, 0.5, torch.tensor(0), torch.zeros(64, dtype=torch.int32))
    fused_groups(ids, R1_SPEC.routing.num_experts)


def hand_off() -> None:
    send, fetch = transport.carried(transport_kernels)
    ids = torch.zeros(2, 8, dtype=torch.int32)
    box = Mailbox(torch.zeros(2, 64), ids, torch.zeros(2, 8), torch.zeros(2, 64))
    send(box, box.results, ids, box.weights)
    fetch(box, 2, CPU)


def attention() -> None:
    """Prompts of latents, whose queries are rounded first, and single tokens, whose keys are split among programs."""
    for sizes, tokens in (
        (LatentSizes(4, 256, 64, 0.1, 16), [20]),
        (GroupedSizes(8, 2, 64, 64, 0.1, 16, 20, True), [1]),
        (LatentSizes(4, 256, 64, 0.1, 16, is_short=True), [1]),
        (GroupedSizes(8, 2, 64, 64, 0.1, 16, 20, True, is_short=True), [1]),
    ):
        case = attention_case(sizes, tokens, [90], CPU, torch.float16)
        attend = PagedAttention(sizes, Tilings(TILE, TILE), num_processors=132)
        attend.prepare(case.step)
        attend(case.query, case.cache, case.step, torch.zeros(8) if sizes.has_sinks else None)


def expanded_queries() -> None:
    table = RopeTable(*(np.ones((50, 32), np.float32) for _ in range(2)), np.ones(50, np.float32))
    case = attention_case(LATENT, [2], [9], CPU, torch.float16)
    pointwise, heads = TritonPointwise(1e-6, table, CPU), torch.zeros(2, 4, 128)
    pointwise.rotated_query(heads, case.step, 0.25, heads.half())


def expanded_attention() -> None:
    sizes = ExpandedSizes(2, rank=512, nope_dim=128, rope_dim=64, v_dim=128, scale=0.1, block_tokens=16)
    ways, half = TritonExpandedKernels(sizes, torch.zeros((), dtype=torch.int64)), torch.float16
    keys = ways.keys(torch.zeros(9, 256, dtype=half), torch.zeros(9, 64, dtype=half))
    query, values = torch.zeros(9, 2, 192, dtype=half), ways.values(torch.zeros(9, 256, dtype=half))
    total, weight = ways.attend(query, keys, values, is_causal=True)
    ways.merge(total.float(), weight, total, weight)


def row_decays() -> None:
    """A token of one row, and two chunks of another."""
    mixer, width = KimiDeltaSpec(num_heads=2, head_dim=64, conv_taps=4, lower_bound=-5.0), 128
    recurrence, states = TritonRecurrence(mixer, 1e-6), torch.zeros(3, 2, 64, 64)
    rows = PlannedRows([0, 1, 71], [1, 2], [1, 2], [(1, 1, 65, 0), (1, 65, 71, 2)], 1).send(torch.from_numpy)
    gates = Gates(torch.zeros(71, 2), torch.zeros(71, width))
    values = recurrence.update(torch.zeros(71, 3 * width), gates, torch.zeros(2), torch.zeros(width), states, rows)
    recurrence.gated_norm(values, torch.zeros(71, width), torch.zeros(64))


def single_tokens() -> None:
    """One token of a request: recurrent state, and grouped attention's heads."""
    mixer, width = DeltaNetSpec(num_heads=4, num_key_heads=2, key_dim=32, v_dim=32, conv_taps=4), 256
    recurrence, states = TritonRecurrence(mixer, 1e-6), torch.zeros(3, 4, 32, 32)
    rows = PlannedRows([0, 1], [1], [1], [], 1).send(torch.from_numpy)
    convolved = convolve(torch.zeros(1, width), torch.zeros(4, width), torch.zeros(3, 3, width), rows)
    gates = Gates(torch.zeros(1, 4), torch.zeros(1, 4))
    values = recurrence.update(convolved, gates, torch.zeros(4), torch.zeros(4), states, rows)
    recurrence.gated_norm(values, torch.zeros(1, 128), torch.zeros(32))
    case = attention_case(GroupedSizes(8, 2, 64, 64, 0.1, 16), [1], [9], CPU, torch.float16)
    pointwise = TritonPointwise(1e-6, RopeTable(np.ones((50, 32), np.float32), np.ones((50, 32), np.float32)), CPU)
    query, key = torch.zeros(1, 8, 64), torch.zeros(1, 2, 64)
    pointwise.heads_and_cache(query, key, key.clone(), HeadWeights(*[None] * 5), case.cache, case.step)
    pointwise.gated(query[0], query[0])


def hyper_connections() -> None:
    spec, width = StreamSpec(4, 20, 1e-6), 4096
    mixer, rows, norm = TritonStreamMixer(spec, 1e-5), torch.zeros(2, 4, width), torch.zeros(width)
    products = torch.zeros(2, spec.num_weights)
    connection = Connection(FloatLinear(torch.zeros(1, 1, 1)), torch.zeros(spec.num_weights), torch.zeros(3))
    _, weights = mixer.read(rows, products, connection, norm)
    mixer.mix(rows, (norm[None], norm[None]), weights)


def pooled_choice() -> None:
    """Latent attention without a rotated part, to positions that are selected by pools."""
    sizes, index = LatentSizes(64, 512, 0, 0.1, 16), IndexSizes(32, 128, 2048, 16, pool=4)
    case = attention_case(sizes, [1, 70], [3, 90], CPU, torch.float16)
    rows = PlannedRows([0, 1, 71], [1, 2], [1, 2], [(1, 1, 65, 0), (1, 65, 71, 2)], 1).send(torch.from_numpy)
    step, owners = replace(case.step, states=rows), torch.zeros(71, dtype=torch.int32)
    pointwise, kept = TritonPointwise(1e-6, unrotated(0), CPU), torch.zeros(len(case.cache) // 4, 128).half()
    key, vector = torch.zeros(71, 128), torch.zeros(128)
    norm, query = IndexNorm(vector, vector, pairs_apart=True), torch.zeros(71, 32, 128)
    query = pointwise.index_query_and_key(query, key, norm, kept, step, key.clone())
    tokens = PooledTokens(key, key.clone(), torch.zeros(4, 128))
    pointwise.keep_pools(tokens, PoolMemory(kept, torch.zeros(3, 3, 2, 128)), step)
    nope = torch.zeros(71, 64, 512)
    latents = pointwise.query_and_cache(nope, torch.zeros(71, 64, 256), nope[:, 0], nope[0, 0], case.cache, step)
    chosen = TritonPositionChoice(index, 132)(query, torch.zeros(71, 32), kept, owners, step)
    TritonChosenAttention(sizes, index, choose_tilings(sizes, 227 << 10), 132)(
        latents, case.cache, chosen, owners, step
    )


def gated_rows() -> None:
    gates, rows, norm = TritonRowGates(1e-5), torch.zeros(2, 4, 2560), torch.zeros(4 * 2560)
    low, products = torch.zeros(2, 324).split([320, 4], 1)
    parts = rows[:, 0].contiguous(), rows[:, 1].contiguous()
    gates.mean(gates.norm(rows, norm, parts, products), gates.low(low, 4).repeat(1, 32))
    gates.add(rows, parts, products)


def chosen_blocks() -> None:
    """Grouped-query attention to blocks of positions, one token of one row and two chunks of another."""
    sizes, index = GroupedSizes(24, 2, 256, 256, 0.1, 16), IndexSizes(4, 128, 2048, 16, pool=4, has_weights=False)
    case = attention_case(sizes, [1, 70], [3, 90], CPU, torch.float16)
    rows = PlannedRows([0, 1, 71], [1, 2], [1, 2], [(1, 1, 65, 0), (1, 65, 71, 2)], 1).send(torch.from_numpy)
    step, owners = replace(case.step, states=rows), torch.zeros(71, dtype=torch.int32)
    table = RopeTable(*(np.ones((90, 32), np.float32) for _ in range(2)))
    pointwise, kept = TritonPointwise(1e-6, table, CPU), torch.zeros(len(case.cache) // 4, 128).half()
    query = pointwise.block_queries(torch.zeros(71, 4, 128), torch.zeros(128), kept, step)
    tokens = BlockTokens(torch.zeros(71, 128), torch.zeros(128))
    pointwise.keep_blocks(tokens, PoolMemory(kept, torch.zeros(3, 3, 128)), step)
    chosen = TritonPositionChoice(index, 132)(query, None, kept, owners, step)
    attend = TritonChosenAttention(sizes, index, choose_tilings(sizes, 227 << 10), 132)
    attend(case.query, case.cache, chosen, owners, step)
    attend(case.query[:1], case.cache, chosen[:1], owners[:1], step)  # shared by several programs


BLOCKS = {"norm_queries", "write_means", "leave_pools", "score", "keep_highest", "spread_pools"}


def compressed_entries() -> None:
    """Attention of DeepSeek-V4-Flash, to selected entries, for a single token and a prompt."""
    layer = next(each for each in V4_FLASH_SPEC.layers if isinstance(each.mixer, CompressedSpec) and each.mixer.index)
    mixer = layer.mixer
    assert isinstance(mixer, CompressedSpec)
    assert mixer.index is not None
    case = attention_case(LATENT, [1, 70], [3, 90], CPU, torch.float16)
    rows = PlannedRows([0, 1, 71], [1, 2], [1, 2], [(1, 1, 65, 0), (1, 65, 71, 2)], 1).send(torch.from_numpy)
    step, limits = replace(case.step, states=rows), DeviceLimits(227 << 10, 132)
    rotation = Rotation(torch.zeros(200, 32), torch.zeros(200, 32))
    compression = TritonCompression(mixer, 16, 1e-6, rotation, torch.float16, limits)
    pool = DeviceStatePool([layer], V4_FLASH_SPEC.hidden, 2, CPU).layers[0]
    assert isinstance(pool, EntryStates)
    cache = CompressedCache(torch.zeros(400, 128).half(), torch.zeros(400, 32).half(), pool)
    assert cache.index_keys is not None
    columns, vector = torch.zeros(71, 1024), torch.zeros(512)
    compression.keep_entries(EntryTokens(columns, columns, torch.zeros(4, 1024), vector), pool[1], cache.entries, step)
    query, head_weights = torch.zeros(71, mixer.index.num_heads, 128), torch.zeros(71, mixer.index.num_heads)
    chosen = compression.choose(query, head_weights, cache.index_keys, step)
    key = compression.key(columns[:, :512], vector, step)
    heads, sinks = compression.queries(torch.zeros(71, 64, 512), step), torch.zeros(64)
    compression.attend(heads, key, cache, chosen, sinks, step)
    compression.keep_window(key, cache.window, step)
    one = replace(step, positions=step.positions[:1], states=replace(rows, owners=rows.owners[:1]))
    compression.attend(heads[:1], key[:1], cache, chosen[:1], sinks, one)


COMPRESSED = {"complete_entries", "leave_entries", "norm_and_turn", "turn_back", "gather_window", "leave_window"}
POOLED = {"index_query_and_key", "write_pools", "leave_pools", "query_and_cache", "score", "keep_highest"}
ROW_DECAYS = {"prepare_rows", "update_one_each", "score_blocks", "invert_chunks", "fade_chunks", "pass_chunks"}


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (routing, {"route", "divide", "group_pairs"}),
        (hand_off, {"send", "fetch"}),
        (attention, {"round_query", "attend", "merge", "attend_heads", "attend_latents"}),
        (expanded_queries, {"rotated_query"}),
        (expanded_attention, {"place_keys", "bound", "attend_expanded", "merge"}),
        (row_decays, {*ROW_DECAYS, "gated_norm"}),
        (single_tokens, {"convolve_one_each", "prepare", "update_one_each", "gated_norm", "heads_and_cache", "gated"}),
        (hyper_connections, {"read", "mix"}),
        (compressed_entries, {*COMPRESSED, "score", "keep_highest", "attend", "merge"}),
        (pooled_choice, {*POOLED, "spread_pools", "round_query", "attend"}),
        (gated_rows, {"add_to_rows", "norm_rows", "low_units", "gated_mean"}),
        (chosen_blocks, {*BLOCKS, "round_query", "attend", "merge"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_kernels_compile_as_they_are_launched(launched: set[str], run: Callable[[], None], expected: set[str]) -> None:
    run()
    assert launched == expected


def test_kernels_of_experts_compile(launched: set[str], rng: np.random.Generator, pool: kernels.ThreadPool) -> None:
    stacks = [stack_of(rng, pool, T.MXFP4, 64, 64, CPU)[0] for _ in range(3)]
    x, ids, weights = torch.zeros(2, 64), torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2, 2)
    ExpertPanels(*stacks)(x, ids, weights)
    PairSums(x, ids, weights, NUM_EXPERTS).add(0, *stacks)
    assert {"group_and_split", "combine_experts", "round_to_half", "decode_rows"} <= launched


def test_kernels_of_dense_products_compile(launched: set[str], pool: kernels.ThreadPool) -> None:
    for kind in (T.Q4_K, T.F32):
        data = random_blocks(np.random.default_rng(0), kind, 64, 256)
        matrix = kernels.pack(pool, kernels.Matrix(data, kind, 64, 256), kernels.usable_isas()[0], activation_bytes=1)
        linear = PanelLinear(matrix, 64, 256, is_transposed=False, device=CPU)
        for num_tokens in (1, 8):
            for by_int_gemm in (False, True):
                linear.multiply(torch.zeros(num_tokens, 256), by_int_gemm=by_int_gemm)
    products = {"quantized_gemv", "quantized_gemm", "float_gemv", "float_gemm", "int_gemm"}
    assert launched == products | {"split_columns", "round_to_half", "split_bf16"}


def test_a_small_copy_compiles(launched: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = small_copy_kernels.copy_words  # launched even where launches only compile
    monkeypatch.setattr(kernel, "device_caches", type(kernel.device_caches)(kernel.create_binder))
    words = torch.zeros(64, dtype=torch.int32)
    carried(small_copy_kernels)(words, words)


def test_triton_loads_a_kernel_of_which_it_keeps_machine_code_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_STORE_BINARY_ONLY", "")  # so that it is restored
    monkeypatch.delenv("TRITON_STORE_BINARY_ONLY")
    keep_machine_code_only()
    monkeypatch.setattr(driver, "_active", Hopper())
    kernel, words = small_copy_kernels.copy_words, torch.zeros(64, dtype=torch.int32)
    codes = set()
    for _ in range(2):  # the second time, from the folder
        monkeypatch.setattr(kernel, "device_caches", type(kernel.device_caches)(kernel.create_binder))
        compiled = kernel.warmup(words, words, 64, BLOCK=64, grid=(1,))
        assert "ptx" not in compiled.asm
        codes.add(compiled.asm["cubin"])
    assert len(codes) == 1
    kept = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert ".cubin" in kept
    assert not kept & {".ttir", ".ttgir", ".llir", ".ptx"}
