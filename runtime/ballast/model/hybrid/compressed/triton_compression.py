"""`Compression` on a GPU."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ballast.model.hybrid.attention.attention import multiplied_type
from ballast.model.hybrid.attention.paged import choose_tilings
from ballast.model.hybrid.attention.sizes import LatentSizes
from ballast.model.hybrid.compressed import entry_attention_kernels, entry_kernels, window_kernels
from ballast.model.hybrid.compressed.compression import CompressedCache, EntryTokens, Rotation, index_sizes
from ballast.model.hybrid.recurrent.state_rows import StateRows
from ballast.model.hybrid.recurrent.triton_states import launch_for_rows
from ballast.model.hybrid.shared_kernels.power_of_two import padded
from ballast.model.hybrid.sparse.triton_choice import TritonPositionChoice
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.compressed import CompressedSpec

MAX_SPLITS = 32
"""Maximum number of programs that share the rows of a token."""
_COLUMNS = 128
"""Columns that a program computes of an entry, of a state, and of merged averages."""
_TURNED_HEADS = 8


class DeviceLimits(NamedTuple):
    """What limits the kernels of a GPU."""

    shared_bytes: int
    """Shared memory of a program."""
    num_processors: int


class TritonCompression:
    """Numbers are rounded to the cache's type before attention multiplies them."""

    def __init__(
        self,
        mixer: CompressedSpec,
        block_tokens: int,
        rms_eps: float,
        rotation: Rotation,
        kv_dtype: torch.dtype,
        limits: DeviceLimits,
    ) -> None:
        """Raises ValueError if heads are too large."""
        self.num_saturated = torch.zeros((), dtype=torch.int64, device=rotation.cos.device)
        self._mixer = mixer
        self._block_tokens = block_tokens
        self._rms_eps = rms_eps
        self._rotation = rotation
        self._dtype = multiplied_type(kv_dtype)
        self._scale = math.log2(math.e) / math.sqrt(mixer.head_dim)
        self._num_processors = limits.num_processors
        heads = LatentSizes(mixer.num_heads, mixer.head_dim, 0, self._scale, block_tokens)
        self._tiling = choose_tilings(heads, limits.shared_bytes).prompts
        sizes = index_sizes(mixer, block_tokens)
        self._choose = None if sizes is None else TritonPositionChoice(sizes, limits.num_processors)

    def queries(self, heads: torch.Tensor, step: Step) -> torch.Tensor:
        """See `Compression`."""
        out = torch.empty_like(heads, dtype=self._dtype)
        self._turn(heads, None, step, out, has_norm=True, scale=self._scale)
        return out

    def key(self, key: torch.Tensor, norm: torch.Tensor, step: Step) -> torch.Tensor:
        """See `Compression`."""
        out = torch.empty(key.shape, device=key.device)
        self._turn(key[:, None], norm, step, out)
        return out

    def keep_entries(self, tokens: EntryTokens, states: torch.Tensor, entries: torch.Tensor, step: Step) -> None:
        """See `Compression`."""
        rows, (_, parts, _, width) = step.states, states.shape
        assert rows is not None, "steps of models with entries have states"
        num_tokens, ratio = len(tokens.values), len(tokens.offset)
        block = min(_COLUMNS, padded(width))
        sizes = {
            "VALUE_STRIDE": tokens.values.stride(0),
            "GATE_STRIDE": tokens.gates.stride(0),
            "RATIO": ratio,
            "PARTS": parts,
            "WIDTH": width,
            "BLOCK": block,
        }
        given = tokens.values, tokens.gates, tokens.offset, states, step.positions
        complete, num_blocks = tokens.values.new_empty((num_tokens, width)), -(-width // block)
        entry_kernels.complete_entries[num_tokens, num_blocks](
            *given, rows.owners, rows.begins, rows.before, complete, **sizes
        )
        self._turn(complete[:, None], tokens.norm, step, entries, ratio=ratio)
        launch_for_rows(entry_kernels.leave_entries, given, rows, sizes, num_blocks)

    def choose(self, query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, step: Step) -> torch.Tensor:
        """See `Compression`."""
        assert self._choose is not None
        assert step.states is not None
        turned = torch.empty_like(query, dtype=keys.dtype)
        self._turn(query, None, step, turned)
        return self._choose(turned, weights, keys.view(-1, query.shape[2]), step.states.owners, step)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        cache: CompressedCache,
        chosen: torch.Tensor | None,
        sinks: torch.Tensor,
        step: Step,
    ) -> torch.Tensor:
        """See `Compression`."""
        mixer, tiling, rows, blocks = self._mixer, self._tiling, step.states, step.requests.blocks
        assert rows is not None
        keys = self._window_keys(key, cache.window, rows, step)
        (num_tokens, num_heads, width), top_k = query.shape, 0 if mixer.index is None else mixer.index.top_k
        head_tiles = -(-num_heads // tiling.rows)
        most_tiles = -(-mixer.most_read(blocks.shape[1] * self._block_tokens) // tiling.keys) + 1
        # A processor runs one program at a time: slightly more programs than processors would take twice as long.
        num_splits = max(1, min(self._num_processors // (num_tokens * head_tiles), MAX_SPLITS, most_tiles))
        sums = torch.empty((num_splits, num_tokens, num_heads, width), device=query.device)
        peaks = torch.empty((num_splits, num_tokens, num_heads), device=query.device)
        seen = {"WINDOW": mixer.window, "RATIO": mixer.ratio, "TOP_K": top_k, "WIDTH": width, "KEYS": tiling.keys}
        entry_attention_kernels.attend[num_tokens * head_tiles, num_splits](
            query,
            keys,
            cache.entries if mixer.ratio else keys,  # any pointer, if there are no entries
            rows.owners if chosen is None else chosen,  # any pointer, if none are chosen
            sinks,
            step.positions,
            rows.owners,
            blocks,
            sums,
            peaks,
            num_heads,
            blocks.shape[1],
            head_tiles,
            **seen,
            ROW_TOKENS=mixer.row_tokens or 1,
            BLOCK_TOKENS=self._block_tokens,
            PADDED_WIDTH=max(16, padded(width)),
            ROWS=tiling.rows,
            num_warps=tiling.num_warps,
            num_stages=tiling.num_stages,
        )
        attended = sums[0]
        if num_splits > 1:
            attended, block = torch.empty_like(sums[0]), min(_COLUMNS, padded(width))
            entry_attention_kernels.merge[num_tokens, num_heads, -(-width // block)](
                *(sums, peaks, step.positions, attended, num_splits), **seen, SPLITS=MAX_SPLITS, BLOCK=block
            )
        self._turn_back(attended, step)
        return attended

    def keep_window(self, key: torch.Tensor, window: torch.Tensor, step: Step) -> None:
        """See `Compression`."""
        assert step.states is not None
        _, size, width = window.shape
        sizes = {"WINDOW": size, "WIDTH": width, "PADDED_WIDTH": padded(width)}
        launch_for_rows(window_kernels.leave_window, (key, window, step.positions), step.states, sizes, size)

    def _window_keys(self, key: torch.Tensor, window: torch.Tensor, rows: StateRows, step: Step) -> torch.Tensor:
        """The keys of the positions before each row, and its own, [R * window + T, W]."""
        (_, size, width), num_rows = window.shape, len(rows.before)
        keys = torch.empty((num_rows * size + len(key), width), dtype=self._dtype, device=key.device)
        window_kernels.gather_window[(len(keys),)](
            *(key, window, step.positions, rows.owners, rows.begins, rows.before, keys, num_rows),
            WINDOW=size,
            WIDTH=width,
            PADDED_WIDTH=padded(width),
            num_warps=1,
        )
        return keys

    def _turn(
        self,
        heads: torch.Tensor,
        weight: torch.Tensor | None,
        step: Step,
        out: torch.Tensor,
        *,
        has_norm: bool = False,
        scale: float = 1.0,
        ratio: int = 0,
    ) -> None:
        """Norm heads [T, heads, width], if they have weights or `has_norm`, and rotate them; see `norm_and_turn`."""
        num_tokens, num_heads, width = heads.shape
        cos, sin = self._rotation
        rope = 2 * cos.shape[1]
        largest = torch.finfo(self._dtype if out.dtype == torch.float32 else out.dtype).max
        entry_kernels.norm_and_turn[num_tokens, num_heads](
            *(heads, heads if weight is None else weight, step.positions, step.slots, cos, sin, out),
            *(self.num_saturated, num_heads, self._rms_eps, scale),
            STRIDE=heads.stride(0),
            WIDTH=width,
            ROPE=rope,
            HAS_NORM=has_norm or weight is not None,
            HAS_WEIGHT=weight is not None,
            RATIO=ratio,
            ROW_TOKENS=self._mixer.row_tokens or 1,
            PADDED_REST=padded(max(1, width - rope)),
            PADDED_PAIRS=padded(rope // 2),
            LARGEST=largest,
            num_warps=1,
        )

    def _turn_back(self, heads: torch.Tensor, step: Step) -> None:
        """Rotate heads [T, H, W] backwards in place."""
        num_tokens, num_heads, width = heads.shape
        cos, sin = self._rotation
        entry_kernels.turn_back[num_tokens, -(-num_heads // _TURNED_HEADS)](
            *(heads, step.positions, cos, sin, num_heads),
            WIDTH=width,
            ROPE=2 * cos.shape[1],
            HEADS=_TURNED_HEADS,
            PADDED_PAIRS=padded(cos.shape[1]),
        )
