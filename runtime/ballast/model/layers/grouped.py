"""Grouped-query attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ballast.model.layers.plane import INDEX_KEYS, Plane, State
from ballast.model.layers.positions import RopeSpec
from ballast.model.layers.tensor import RowSlice, Tensor, bias, matrix, norm, vector

QKV_BIAS = "qkv_bias"
"""Queries, keys and values have biases."""
QK_NORM = "qk_norm"
"""Queries and keys are normed before they are rotated."""
OUTPUT_BIAS = "output_bias"
"""The output has a bias."""
SINKS = "sinks"
"""Each head of queries has a sink: a score of one further position, whose value is 0."""
GATE = "gate"
"""The output of each query head, or each entry of it, is multiplied by a function of a linear layer of the layer's
input."""


@dataclass(frozen=True, slots=True)
class BlockIndexSpec:
    """Selects blocks of positions (Qwen3.8-Flash-Next): a block has the mean of its tokens' keys, normed and rotated by
    the position of its first token."""

    has_weights: ClassVar[bool] = False
    """See `IndexSpec`."""
    num_heads: int
    key_dim: int
    """Width of a head's query and of a token's one key, whose first rope.dim entries are rotated."""
    top_k: int
    """Positions that are selected for a token, at most, in addition to those of its own block if that is incomplete."""
    pool: int
    """Positions of a block, counted from the first one."""

    @property
    def has_indexer(self) -> bool:
        """Every layer with blocks has an indexer of its own."""
        return True

    @property
    def most_chosen(self) -> int:
        """Positions that a token attends to, at most, with those of its own block."""
        return self.top_k + self.pool - 1

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        queries, module = self.num_heads * self.key_dim, "self_attn.indexer"
        return (
            matrix("index_query", "indexer.q_proj", (queries, hidden), f"{module}.q_proj"),
            matrix("index_key", "indexer.k_proj", (self.key_dim, hidden), f"{module}.k_proj"),
            norm("index_query_norm", "indexer.q_norm", self.key_dim, f"{module}.q_layernorm"),
            norm("index_key_norm", "indexer.k_norm", self.key_dim, f"{module}.k_layernorm"),
        )


@dataclass(frozen=True, slots=True)
class GroupedSpec:
    """Grouped-query attention (arXiv 2305.13245): equal groups of query heads share a head of keys and values."""

    num_heads: int
    """Of queries."""
    num_kv_heads: int
    head_dim: int
    """Width of a head's query and key."""
    v_dim: int
    rope: RopeSpec
    """Rotates the first entries of a head, i together with i + rope.dim / 2."""
    options: frozenset[str] = frozenset()
    """Options of the declaration that the layer has."""
    window: int | None = None
    """Positions that a token sees, its own the last. None: all."""
    norms_all_heads: bool = False
    """Whether QK_NORM takes the mean over all heads of a token's queries, and over those of its keys, else over each
    head."""
    value_scale: float = 1.0
    """Factor of values."""
    gates_queries: bool = False
    """Whether the matrix of queries gives each head's query and then its gate, whose sigmoid multiplies what the head
    gives."""
    fuses_qkv: bool = False
    """Whether the matrices of queries, keys and values are one tensor, in this order."""
    gate: Literal["sigmoid", "softplus"] = "sigmoid"
    """The function of GATE."""
    index: BlockIndexSpec | None = None
    """None: every token attends to all positions that it sees."""
    gates_entries: bool = False
    """Whether GATE has a gate for each entry of a head's output, else for each head."""

    @property
    def query_dim(self) -> int:
        """Numbers of a head's query."""
        return self.head_dim

    @property
    def query_rows(self) -> int:
        """Rows of the matrix of queries."""
        return self.num_heads * self.head_dim * (2 if self.gates_queries else 1)

    @property
    def num_gates(self) -> int:
        """Of a token, in a layer with GATE."""
        return self.num_heads * (self.v_dim if self.gates_entries else 1)

    @property
    def kv_width(self) -> int:
        """Numbers per token in both planes together."""
        return self.num_kv_heads * (self.head_dim + self.v_dim)

    def most_read(self, num_positions: int) -> int:
        """Maximum number of rows that a token reads in a sequence of `num_positions`. A window does not lower it,
        because tokens with different windows are computed together."""
        return num_positions if self.index is None else min(num_positions, self.index.most_chosen)

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The planes of the layer's cache."""
        index = () if self.index is None else (Plane(INDEX_KEYS, self.index.key_dim // self.index.pool),)
        return (
            _of_heads("keys", self.num_kv_heads, self.head_dim, self.window),
            _of_heads("values", self.num_kv_heads, self.v_dim, self.window),
            *index,
        )

    @property
    def states(self) -> tuple[State, ...]:
        """What the layer keeps of a sequence: the index keys of its last, incomplete block."""
        index = self.index
        return () if index is None else (State("incomplete block", (index.pool - 1) * index.key_dim),)

    @property
    def modules(self) -> dict[str, tuple[str, ...]]:
        """Modules without tensors of their own, with their classes."""
        indexer = {} if self.index is None else {"self_attn.indexer": ("{family}QSAIndexer",)}
        return {"self_attn": ("{family}Attention",), **indexer}

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        own = tuple(each for each in self.declared(hidden) if each.option is None or each.option in self.options)
        return own if self.index is None else own + self.index.tensors(hidden)

    def declared(self, hidden: int) -> tuple[Tensor, ...]:
        """The tensors of all options. A file has an option if it has the first tensor of that option."""
        queries = self.query_rows
        keys, values = self.num_kv_heads * self.head_dim, self.num_kv_heads * self.v_dim
        biases = {"option": QKV_BIAS}
        if self.fuses_qkv:
            slices = (RowSlice("query", queries), RowSlice("key", keys), RowSlice("value", values))
            num_rows = queries + keys + values
            return (
                matrix("qkv", "attn_qkv", (num_rows, hidden), "self_attn.qkv_proj", slices=slices),
                *self._after_products(hidden),
            )
        return (
            matrix("query", "attn_q", (queries, hidden), "self_attn.q_proj"),
            bias("query_bias", "attn_q", queries, "self_attn.q_proj", **biases),
            matrix("key", "attn_k", (keys, hidden), "self_attn.k_proj"),
            bias("key_bias", "attn_k", keys, "self_attn.k_proj", **biases),
            matrix("value", "attn_v", (values, hidden), "self_attn.v_proj"),
            bias("value_bias", "attn_v", values, "self_attn.v_proj", **biases),
            *self._after_products(hidden),
        )

    def _after_products(self, hidden: int) -> tuple[Tensor, ...]:
        """All but the matrices of queries, keys and values and their biases."""
        queries, keys, norms = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, {"option": QK_NORM}
        query_norm, key_norm = (queries, keys) if self.norms_all_heads else (self.head_dim, self.head_dim)
        return (
            norm("query_norm", "attn_q_norm", query_norm, "self_attn.q_norm", **norms),
            norm("key_norm", "attn_k_norm", key_norm, "self_attn.k_norm", **norms),
            vector("sinks", "attn_sinks", self.num_heads, "self_attn.sinks", option=SINKS),
            matrix("head_gate", "attn_gate", (self.num_gates, hidden), "self_attn.g_proj", option=GATE),
            matrix("output", "attn_output", (hidden, self.num_heads * self.v_dim), "self_attn.o_proj"),
            bias("output_bias", "attn_output", hidden, "self_attn.o_proj", option=OUTPUT_BIAS),
        )


def _of_heads(name: str, num_heads: int, width: int, window: int | None) -> Plane:
    """The plane of all heads. Each head of a token has a scale of its own in a cache of 8 bits: it needs no
    calibration, and a token's row never depends on others."""
    return Plane(name, num_heads * width, window, num_short=num_heads * width, scale_width=width)
