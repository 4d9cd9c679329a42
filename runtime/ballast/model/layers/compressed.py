"""Attention to the last tokens and to compressed entries, each of several tokens (DeepSeek-V4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ballast.model.layers.plane import INDEX_KEYS, Plane, State
from ballast.model.layers.positions import RopeSpec
from ballast.model.layers.tensor import HeadRows, Tensor, matrix, norm, vector

_ROW_TOKENS = 16
"""Maximum number of tokens whose rows hold one entry; all of them are in one block of the cache."""


@dataclass(frozen=True, slots=True)
class EntryIndexSpec:
    """Selects the entries that a token reads."""

    num_heads: int
    key_dim: int
    """Width of a head's query and of an entry's one key, whose last rope.dim numbers are rotated."""
    top_k: int
    """Entries that are selected for a token, at most."""


@dataclass(frozen=True, slots=True)
class CompressedSpec:
    """Attention whose keys have one head and are values as well. What a head gives is rotated backwards. Groups of
    heads have an output matrix of low rank each."""

    num_heads: int
    head_dim: int
    q_lora_rank: int
    rope: RopeSpec
    """Rotates the last numbers of a head, 2i together with 2i + 1."""
    window: int
    """Tokens that a token sees, its own the last."""
    ratio: int
    """Tokens of an entry, counted from the first one; 0: the layer has no entries."""
    output_groups: int
    output_rank: int
    """Of each group."""
    index: EntryIndexSpec | None = None
    """With it, entries also take in the tokens of the entry before, and a token reads selected ones; otherwise all that
    are complete."""

    @property
    def query_dim(self) -> int:
        """Numbers of a head's query."""
        return self.head_dim

    @property
    def row_tokens(self) -> int:
        """Tokens whose rows in the cache hold an entry, the last ones of it."""
        return min(self.ratio, _ROW_TOKENS)

    @property
    def entry_columns(self) -> int:
        """Numbers that a token adds to entries, with a gate for each; 0 without entries."""
        return _columns(self.head_dim, self.index) if self.ratio else 0

    @property
    def index_columns(self) -> int:
        """The same of index keys."""
        return 0 if self.index is None else 2 * self.index.key_dim

    def most_read(self, num_positions: int) -> int:
        """Maximum number of rows that a token reads in a sequence of `num_positions`."""
        if not self.ratio:
            return self.window
        num_entries = num_positions // self.ratio
        return self.window + (num_entries if self.index is None else min(num_entries, self.index.top_k))

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The planes of the layer's cache: a token's share of an entry."""
        if not self.ratio:
            return ()
        entries = Plane("entries", self.head_dim // self.row_tokens)
        return (entries,) if self.index is None else (entries, Plane(INDEX_KEYS, self.index.key_dim // self.row_tokens))

    @property
    def states(self) -> tuple[State, ...]:
        """The state of a sequence: its last tokens, and the sums of incomplete entries."""
        return (
            State("window", self.window * self.head_dim),
            *((State("incomplete entries", 3 * self.entry_columns),) if self.ratio else ()),
            *((State("incomplete index keys", 3 * self.index_columns),) if self.index is not None else ()),
        )

    @property
    def modules(self) -> dict[str, tuple[str, ...]]:
        """Modules without tensors of their own, with their classes."""
        return {"self_attn": ("{family}Attention",)}

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        rank, heads, width, module = self.q_lora_rank, self.num_heads, self.head_dim, "self_attn"
        rows, columns = self.output_groups * self.output_rank, heads * width // self.output_groups
        of_groups = HeadRows("output_down", self.output_groups, self.output_rank)
        grouped: dict[str, Any] = {"classes": ("{family}GroupedLinear",), "heads": (of_groups,)}
        return (
            matrix("query_down", "attn_q_a", (rank, hidden), f"{module}.q_a_proj"),
            norm("query_norm", "attn_q_a_norm", rank, f"{module}.q_a_norm"),
            matrix("query_up", "attn_q_b", (heads * width, rank), f"{module}.q_b_proj"),
            matrix("key", "attn_kv", (width, hidden), f"{module}.kv_proj"),
            norm("key_norm", "attn_kv_a_norm", width, f"{module}.kv_norm"),
            vector("sinks", "attn_sinks", heads, module, classes=("{family}Attention",)),
            matrix("output_down", "attn_output_a", (rows, columns), f"{module}.o_a_proj", **grouped),
            matrix("output_up", "attn_output_b", (hidden, rows), f"{module}.o_b_proj"),
            *(self._entries(hidden) if self.ratio else ()),
            *self._indexer(hidden),
        )

    def _entries(self, hidden: int) -> tuple[Tensor, ...]:
        own = "{family}HCACompressor" if self.index is None else "{family}CSACompressor"
        module = "self_attn.compressor"
        return _compressor("entry", "attn", self.ratio, self.head_dim, self.entry_columns, hidden, module, own)

    def _indexer(self, hidden: int) -> tuple[Tensor, ...]:
        if self.index is None:
            return ()
        index, module = self.index, "self_attn.compressor.indexer"
        queries, scorer = index.num_heads * index.key_dim, f"{module}.scorer.weights_proj"
        exact: dict[str, Any] = {"is_exact": True, "limits": "finite"}
        return (
            matrix("index_query_up", "indexer.attn_q_b", (queries, self.q_lora_rank), f"{module}.q_b_proj"),
            matrix("index_head_weights", "indexer.proj", (index.num_heads, hidden), scorer, **exact),
            *_compressor(
                "index_entry",
                "indexer",
                self.ratio,
                index.key_dim,
                self.index_columns,
                hidden,
                module,
                "{family}Indexer",
                **exact,
            ),
        )


def _columns(width: int, index: EntryIndexSpec | None) -> int:
    """An entry that takes in those of the entry before has two numbers of each token for each of its own."""
    return width if index is None else 2 * width


def _compressor(
    role: str,
    stem: Literal["attn", "indexer"],
    ratio: int,
    width: int,
    columns: int,
    hidden: int,
    module: str,
    own: str,
    **exact: Any,
) -> tuple[Tensor, ...]:
    stem_of, offset = f"{stem}_compressor", {"classes": (own,), "is_flat": True, "is_exact": True}
    return (
        matrix(f"{role}_value", f"{stem_of}_kv", (columns, hidden), f"{module}.kv_proj"),
        matrix(f"{role}_gate", f"{stem_of}_gate", (columns, hidden), f"{module}.gate_proj", **exact),
        matrix(f"{role}_offset", f"{stem_of}_ape", (ratio, columns), module, **{**offset, **exact}),
        norm(f"{role}_norm", f"{stem_of}_norm", width, f"{module}.kv_norm"),
    )
