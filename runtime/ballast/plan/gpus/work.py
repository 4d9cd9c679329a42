"""Most bytes that a step uses at the same time on a GPU: activations of all its tokens, and the wider activations of
the slices in which it is computed. Pure arithmetic."""

from __future__ import annotations

from ballast.model.hybrid.experts.products.pair_sizes import DECODED_BYTES, HIDDEN_BYTES, SUMS, is_faster
from ballast.model.hybrid.layers.ngram_sizes import GATED_AT_ONCE
from ballast.model.hybrid.panels.product_sizes import SCRATCH_BYTES
from ballast.model.hybrid.recurrent.sizes import CHUNK_TOKENS
from ballast.model.hybrid.sparse.sizes import most_kept_bytes, most_score_bytes
from ballast.model.hybrid.steps.slices import PRODUCT_TOKENS, SliceSizes, overlap_tokens, slice_sizes_of
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.grouped import GATE, BlockIndexSpec, GroupedSpec
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.latent import IndexSpec, LatentSpec
from ballast.model.layers.layer import AttentionMixer, DeviceAttention, RecurrentMixer
from ballast.model.layers.stream import GatedStreamSpec
from ballast.model.spec import ModelSpec
from ballast.plan.memory import FLOAT_BYTES

_TERM_BYTES = 4
"""Bytes of an activation in the two terms for multiplication with floats; one number in half precision takes less."""
_HALF_BYTES = 2
_POSITION_BYTES = 4
_ROWS_OF_TOKENS = 2 + 2 * SUMS
"""Rows as wide as the model per token of a step: the residual stream, its norm, and sums for each of two groups of
experts."""
_ATTENTION_TMP_BYTES = 32 << 20
"""Temporary memory of flashinfer for a single request."""


def step_bytes(spec: ModelSpec, num_tokens: int, max_batch_size: int) -> int:
    """A step of `num_tokens` tokens of any number of requests, including experts and logits."""
    widest = max(
        *(_attention_bytes(spec, mixer, num_tokens, max_batch_size) for mixer in spec.attentions),
        *(_recurrent_bytes(spec, mixer, num_tokens) for mixer in spec.mixers if isinstance(mixer, RecurrentMixer)),
        _mlp_bytes(spec, min(num_tokens, PRODUCT_TOKENS)),
        _expert_bytes(spec, num_tokens),
        _gate_bytes(spec, min(num_tokens, PRODUCT_TOKENS)),
        _ngram_bytes(spec, num_tokens),
    )
    logits = max_batch_size * 2 * spec.vocab_size
    rows = (num_tokens * (_ROWS_OF_TOKENS * spec.hidden + _stream_floats(spec)) + logits) * FLOAT_BYTES
    return rows + _shared_choice_bytes(spec, num_tokens) + widest


def _stream_floats(spec: ModelSpec) -> int:
    """Floats of a token's several rows of the residual stream, in addition to its embedding, of the weights of two
    blocks with the products that give one's, and of its rows of an n-gram table."""
    stream = spec.stream
    if stream is None:
        return 0
    num_weights = stream.num_rows if isinstance(stream, GatedStreamSpec) else stream.num_weights
    of_table = 0 if spec.ngram is None else spec.ngram.width
    return stream.num_rows * spec.hidden + 3 * num_weights + of_table


def _gate_bytes(spec: ModelSpec, num_tokens: int) -> int:
    """The gates of a stream: normed rows, and the terms of the products' input or gates, with the product in
    progress."""
    stream = spec.stream
    if not isinstance(stream, GatedStreamSpec):
        return 0
    width = stream.num_rows * spec.hidden
    first = width * _TERM_BYTES + _product_floats(width, stream.rank) * FLOAT_BYTES
    second = (width + _product_floats(stream.rank, width)) * FLOAT_BYTES
    return num_tokens * ((width + 3 * stream.rank) * FLOAT_BYTES + max(first, second))


def _ngram_bytes(spec: ModelSpec, num_tokens: int) -> int:
    """The n-gram embedding in a slice: the convolution's input and output; or its input, and for the
    tokens that are gated together keys, their products in progress, normed rows and gated values."""
    if spec.ngram is None or spec.stream is None:
        return 0
    width = spec.stream.num_rows * spec.hidden
    in_slices = _tokens_in_slices(spec, num_tokens)
    gated = min(in_slices, GATED_AT_ONCE) * (4 * width + spec.hidden)
    return (in_slices * width + max(in_slices * width, gated)) * FLOAT_BYTES


def _shared_choice_bytes(spec: ModelSpec, num_tokens: int) -> int:
    """The selected positions of a whole step, kept for later layers that share them, so also while experts compute."""
    if not _is_choice_shared(spec):
        return 0
    return num_tokens * max(index.most_chosen for index in spec.choices) * _POSITION_BYTES


def _is_choice_shared(spec: ModelSpec) -> bool:
    return not all(index.has_indexer for index in spec.choices)


def num_slices(spec: ModelSpec, num_tokens: int, *, may_overlap: bool) -> int:
    """Most planned slices of a step; in latent attention, those computed in the latent space. `may_overlap`: whether
    several devices may compute different ones at the same time."""
    sizes = [_slice_sizes(spec, mixer) for mixer in spec.attentions if isinstance(mixer, DeviceAttention)]
    if may_overlap:
        sizes = [own.within(overlap_tokens(spec.routing)) for own in sizes]
    return max((_num_slices(own, num_tokens) for own in sizes), default=0)


def _slice_sizes(spec: ModelSpec, mixer: AttentionMixer) -> SliceSizes:
    return slice_sizes_of(mixer, has_states=spec.state_bytes > 0)


def _num_slices(sizes: SliceSizes, num_tokens: int) -> int:
    if num_tokens <= sizes.tokens:
        return 0
    return -(-num_tokens // sizes.tokens) + num_tokens // (sizes.long_from or num_tokens + 1)


def _attention_bytes(spec: ModelSpec, mixer: AttentionMixer, num_tokens: int, max_batch_size: int) -> int:
    sizes = _slice_sizes(spec, mixer)
    in_slices = min(num_tokens, sizes.tokens)
    if isinstance(mixer, CompressedSpec):
        return _compressed_bytes(spec, mixer, in_slices, max_batch_size)
    if isinstance(mixer, GroupedSpec):
        attending = _grouped_bytes(spec, mixer, in_slices)
        if mixer.index is None:
            return attending
        chosen = in_slices * mixer.index.most_chosen * _POSITION_BYTES
        return chosen + max(attending, _choice_bytes(spec, mixer, mixer.index, in_slices))
    if mixer.index is not None:
        chosen = 0 if _is_choice_shared(spec) else in_slices * mixer.index.most_chosen * _POSITION_BYTES
        rounded = in_slices * mixer.num_heads * mixer.latent_dim * _HALF_BYTES
        choice = _choice_bytes(spec, mixer, mixer.index, in_slices)
        return chosen + max(_latent_bytes(spec, mixer, in_slices) + rounded, choice)
    short = _latent_bytes(spec, mixer, in_slices)
    if sizes.long_from is None or num_tokens < sizes.long_from:
        return short
    return max(short, _long_bytes(spec, mixer, min(num_tokens, sizes.long_tokens)))


def _grouped_bytes(spec: ModelSpec, grouped: GroupedSpec, num_tokens: int) -> int:
    """Grouped-query attention: queries, keys and values, those of an indexer, rotated queries (also in half precision),
    the output of attention, rounded and as floats, and gates; before these the terms of the products' input, after them
    those of the output."""
    heads, values = grouped.num_heads * grouped.head_dim, grouped.num_heads * grouped.v_dim
    floats = 2 * heads + grouped.kv_width + values
    if grouped.gates_queries:  # a gate per entry, and its function
        floats += 2 * heads
    if grouped.norms_all_heads:  # queries and keys are copied
        floats += heads + grouped.num_kv_heads * grouped.head_dim
    if GATE in grouped.options:  # and their function
        floats += 2 * grouped.num_gates
    if grouped.index is not None:
        floats += (grouped.index.num_heads + 1) * grouped.index.key_dim
    halves = heads + values
    terms = max(spec.hidden, values) * _TERM_BYTES
    return num_tokens * (floats * FLOAT_BYTES + halves * _HALF_BYTES + terms)


def _compressed_bytes(spec: ModelSpec, mixer: CompressedSpec, num_tokens: int, max_batch_size: int) -> int:
    """Attention to windows and compressed entries: what tokens add to these, with the selection; then queries, also in
    half precision, or the average of each head, with the keys of windows; then the terms of these averages, and what
    their groups give."""
    heads, width, rank = mixer.num_heads * mixer.head_dim, mixer.head_dim, mixer.q_lora_rank
    inputs = (2 * rank + 2 * width + 2 * mixer.entry_columns + mixer.index_columns) * FLOAT_BYTES
    attended = heads * (FLOAT_BYTES + _HALF_BYTES) + (rank + width) * FLOAT_BYTES + width * _HALF_BYTES
    last = heads * (FLOAT_BYTES + _TERM_BYTES) + mixer.output_groups * mixer.output_rank * FLOAT_BYTES
    earlier = min(num_tokens, max_batch_size) * mixer.window * width * _HALF_BYTES
    if mixer.index is None:
        return earlier + num_tokens * max(inputs + spec.hidden * _TERM_BYTES, attended, last)
    index, num_keys = mixer.index, spec.context_length // mixer.ratio
    chosen = index.top_k * _POSITION_BYTES
    queries = index.num_heads * index.key_dim * (FLOAT_BYTES + _HALF_BYTES)
    of_index = queries + (2 * mixer.index_columns + index.num_heads) * FLOAT_BYTES + spec.hidden * _TERM_BYTES
    selecting = num_tokens * (inputs + of_index) + most_score_bytes(num_tokens, num_keys)
    selecting += most_kept_bytes(num_tokens, num_keys, index.top_k)
    return num_tokens * chosen + max(selecting, earlier + num_tokens * max(attended, last))


def _recurrent_bytes(spec: ModelSpec, mixer: RecurrentMixer, num_tokens: int) -> int:
    """A recurrent layer in slices like those of the model's attention."""
    in_slices = _tokens_in_slices(spec, num_tokens)
    if isinstance(mixer, KimiDeltaSpec):
        return _kimi_delta_bytes(spec, mixer, in_slices)
    return _delta_net_bytes(spec, mixer, in_slices)


def _tokens_in_slices(spec: ModelSpec, num_tokens: int) -> int:
    """Most tokens of a slice of layers without attention."""
    slices = [_slice_sizes(spec, attention) for attention in spec.attentions]
    if all(own.long_from is not None and num_tokens >= own.long_from for own in slices):
        return min(num_tokens, *(own.long_tokens for own in slices))
    return min(num_tokens, *(own.tokens for own in slices))


def _kimi_delta_bytes(spec: ModelSpec, mixer: KimiDeltaSpec, num_tokens: int) -> int:
    """Kimi Delta Attention: queries, keys and values after the convolution, and as many products before it, or decays
    with their products and what heads give; two rows of each chunk's matrices, betas with their products, products of
    low rank, and the decays of chunks, which may have one token; before these the terms of the products' input, after
    them those of the output."""
    floats = 7 * mixer.width + (2 * CHUNK_TOKENS + 2) * mixer.num_heads + 2 * mixer.head_dim
    return num_tokens * (floats * FLOAT_BYTES + max(spec.hidden, mixer.width) * _TERM_BYTES)


def _delta_net_bytes(spec: ModelSpec, mixer: DeltaNetSpec, num_tokens: int) -> int:
    """Gated DeltaNet: the products, those that pass the convolution once more, two rows of each chunk's matrices,
    decays and betas with their products, and what heads give; before these the terms of the products' input, after
    them those of the output."""
    products = mixer.channels + mixer.value_width
    floats = products + mixer.channels + mixer.value_width + (2 * CHUNK_TOKENS + 4) * mixer.num_heads
    if mixer.product_layout == "grouped":  # products are copied
        floats += products
    return num_tokens * (floats * FLOAT_BYTES + max(spec.hidden, mixer.value_width) * _TERM_BYTES)


def _latent_bytes(spec: ModelSpec, mixer: LatentSpec, num_tokens: int) -> int:
    """Attention in the latent space: queries, their two parts, both forms of them in the latent space, the output of
    attention."""
    head = mixer.query_dim
    floats = mixer.num_heads * (3 * head + 2 * mixer.kv_lora_rank + 2 * mixer.latent_dim + mixer.v_dim)
    terms = max(spec.hidden, mixer.num_heads * mixer.v_dim) * _TERM_BYTES
    return num_tokens * (floats * FLOAT_BYTES + terms)


def _choice_bytes(spec: ModelSpec, mixer: DeviceAttention, index: IndexSpec | BlockIndexSpec, num_tokens: int) -> int:
    """An indexer's memory: the products of tokens, twice as floats and once as the cache keeps them, and the scores of
    the tokens that are scored together, with the state of the selection; with pools, which have scores, also gates and
    the selected pools."""
    products = index.num_heads * (index.key_dim + 1) + index.key_dim
    if isinstance(mixer, LatentSpec):
        products += (mixer.q_lora_rank or 0) + mixer.latent_dim
    else:
        products += mixer.query_rows + mixer.kv_width
    own = products * 2 * FLOAT_BYTES + index.num_heads * index.key_dim * _HALF_BYTES + spec.hidden * _TERM_BYTES
    num_keys, top_pools = spec.context_length // index.pool, index.top_k // index.pool
    if index.pool > 1:
        own += index.key_dim * FLOAT_BYTES + top_pools * _POSITION_BYTES
    scores = most_score_bytes(num_tokens, num_keys)
    return num_tokens * own + scores + most_kept_bytes(num_tokens, num_keys, top_pools)


def _long_bytes(spec: ModelSpec, mixer: LatentSpec, num_tokens: int) -> int:
    """Attention of one request outside the latent space: all queries, and the widest of three phases: before the
    averages, with them, and after them. If its heads are divided among devices, each of them needs less."""
    heads, head, values = mixer.num_heads, mixer.query_dim, mixer.num_heads * mixer.v_dim
    products = min(num_tokens, PRODUCT_TOKENS)
    query = num_tokens * heads * head * _HALF_BYTES
    rank = mixer.q_lora_rank or 0
    first = products * (2 * heads * head + 2 * rank + mixer.latent_dim) * FLOAT_BYTES
    first += products * max(spec.hidden, rank) * _TERM_BYTES
    # Two terms of both matrices, and the source of one of them.
    matrices = mixer.kv_lora_rank * heads * (2 * (mixer.nope_dim + mixer.v_dim) * _HALF_BYTES + 2 * 256 * FLOAT_BYTES)
    # Per chunk: keys and values, keys again in transit, latents twice, averages; and the averages of all chunks.
    chunk = num_tokens * (heads * (head + mixer.nope_dim) + values + 3 * mixer.latent_dim + values) * _HALF_BYTES
    attended = num_tokens * values * FLOAT_BYTES
    last = products * (values * _TERM_BYTES + _product_floats(values, spec.hidden) * FLOAT_BYTES)
    return max(query + first, query + matrices + chunk + attended + _ATTENTION_TMP_BYTES, attended + last)


def _mlp_bytes(spec: ModelSpec, num_tokens: int) -> int:
    """A dense layer's network or the shared experts: gate, up, their product, and its terms for multiplication."""
    width = max(spec.widest_dense, spec.widest_shared)
    floats = 3 * width + max(_product_floats(spec.hidden, 2 * width), _product_floats(width, spec.hidden))
    return num_tokens * (floats * FLOAT_BYTES + max(spec.hidden, width) * _TERM_BYTES)


def _expert_bytes(spec: ModelSpec, num_tokens: int) -> int:
    """The routed experts' hidden values, as floats and in half precision, and their results by pair; or, if experts are
    decoded to memory, the decoded weights and the hidden values of a few experts at a time."""
    routing, width = spec.routing, spec.widest_expert
    given = num_tokens * spec.hidden * _HALF_BYTES
    few = min(num_tokens, PRODUCT_TOKENS)
    num_hidden = 3 if spec.has_other_units else 2  # gate and up are kept until their unit is computed
    by_pair = few * routing.num_experts_used * (num_hidden * width + spec.hidden) * FLOAT_BYTES
    if not is_faster(num_tokens, routing.num_experts_used, routing.num_experts):
        return by_pair + given
    decoded = max(DECODED_BYTES, 2 * width * spec.hidden * _HALF_BYTES)
    hidden = max(HIDDEN_BYTES, num_tokens * width * _HALF_BYTES)
    # Experts of floats are never decoded.
    return given + max(decoded + hidden, by_pair)


def _product_floats(cols: int, rows: int) -> int:
    """Floats per token of a product in progress, for the rows of a quantised matrix that are decoded at a time."""
    return min(rows, SCRATCH_BYTES // max(1, cols * _HALF_BYTES))
