"""The forward pass on the CPU: one call per step.

Arrays are C-contiguous; the model keeps its weights, tables and cache alive. Wrong shapes and types raise ValueError
naming the argument or weight (`layers[3].kv_a is [9, 64]; expected ...`). Shapes: T tokens, D hidden, H heads, R
requests.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from . import _F32 as F32
from . import _I32 as I32
from . import PybindObject
from . import _Plane as Plane
from .kernels import Experts, Matrix, ThreadPool

class Shape(PybindObject):
    """The model's dimensions and rules; see `route` for those of the experts. With num_stream_rows > 1, the residual
    stream of a token has several rows, which hyper-connections mix; their mixing matrix is normalised in stream_rounds
    rounds. With stream_rank > 0, gates of this rank read the rows instead."""

    def __init__(
        self,
        *,
        hidden: int,
        rms_eps: float,
        num_experts: int,
        num_experts_used: int,
        num_groups: int,
        num_groups_used: int,
        gating: str,
        group_score_top2: bool,
        normalize_weights: bool,
        weights_scale: float,
        num_stream_rows: int = ...,
        stream_rounds: int = ...,
        stream_eps: float = ...,
        stream_rank: int = ...,
    ) -> None: ...

class IndexerShape(PybindObject):
    """The sizes of an indexer, which selects top_k positions for latent attention by num_heads queries and one key of
    key_width entries per token. The first rope_dim entries are rotated, in pairs of adjacent entries or of entries
    rope_dim / 2 apart. With pool > 1, `pool` neighbouring tokens share a key and are selected together, and a token
    also attends to those of its own pool if that is incomplete. The second KV component then has key_width / pool
    entries per token, and the layer a state of 2 * key_width entries for each token of a pool but the last. With
    `averages`, which grouped attention needs, a pool's key is the mean of its tokens' keys, and the state half of
    that."""

    def __init__(
        self,
        *,
        num_heads: int,
        key_width: int,
        top_k: int,
        pairs_apart: bool,
        pool: int = ...,
        averages: bool = ...,
    ) -> None: ...

class LatentShape(PybindObject):
    """The sizes of latent attention. The cache keeps one row [kv_lora_rank + rope_dim] per token. With `index`, tokens
    attend to selected positions only. The layer's indexer selects them, or the nearest indexer below it. A layer with
    an indexer keeps index keys [key_width] per token in a second KV component. The position rotates the last rope_dim
    entries of queries and keys if `rotates`."""

    def __init__(
        self,
        *,
        num_heads: int,
        kv_lora_rank: int,
        nope_dim: int,
        rope_dim: int,
        v_dim: int,
        softmax_scale: float,
        index: IndexerShape | None,
        rotates: bool,
    ) -> None: ...

class GroupedShape(PybindObject):
    """The sizes of grouped-query attention. The cache keeps keys [num_kv_heads * head_dim] and values [num_kv_heads *
    v_dim] per token. The first rope_dim entries of a head are rotated. Norms of queries and keys, if there are any,
    span all heads of a token with norms_all_heads, else each head. A token attends to the last `window` positions up to
    its own; 0: to all. Gates, if there are any, multiply each head's output, with gates_entries each entry of it, by
    their sigmoid, with softplus_gates by their softplus. With gates_queries, the query matrix computes the gates of
    entries, too: those of a head follow its query. With `index`, tokens attend to selected positions only, and a third
    KV component has its keys."""

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        v_dim: int,
        rope_dim: int,
        softmax_scale: float,
        norms_all_heads: bool,
        window: int,
        value_scale: float,
        softplus_gates: bool,
        gates_entries: bool,
        gates_queries: bool,
        index: IndexerShape | None = ...,
    ) -> None: ...

class DeltaNetShape(PybindObject):
    """The sizes of Gated DeltaNet. A sequence keeps a state [num_heads, key_dim, v_dim], and the last conv_taps - 1
    queries, keys and values before their convolution. Head h has the key head h % num_key_heads with heads_alternate,
    else h // (num_heads / num_key_heads)."""

    def __init__(
        self,
        *,
        num_heads: int,
        num_key_heads: int,
        key_dim: int,
        v_dim: int,
        conv_taps: int,
        heads_alternate: bool,
        sigmoid_gates: bool = ...,
    ) -> None: ...

class KimiDeltaShape(PybindObject):
    """The sizes of Kimi Delta Attention. A sequence keeps a state [num_heads, head_dim, head_dim], and of queries, keys
    and values apart the last conv_taps - 1 before their convolution. The logarithm of a decay is lower_bound times a
    sigmoid, or, if that is 0, minus a softplus."""

    def __init__(self, *, num_heads: int, head_dim: int, conv_taps: int, lower_bound: float = ...) -> None: ...

class EntryIndexShape(PybindObject):
    """The sizes of the selection of top_k compressed entries, by num_heads queries and one key of key_width entries per
    compressed entry."""

    def __init__(self, *, num_heads: int, key_width: int, top_k: int) -> None: ...

class CompressedShape(PybindObject):
    """The sizes of attention to the last `window` positions, and to entries of `ratio` tokens each. The position
    rotates the last rope_dim entries of a head. With `index`, entries overlap and a token attends to selected ones. A
    sequence keeps a ring [window, head_dim] and, per column of entries and index keys, the maximum, the sum and the
    total of their softmax. The cache keeps each entry, and its index key, in the rows of its last 16 tokens or fewer,
    if it has fewer."""

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        rope_dim: int,
        window: int,
        ratio: int,
        output_groups: int,
        index: EntryIndexShape | None,
    ) -> None: ...

class HeadMatrix(PybindObject):
    """One matrix per head inside a larger one: head h owns rows from h * head_stride + row_offset."""

    def __init__(self, matrix: Matrix, head_stride: int, row_offset: int, transposed: bool) -> None: ...

class NgramShape(PybindObject):
    """The sizes of an n-gram embedding, for n-grams of 2 up to as many tokens as there are multipliers. A head has
    head_sizes rows of the table from head_offsets on; the first heads are those of n-grams of 2 tokens."""

    def __init__(
        self,
        *,
        multipliers: Sequence[int],
        head_offsets: Sequence[int],
        head_sizes: Sequence[int],
        end_id: int,
        conv_taps: int,
    ) -> None: ...

class Layer(PybindObject):
    """The tensors of a layer by role, named as in its declaration in `ballast.model.layers`. `Transformer` rejects a
    tensor that is missing, does not fit, or is not used by this kind of layer. `rope`: the index of its table."""

    def __init__(
        self,
        *,
        mixer: LatentShape | GroupedShape | DeltaNetShape | KimiDeltaShape | CompressedShape,
        tensors: Mapping[str, F32 | Matrix | HeadMatrix | Experts],
        rope: int,
        ngram: NgramShape | None = ...,
    ) -> None: ...

class Transformer(PybindObject):
    def __init__(
        self,
        pool: ThreadPool,
        *,
        isa: str,
        shape: Shape,
        embedding: Matrix,
        layers: Sequence[Layer],
        output_tensors: Mapping[str, F32 | Matrix | HeadMatrix | Experts],
        output: Matrix,
        ropes: Sequence[tuple[F32, F32, F32 | None]],
        kv_layers: Sequence[Sequence[Plane]],
        block_tokens: int,
        state_layers: Sequence[Sequence[F32]] = ...,
    ) -> None:
        """`isa`: the instruction set of the attention kernels; matrices have their own. ropes: tables of cosines and
        sines [positions, rope_dim / 2], and factors of queries [positions] or None, which latent attention applies;
        kv_layers: for each layer the KV components that its attention keeps, [slots, width]. Layers with a window may
        have fewer slots than the others. state_layers: the recurrent states of each layer, [state slots, floats]; slot
        0 is not used. output_tensors: by role, those by which the output reads the residual stream."""

    def forward(
        self,
        *,
        token_ids: I32,
        positions: I32,
        slots: I32,
        query_indptr: I32,
        kv_indptr: I32,
        kv_indices: I32,
        sampled: NDArray[np.int64],
        window_slots: I32 | None = None,
        window_indices: I32 | None = None,
        states: tuple[I32, I32, I32, I32, I32] | None = None,
        earlier_ids: I32 | None = None,
        alive: Callable[[], None],
        alive_every_s: float,
    ) -> F32:
        """Compute a step: write its rows of the cache and return logits [sampled, rows of output]. Token t goes to
        cache slot slots[t]; the other tables are those of mla_attention. `states`: states_in, states_out, save_indptr,
        save_ends and save_slots of the plan; None: states are zeros, and none is kept. earlier_ids: those of the
        plan; None: each request begins its sequence. Calls `alive` after a layer if `alive_every_s` have passed since
        its last call, or since the begin of the step. Releases the GIL; must not be called from two threads
        concurrently. Raises IndexError or ValueError naming an entry that is outside the vocabulary, table or cache;
        nothing is written then."""

    @property
    def expert_bytes_read(self) -> int:
        """Bytes of routed experts' weights, in the file's format, that all steps so far have read."""
