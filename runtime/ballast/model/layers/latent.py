"""Multi-head latent attention, to all positions or to positions that an indexer selects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ballast.model.layers.plane import INDEX_KEYS, Plane, State
from ballast.model.layers.positions import RopeSpec
from ballast.model.layers.tensor import HeadRows, Tensor, bias, matrix, norm

LATENTS_PER_SCALE = 128
"""Numbers of a latent that share a scale in a cache of 8 bits, as in DeepSeek's layout (FlashMLA)."""


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """Selects the positions that latent attention reads (the lightning indexer of DeepSeek-V3.2-Exp)."""

    has_weights: ClassVar[bool] = True
    """Whether each token weights the heads; otherwise all have weight 1."""
    num_heads: int
    key_dim: int
    """Width of a head's query and of a token's one key, whose first rope.dim entries are rotated."""
    top_k: int
    """Positions that are selected for a token, at most."""
    pairs_apart: bool
    """Whether i and i + rope.dim / 2 are rotated together, else 2i and 2i + 1."""
    has_indexer: bool
    """Whether the layer has an indexer. Otherwise it uses the selection of the nearest layer below that has one."""
    pool: int = 1
    """Neighbouring tokens, counted from the first one, that share a key and are selected together. With more than 1, a
    token also attends to those of its own pool if that is incomplete."""

    @property
    def most_chosen(self) -> int:
        """Positions that a token attends to, at most, with those of its own pool."""
        return self.top_k + self.pool - 1

    def tensors(self, hidden: int, q_lora_rank: int) -> tuple[Tensor, ...]:
        if not self.has_indexer:
            return ()
        key_norm: dict[str, Any] = {"group": "norms", "classes": ("LayerNorm",)}
        queries, module = self.num_heads * self.key_dim, "self_attn.indexer"
        return (
            matrix("index_query_up", "indexer.attn_q_b", (queries, q_lora_rank), f"{module}.wq_b"),
            matrix("index_key", "indexer.attn_k", (self.key_dim, hidden), f"{module}.wk"),
            matrix(
                "index_head_weights",
                "indexer.proj",
                (self.num_heads, hidden),
                f"{module}.weights_proj",
                is_exact=True,
                limits="finite",
            ),
            norm("index_key_norm", "indexer.k_norm", self.key_dim, f"{module}.k_norm", **key_norm),
            bias("index_key_shift", "indexer.k_norm", self.key_dim, f"{module}.k_norm", **key_norm),
            *(self._pool_tensors(hidden, module) if self.pool > 1 else ()),
        )

    def _pool_tensors(self, hidden: int, module: str) -> tuple[Tensor, ...]:
        """Tensors of the weights with which the keys of a pool's tokens are averaged."""
        own: dict[str, Any] = {"classes": ("{family}Indexer",), "is_exact": True, "limits": "finite"}
        stem = "indexer_compressor"
        return (
            matrix("index_pool_gate", f"{stem}_gate", (self.key_dim, hidden), module, **own),
            matrix("index_pool_offset", f"{stem}_ape", (self.pool, self.key_dim), module, is_flat=True, **own),
        )


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    v_dim: int
    rope: RopeSpec
    mla_layout: Literal["joint", "split"]
    index: IndexSpec | None = None
    """None: every token attends to all previous tokens."""
    rotates: bool = True
    """Whether positions rotate queries and keys. If not, their last rope.dim entries are used as they are."""

    @property
    def latent_dim(self) -> int:
        """Numbers of one token's KV in one layer: the normed latent and the rotated key."""
        return self.kv_lora_rank + self.rope.dim

    @property
    def query_dim(self) -> int:
        """Numbers of a head's query."""
        return self.nope_dim + self.rope.dim

    @property
    def has_indexer(self) -> bool:
        return self.index is not None and self.index.has_indexer

    def most_read(self, num_positions: int) -> int:
        """Maximum number of rows that a token reads in a sequence of `num_positions`."""
        return num_positions if self.index is None else min(num_positions, self.index.most_chosen)

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The planes of the layer's cache."""
        rank = self.kv_lora_rank
        latent = Plane("latent", self.latent_dim, num_short=rank, scale_width=min(LATENTS_PER_SCALE, rank))
        if self.index is None or not self.index.has_indexer:
            return (latent,)
        return (latent, Plane(INDEX_KEYS, self.index.key_dim // self.index.pool))

    @property
    def states(self) -> tuple[State, ...]:
        """What the layer keeps of a sequence: keys and gates of its last, incomplete pool."""
        if self.index is None or not self.index.has_indexer or self.index.pool == 1:
            return ()
        return (State("incomplete pool", (self.index.pool - 1) * 2 * self.index.key_dim),)

    @property
    def modules(self) -> dict[str, tuple[str, ...]]:
        """Modules without tensors of their own, with their classes."""
        indexer = {"self_attn.indexer": ("{family}Indexer",)} if self.has_indexer else {}
        return {"self_attn": ("{family}Attention",), **indexer}

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        rank, heads = self.kv_lora_rank, self.num_heads
        return (
            *self._queries(hidden),
            matrix("kv_a", "attn_kv_a_mqa", (self.latent_dim, hidden), "self_attn.kv_a_proj_with_mqa"),
            norm("kv_a_norm", "attn_kv_a_norm", rank, "self_attn.kv_a_layernorm"),
            *self._latent_outputs(),
            matrix("output", "attn_output", (hidden, heads * self.v_dim), "self_attn.o_proj"),
            *(self.index.tensors(hidden, self.q_lora_rank) if self.index and self.q_lora_rank else ()),
        )

    def _queries(self, hidden: int) -> tuple[Tensor, ...]:
        """Through a low rank in V2 and V3, direct in V2-Lite."""
        rank, rows = self.q_lora_rank, self.num_heads * self.query_dim
        if rank is None:
            return (matrix("query_up", "attn_q", (rows, hidden), "self_attn.q_proj"),)
        return (
            matrix("query_down", "attn_q_a", (rank, hidden), "self_attn.q_a_proj"),
            norm("query_norm", "attn_q_a_norm", rank, "self_attn.q_a_layernorm"),
            matrix("query_up", "attn_q_b", (rows, rank), "self_attn.q_b_proj"),
        )

    def _latent_outputs(self) -> tuple[Tensor, ...]:
        """W_UK and W_UV. The joint tensor has W_UK as it was trained, the split one as absorption applies it."""
        heads, rank, nope, v, module = (
            self.num_heads,
            self.kv_lora_rank,
            self.nope_dim,
            self.v_dim,
            "self_attn.kv_b_proj",
        )
        if self.mla_layout == "joint":
            rows = (
                HeadRows("k_up", heads, nope, is_transposed=True),
                HeadRows("v_up", heads, v, offset=nope),
            )
            return (matrix("kv_up", "attn_kv_b", (heads * (nope + v), rank), module, heads=rows),)
        return (
            matrix("k_up", "attn_k_b", (heads, rank, nope), module, heads=(HeadRows("k_up", heads, rank),)),
            matrix("v_up", "attn_v_b", (heads, v, rank), module, heads=(HeadRows("v_up", heads, v),)),
        )
