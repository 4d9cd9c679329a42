"""The GPUs' memory of a model whose routed experts stay on the CPU. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from ballast.host.sizes import human
from ballast.model.hybrid.panels.product_sizes import MIN_CUBLAS_TOKENS, SCRATCH_BYTES
from ballast.model.layers.plane import KvType, row_bytes
from ballast.model.layers.stream import GatedStreamSpec
from ballast.model.layers.tensor import Tensor
from ballast.model.packed_size import loaded_bytes
from ballast.model.spec import ModelSpec
from ballast.model.tensors import (
    EMBEDDING,
    OUTPUT,
    expected_tensors,
    used_tensors,
)
from ballast.moe.device_rules import Placement
from ballast.plan.gpus.device_layers import DeviceLayers
from ballast.plan.gpus.work import num_slices, step_bytes
from ballast.plan.kv_cache import CachePlan
from ballast.plan.kv_tiers import device_rows
from ballast.plan.memory import FLOAT_BYTES, Numbers, hidden_bytes, input_bytes, sums_bytes
from ballast.plan.rows import MemoryRow
from ballast.plan.streaming import buffer_bytes
from ballast.weights.gguf import GgufModel

_EXPERTS = ".mlp.experts"
_STORED: Mapping[KvType, str] = {"fp16": "in half precision", "fp8": "in 8 bits"}
_ATTENTION_BYTES = 96 << 20
"""Partial results of model/hybrid/attention/paged.py on a GPU of 160 multiprocessors, and flashinfer's workspaces."""
_PARTIAL_BYTES = 64 << 20
"""Partial sums of a product whose columns are split among programs: 528 tiles of 128 rows and 159 tokens, and their
buffers. Experts' of at most 128 tokens are no larger. Those of float matrices and heads grow with the step, to 67,584
floats per token, but share memory with the step's widest activations, which are counted."""
_LIBRARY_BYTES = 64 << 20
"""torch's workspaces for cuBLAS and cuBLASLt, of one stream: 32 MiB each on Hopper."""
_SLICE_PLAN_BYTES = 8 << 20
"""What flashinfer stores for the plan of one slice of a step."""
_MAX_CAPTURED = 256
"""Most requests in a captured step: MAX_CAPTURED of model/hybrid/graphs/decode_graphs.py."""
_NODES_PER_LAYER = 32
"""Most kernels and stream memory operations in a captured layer."""
_CHOICE_NODES = 12
"""Most nodes that the selection of positions adds."""
_STREAM_NODES, _GATE_NODES, _POOL_NODES = 8, 20, 8
"""Most nodes that hyper-connections or gated rows add to a layer, and pools of positions to their selection."""
_NGRAM_NODES = 40
"""Most nodes of an n-gram embedding."""
_ENTRY_NODES = 24
"""Most nodes that attention to windows and compressed entries adds to a layer."""
_NODE_BYTES = 8 << 10
"""An estimate of the memory that CUDA uses for one node."""
_UNUSABLE_BYTES = 512 << 20
"""An estimate of what torch's allocator rounds up and of fragments too small for reuse; half of a step's work buffers
is added."""
_CUDA_BYTES = 512 << 20
"""An estimate for the context, the libraries and compiled kernels: 294 MiB on an H200, before graphs
(benchmarks/results/hybrid_vram.jsonl)."""
HOST_PROGRAM_BYTES = 3 << 30
"""An estimate of the host memory of Python, torch and CUDA's libraries."""


def compared_on_gpu(placement: Placement, host_modules: Collection[str]) -> Placement:
    """The placement with a note if its rules move modules other than routed experts. `host_modules`: those that no GPU
    always holds."""

    def device_of(module: str) -> str:
        if module.endswith(_EXPERTS):
            return placement.devices[module]
        return "cpu" if module in host_modules else "cuda"

    why = "with --device cuda, rules move routed experts only; the embedding is in host memory, the rest on the device"
    return placement.compared(device_of, why)


def hybrid_bytes(
    gguf: GgufModel, spec: ModelSpec, isa: str, threads_per_node: tuple[int, ...]
) -> Iterator[tuple[str, str, int]]:
    """(name, source tensor, bytes) of all that the hybrid keeps. A tied output is a second copy of the embedding;
    routers and the weights of an indexer's heads are kept as float32."""
    expected = expected_tensors(spec)
    for name, num_bytes in loaded_bytes(gguf, spec, isa, threads_per_node).items():
        if expected[name].read_in_place == "few rows":
            continue
        if expected[name].is_exact:
            yield name, name, math.prod(expected[name].shape) * FLOAT_BYTES
        elif name == EMBEDDING and spec.tied_output:
            in_file = gguf.tensors[name].num_bytes
            yield name, name, in_file
            yield OUTPUT, name, num_bytes - in_file
        else:
            yield name, name, num_bytes


def device_uses(own: DeviceLayers, weights: Mapping[str, int], numbers: Numbers, num_blocks: int) -> list[MemoryRow]:
    """The memory of a device with the layers `own`, for `weights` as named by `hybrid_bytes`; `num_blocks`: usable
    blocks of the cache. Work buffers are those of the widest layer of the model."""
    spec = own.spec
    tensors = used_tensors(spec)
    on_device = sum(
        size
        for name, size in weights.items()
        if computes_on_gpu(tensors[name]) and own.has_module(tensors[name].module)
    )
    cache = gpu_cache(own, numbers)
    kept = _STORED[cache.kv_type]
    cached = f"{num_blocks * numbers.block_tokens} tokens and the null block"
    if cache.window_blocks(num_blocks) is None:
        cached = f"{cached}, {cache.token_bytes} bytes per token {kept}"
    else:
        cached = f"{cached}, {kept}: {cache.per_token(num_blocks)}"
    captured = min(numbers.max_batch_size, _MAX_CAPTURED)
    rotations = rotation_bytes(own, num_blocks * numbers.block_tokens)
    work = step_bytes(spec, numbers.step_tokens, numbers.max_batch_size)
    is_divided = len(own.layers) < spec.num_layers
    slice_plans = num_slices(spec, numbers.step_tokens, may_overlap=is_divided) * _SLICE_PLAN_BYTES
    lanes = 2 if numbers.has_prefill_lane else 1
    workspaces = lanes * (SCRATCH_BYTES + _PARTIAL_BYTES + _ATTENTION_BYTES + _LIBRARY_BYTES) + slice_plans
    decode_lane = MemoryRow(
        "decode lane",
        step_bytes(spec, min(numbers.chunk_size, numbers.step_tokens), numbers.max_batch_size),
        f"work buffers of a step of {numbers.chunk_size} tokens, concurrent with the longest one",
    )
    buffers = MemoryRow("expert buffers", buffer_bytes(spec, weights), "for streaming experts in long steps")
    # For its layers' experts that are read over PCIe, and for streamed ones of all layers.
    streamed = DeviceLayers(spec, range(spec.num_layers)).expert_biases if numbers.streams_experts else 0
    num_biases = own.expert_biases + streamed
    biases = MemoryRow("biases of experts", num_biases * FLOAT_BYTES, "in addition to those in host memory")
    return [
        MemoryRow("dense weights", on_device, "packed, in the file's types; decoded during multiplication"),
        MemoryRow("KV cache", cache.num_bytes(num_blocks), cached),
        *_state_rows(cache, num_blocks),
        *device_rows(numbers.tiers, numbers.block_tokens * cache.token_bytes),
        MemoryRow("work buffers", work, f"for steps of up to {numbers.step_tokens} tokens", numbers.step_option),
        *([decode_lane] if numbers.has_prefill_lane else []),
        MemoryRow("kernel workspaces", workspaces, "for matrix products, attention and CUDA's libraries"),
        *([buffers] if numbers.streams_experts else []),
        *([biases] if num_biases else []),
        *([MemoryRow("rotations", rotations, "tables of all positions")] if own.rotation_width else []),
        MemoryRow(
            "CUDA graphs",
            _graph_pool_bytes(spec, captured) + _launch_bytes(own, captured),
            f"decode steps of 1 to {captured} requests: buffers of the largest, nodes of all",
            "max_batch_size",
        ),
        MemoryRow("allocator", _UNUSABLE_BYTES + work // 2, "rounding and fragmentation in torch; an estimate"),
        MemoryRow("CUDA", _CUDA_BYTES, "context, libraries, compiled kernels; an estimate"),
    ]


def outside_bytes(own: DeviceLayers, max_batch_size: int) -> int:
    """Bytes of `device_uses` that do not pass through torch's allocator."""
    return _CUDA_BYTES + _launch_bytes(own, min(max_batch_size, _MAX_CAPTURED))


def rotation_bytes(own: DeviceLayers, num_positions: int) -> int:
    """Bytes of the tables of rotations of attention to compressed entries, for this number of cached tokens. Other
    tables are smaller, relative to what a token keeps."""
    return min(num_positions, own.spec.context_length) * own.rotation_width * FLOAT_BYTES


def gpu_cache(own: DeviceLayers, numbers: Numbers) -> CachePlan:
    """The cache of a GPU with the layers `own`."""
    return CachePlan(own, numbers, on_gpu=True)


def _state_rows(cache: CachePlan, num_blocks: int) -> list[MemoryRow]:
    """The slots of recurrent state; none for layers without."""
    num_bytes, num_slots = cache.state_bytes(num_blocks), cache.num_state_slots(num_blocks)
    if not num_bytes:
        return []
    story = f"{num_slots} slots and the null slot, {human(num_bytes // (num_slots + 1))} each"
    return [MemoryRow("recurrent state", num_bytes, story, cache.state_option(num_blocks))]


def kv_row_bytes(spec: ModelSpec, kv_type: KvType) -> int:
    """Bytes per token in the cache, over all layers."""
    return sum(row_bytes(planes, kv_type) for planes in spec.planes)


def staging_bytes(spec: ModelSpec, weights: Mapping[str, int], step_tokens: int, num_nodes: int) -> int:
    """Host memory for activations in transit, for the experts', and for loading the largest matrix (twice)."""
    tensors, num_used = used_tensors(spec), spec.routing.num_experts_used
    largest = max(size for name, size in weights.items() if computes_on_gpu(tensors[name]))
    of_table = 0 if spec.ngram is None else 2 * spec.ngram.width
    in_transit = (5 * spec.hidden + of_table + 2 * num_used) * FLOAT_BYTES
    experts = input_bytes(spec.hidden) + hidden_bytes(num_used * spec.widest_expert)
    return step_tokens * (in_transit + experts + sums_bytes(spec.hidden, 1, num_nodes)) + 2 * largest


def _graph_pool_bytes(spec: ModelSpec, most_captured: int) -> int:
    """Bytes of the memory pool that captured steps share, including their workspaces."""
    step = step_bytes(spec, most_captured, most_captured)
    slice_bytes = SCRATCH_BYTES if most_captured >= MIN_CUBLAS_TOKENS else 0
    return step + slice_bytes + _PARTIAL_BYTES + _LIBRARY_BYTES


def _launch_bytes(own: DeviceLayers, num_graphs: int) -> int:
    of_stream = _GATE_NODES if isinstance(own.spec.stream, GatedStreamSpec) else _STREAM_NODES
    per_layer = _NODES_PER_LAYER + (of_stream if own.spec.stream is not None else 0)
    per_choice = _CHOICE_NODES + (_POOL_NODES if any(index.pool > 1 for index in own.spec.choices) else 0)
    num_nodes = len(own.layers) * per_layer + own.num_choices * per_choice
    num_nodes += own.num_compressed * _ENTRY_NODES + (_NGRAM_NODES if own.has_ngrams else 0)
    return num_graphs * num_nodes * _NODE_BYTES


def computes_on_gpu(tensor: Tensor) -> bool:
    """Whether a GPU always holds a tensor: all but the embedding, an n-gram table, and routed experts."""
    return not tensor.read_in_place and not tensor.module.endswith(_EXPERTS)
