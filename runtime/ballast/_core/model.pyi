"""The forward pass on the CPU: one call a step.

Arrays are C-contiguous; weights, tables and cache stay alive as long as the model that they were given to. Wrong shapes
and types raise ValueError naming the argument or weight (`layers[3].attention.kv_a is [9, 64]; expected ...`).
Shapes: T tokens, D hidden, H heads, R requests.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from . import _F32 as F32
from . import _I32 as I32
from . import PybindObject
from .kernels import Experts, Matrix, ThreadPool

class Shape(PybindObject):
    """The model's dimensions and rules; `route` explains those of the experts."""

    def __init__(
        self,
        *,
        hidden: int,
        rope_dim: int,
        rms_eps: float,
        num_experts: int,
        num_experts_used: int,
        num_groups: int,
        num_groups_used: int,
        sigmoid: bool,
        group_score_top2: bool,
        normalize_weights: bool,
        weights_scale: float,
    ) -> None: ...

class LatentShape(PybindObject):
    """Of latent attention, whose layers keep one row [kv_lora_rank + rope_dim] of each token."""

    def __init__(
        self,
        *,
        num_heads: int,
        kv_lora_rank: int,
        nope_dim: int,
        rope_dim: int,
        v_dim: int,
        softmax_scale: float,
    ) -> None: ...

class GroupedShape(PybindObject):
    """Of grouped-query attention, whose layers keep keys [num_kv_heads * head_dim] and values [num_kv_heads * v_dim] of
    each token. The first rope_dim entries of a head are rotated."""

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        v_dim: int,
        rope_dim: int,
        softmax_scale: float,
    ) -> None: ...

class HeadMatrix(PybindObject):
    """One matrix per head inside a larger one: head h owns rows from h * head_stride + row_offset."""

    def __init__(self, matrix: Matrix, head_stride: int, row_offset: int, transposed: bool) -> None: ...

class IndexerShape(PybindObject):
    """Of what chooses the positions that latent attention sees: top_k of them, by num_heads queries and one key a token
    of key_width entries, of which the first rope_dim are rotated. Pairs of the rotation are neighbours, or rope_dim / 2
    apart."""

    def __init__(self, *, num_heads: int, key_width: int, top_k: int, pairs_apart: bool) -> None: ...

class Indexer(PybindObject):
    """A layer's own weights for it: query_up [index heads * key_width, q_lora_rank], key [key_width, D], key_norm and
    key_shift [key_width] of a layer norm, head_weights [index heads, D]."""

    def __init__(
        self, *, query_up: Matrix, key: Matrix, key_norm: F32, key_shift: F32, head_weights: Matrix
    ) -> None: ...

class Attention(PybindObject):
    """A layer's attention."""

    @staticmethod
    def latent(
        *,
        shape: LatentShape,
        query_down: Matrix | None,
        query_norm: F32 | None,
        query_up: Matrix,
        kv_a: Matrix,
        kv_a_norm: F32,
        k_up: HeadMatrix,
        v_up: HeadMatrix,
        output: Matrix,
        sparse: IndexerShape | None,
        indexer: Indexer | None,
    ) -> Attention:
        """k_up: per head [kv_lora_rank, nope], or transposed; v_up: per head [v, kv_lora_rank]. query_down
        [q_lora_rank, D] and query_norm are both None where queries go straight. With `sparse` tokens attend to chosen
        positions alone: what `indexer` chooses, else the one of the nearest layer below. Its layer keeps index keys
        [key_width] of each token in a second plane."""

    @staticmethod
    def grouped(
        *,
        shape: GroupedShape,
        query: Matrix,
        key: Matrix,
        value: Matrix,
        query_bias: F32 | None,
        key_bias: F32 | None,
        value_bias: F32 | None,
        query_norm: F32 | None,
        key_norm: F32 | None,
        output: Matrix,
    ) -> Attention:
        """query [H * head_dim, D]; key, value [kv heads * their width, D]; biases as long as these have rows; norms
        [head_dim], of each head before its rotation."""

class Layer(PybindObject):
    """`mlp` is the feed-forward of every token, as one expert; `router`, `bias` and `experts` belong to routed ones."""

    def __init__(
        self,
        *,
        attention_norm: F32,
        attention: Attention,
        ffn_norm: F32,
        mlp: Experts | None,
        router: Matrix | None,
        bias: F32 | None,
        experts: Experts | None,
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
        output_norm: F32,
        output: Matrix,
        rope_cos: F32,
        rope_sin: F32,
        kv_layers: Sequence[Sequence[F32]],
        block_tokens: int,
    ) -> None:
        """`isa` picks the kernels of attention; matrices bring their own. rope tables [positions, rope_dim / 2];
        kv_layers, of each layer the planes that its attention keeps, [slots, width]."""

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
        alive: Callable[[], None],
        alive_every_s: float,
    ) -> F32:
        """Write the step's rows of the cache; logits [sampled, rows of output]. Token t goes to cache slot slots[t];
        the other tables are those of mla_attention. Calls `alive` after a layer when its last call, or the step's
        begin, is `alive_every_s` ago. Releases the GIL; not to be called from two threads at once.
        IndexError and ValueError name the entry that leads outside vocabulary, table or cache; nothing is written
        then."""

    @property
    def expert_bytes_read(self) -> int:
        """Bytes of routed experts' weights, as the file stores them, that all steps so far have read."""
