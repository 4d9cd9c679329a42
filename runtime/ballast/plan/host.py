"""The memory plan of a model on the CPU. Nothing is loaded.

Weights are packed while they are loaded, and counted in packed form: K-quants take up to 4 % more than in the file, and
W_UK of the joint layout becomes floats. The embedding is read from the mapped file, through page cache.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ballast._core import kernels
from ballast.host.machine import Memory
from ballast.host.sizes import human
from ballast.model.kept_weights import kept_weights
from ballast.model.kv_pool import num_kv_blocks
from ballast.model.layers.compressed import CompressedSpec, EntryIndexSpec
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.grouped import GATE, BlockIndexSpec, GroupedSpec
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.latent import IndexSpec
from ballast.model.layers.layer import AttentionMixer, Mixer, RecurrentMixer
from ballast.model.layers.stream import GatedStreamSpec
from ballast.model.packed_size import loaded_bytes
from ballast.model.spec import ModelSpec
from ballast.model.tensors import expected_tensors
from ballast.moe.device_rules import NO_RULES, Placement
from ballast.plan.kv_cache import CachePlan
from ballast.plan.kv_tiers import host_rows
from ballast.plan.memory import FLOAT_BYTES, MemoryPlan, Numbers, hidden_bytes, input_bytes, sums_bytes
from ballast.plan.rows import MemoryRow, PackedFolder, host_weight_rows, table_rows, weight_rows
from ballast.weights.gguf import GgufModel

_DELTA_COLUMNS = 32
"""Columns of a state that a thread computes together (`kDeltaColumns` of csrc/cpu)."""
_STREAM_COLUMNS = 2048
"""Columns of a hyper-connection's products that are summed together (`kTaskCols` of csrc/model)."""
_PROGRAM_BYTES = 320 << 20
"""An estimate for Python, the libraries and a vocabulary of 130,000 tokens."""


def make_plan(
    gguf: GgufModel,
    spec: ModelSpec,
    numbers: Numbers,
    memory: Memory,
    folder: PackedFolder | None = None,
    placement: Placement = NO_RULES,
) -> MemoryPlan:
    """The memory that `gguf`, a checked model, needs under `numbers` on a machine with `memory`. `folder` keeps packed
    weights. Pure."""
    loaded, tensors = loaded_bytes(gguf, spec, numbers.isa, numbers.threads_per_node), expected_tensors(spec)
    counted = {name: (name, size) for name, size in loaded.items() if tensors[name].read_in_place != "few rows"}
    weights = tuple(weight_rows(gguf, spec, _on_cpu, counted))
    kept = kept_weights(gguf, spec, numbers.isa, numbers.threads_per_node)
    num_blocks = num_kv_blocks(numbers.cache_lens, numbers.block_tokens)
    num_cached_tokens = num_blocks * numbers.block_tokens
    cache = CachePlan(spec, numbers, on_gpu=False)
    kv_bytes, state_bytes = cache.num_bytes(num_blocks), cache.state_bytes(num_blocks)
    uses = (
        *host_weight_rows(
            sum(row.num_bytes for row in weights), "packed while loading; embedding in page cache", kept, folder
        ),
        *table_rows(gguf, spec),
        MemoryRow(
            "KV cache",
            kv_bytes,
            f"{num_cached_tokens} tokens and the null block, {cache.per_token(num_blocks)}",
        ),
        *_state_rows(spec, cache, num_blocks),
        MemoryRow(
            "work buffers",
            _work_bytes(spec, numbers),
            f"for steps of up to {numbers.step_tokens} tokens",
            numbers.step_option,
        ),
        MemoryRow("tables", _table_bytes(spec, num_cached_tokens), "positions and norms"),
        *host_rows(
            numbers.tiers,
            numbers.block_tokens * cache.token_bytes,
            numbers.block_tokens,
            spec.state_bytes,
        ),
        MemoryRow("program", _PROGRAM_BYTES, "Python, libraries, vocabulary; an estimate"),
    )
    without_cache = sum(use.num_bytes for use in uses) - kv_bytes - state_bytes
    return MemoryPlan(
        model=spec.name,
        files=tuple(map(str, gguf.files)),
        weights=weights,
        uses=uses,
        memory=memory,
        placement=placement.compared(_on_cpu, "without --device cuda, the CPU computes everything"),
        max_cache_lens=cache.most_blocks(memory.available_bytes - without_cache) * numbers.block_tokens,
        numbers=numbers,
    )


def _on_cpu(_module: str) -> str:
    return "cpu"


def _state_rows(spec: ModelSpec, cache: CachePlan, num_blocks: int) -> tuple[MemoryRow, ...]:
    """The slots of recurrent state; none for a model without."""
    num_slots = cache.num_state_slots(num_blocks)
    if num_slots == 0:
        return ()
    story = f"{num_slots} slots and the null slot, {human(spec.state_bytes)} each"
    return (MemoryRow("recurrent state", cache.state_bytes(num_blocks), story, cache.state_option(num_blocks)),)


class _Attention(NamedTuple):
    """Sizes of a layer's attention in a step."""

    token_floats: int
    """Floats per token between two operations."""
    num_kv_heads: int
    value_dim: int
    """Width of a head's average while it is computed."""
    widest_input: int
    """Widest input of its products, apart from inputs as wide as the model."""


def _attention_of(mixer: Mixer) -> _Attention:
    heads = mixer.num_heads
    if isinstance(mixer, DeltaNetSpec):
        floats = 3 * mixer.channels + 3 * mixer.value_width + 2 * heads
        return _Attention(floats, 1, 0, mixer.value_width)
    if isinstance(mixer, KimiDeltaSpec):
        return _Attention(7 * mixer.width + heads + mixer.head_dim, 1, 0, mixer.width)
    if isinstance(mixer, GroupedSpec):
        values = heads * mixer.v_dim
        gates = mixer.num_gates if GATE in mixer.options else 0
        gates += mixer.query_rows + values if mixer.gates_queries else 0
        floats = heads * mixer.head_dim + mixer.kv_width + values + gates + _index_floats(mixer.index)
        return _Attention(floats, mixer.num_kv_heads, mixer.v_dim, values)
    if isinstance(mixer, CompressedSpec):
        return _compressed(mixer)
    a_head = 2 * mixer.nope_dim + mixer.rope.dim + 2 * mixer.kv_lora_rank + mixer.v_dim
    floats = (mixer.q_lora_rank or 0) + mixer.latent_dim + heads * a_head
    floats += _index_floats(mixer.index)
    widest = heads * max(mixer.kv_lora_rank, mixer.nope_dim, mixer.v_dim)
    return _Attention(floats, 1, mixer.kv_lora_rank, widest)


def _compressed(mixer: CompressedSpec) -> _Attention:
    """Queries, key and result of attention, what tokens add to entries, an entry, the groups' outputs, and the
    selection."""
    heads, outputs, index = mixer.num_heads * mixer.head_dim, mixer.output_groups * mixer.output_rank, mixer.index
    floats = mixer.q_lora_rank + 2 * heads + mixer.head_dim + 2 * max(mixer.entry_columns, mixer.index_columns)
    floats += outputs + 1 + (max(mixer.head_dim, index.key_dim if index else 0) if mixer.ratio else 0)
    if index is not None:
        floats += index.num_heads * (index.key_dim + 1) + index.top_k + 2
    return _Attention(floats, 1, mixer.head_dim, max(heads, outputs, mixer.q_lora_rank))


def _index_floats(index: IndexSpec | BlockIndexSpec | None) -> int:
    """Floats per token of an indexer."""
    if index is None:
        return 0
    floats = index.num_heads * (index.key_dim + 1) + index.key_dim + index.most_chosen + 1
    if index.pool > 1:  # gates, pooled keys, and the pools that are chosen and that are visible
        floats += 2 * index.key_dim + index.top_k // index.pool + 1
    return floats


def _work_bytes(spec: ModelSpec, numbers: Numbers) -> int:
    """A step's activations (`StepMemory`, `ResidualStream`, `AttentionMemory` of csrc/model) and their packed form in
    products, the states of attention, and the logits of a full batch."""
    attention_floats = _attention_floats(spec)
    step = 3 * spec.hidden + _stream_floats(spec) + attention_floats + spec.routing.num_experts + 2
    logits = numbers.max_batch_size * spec.vocab_size
    num_positions = min(spec.context_length, numbers.cache_lens)
    states = max(_state_bytes(mixer, numbers, num_positions) for mixer in spec.mixers)
    a_token = step * FLOAT_BYTES + _scratch_bytes(spec, len(numbers.threads_per_node))
    return numbers.step_tokens * a_token + 4 * logits * FLOAT_BYTES + states


def _stream_floats(spec: ModelSpec) -> int:
    """Floats per token of the residual stream, with the weights of hyper-connections and their partial sums."""
    if spec.stream is None:
        return spec.hidden
    width = spec.stream.num_rows * spec.hidden
    if isinstance(spec.stream, GatedStreamSpec):  # rows, normed rows, and gates
        return 3 * width + spec.stream.rank + spec.stream.num_rows
    return width + spec.stream.num_weights * (1 + -(-width // _STREAM_COLUMNS))


def _attention_floats(spec: ModelSpec) -> int:
    """Floats per token between the operations of attention, and of the n-gram embedding, which shares
    their buffers. Recurrent layers have buffers of their own."""
    ngram = 0 if spec.ngram is None or spec.stream is None else 3 * spec.stream.num_rows * spec.hidden
    recurrent = {isinstance(mixer, RecurrentMixer) for mixer in spec.mixers}
    return sum(
        max(
            ngram if kind else 0,
            *(_attention_of(mixer).token_floats for mixer in spec.mixers if isinstance(mixer, RecurrentMixer) == kind),
        )
        for kind in recurrent
    )


def _state_bytes(mixer: Mixer, numbers: Numbers, num_positions: int) -> int:
    """Memory for the states of attention and of the selection of positions."""
    if isinstance(mixer, RecurrentMixer):
        rows = mixer.key_dim if isinstance(mixer, DeltaNetSpec) else mixer.head_dim
        return sum(numbers.threads_per_node) * rows * _DELTA_COLUMNS * FLOAT_BYTES
    attention = _attention_of(mixer)
    num_threads = sum(numbers.threads_per_node)
    states = kernels.attention_states_nbytes(
        num_heads=mixer.num_heads,
        num_kv_heads=attention.num_kv_heads,
        value_dim=attention.value_dim,
        num_tokens=numbers.step_tokens,
        num_positions=mixer.most_read(num_positions),
        num_threads=num_threads,
    )
    choice = _choice_of(mixer)
    if choice is None:
        return states
    index, shared_by = choice
    return states + kernels.position_choice_nbytes(
        num_heads=index.num_heads,
        key_width=index.key_dim,
        num_tokens=numbers.step_tokens,
        num_positions=num_positions // shared_by,
        num_threads=num_threads,
    )


def _choice_of(mixer: AttentionMixer) -> tuple[IndexSpec | BlockIndexSpec | EntryIndexSpec, int] | None:
    """The indexer of positions or entries, and the number of tokens that share a key; None if nothing is selected."""
    if isinstance(mixer, CompressedSpec):
        return None if mixer.index is None else (mixer.index, mixer.ratio)
    return None if mixer.index is None else (mixer.index, mixer.index.pool)


def _scratch_bytes(spec: ModelSpec, num_nodes: int) -> int:
    """Scratch for the widest input, and for experts computed together: routed and shared ones, or a dense layer's."""
    rows = 1 if spec.stream is None else spec.stream.num_rows
    widest = max(spec.hidden * rows, *(_attention_of(mixer).widest_input for mixer in spec.mixers))
    routed = max(spec.widest_dense, spec.routing.num_experts_used * spec.widest_expert)
    experts = hidden_bytes(routed + spec.widest_shared)
    return input_bytes(widest) + experts + sums_bytes(spec.hidden, num_calls=2, num_nodes=num_nodes)


def _table_bytes(spec: ModelSpec, num_cached_tokens: int) -> int:
    widths = sum(rope.dim + (rope.query_scale is not None) for rope in spec.ropes)
    positions = min(spec.context_length, num_cached_tokens) * widths
    norms = sum(prod(tensor.shape) for tensor in expected_tensors(spec).values() if not tensor.is_packed)
    return (positions + norms) * FLOAT_BYTES
