"""The kernels of attention to compressed entries on a GPU, checked before they are used."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
import triton

from ballast.model.batch import Batch
from ballast.model.hybrid.agreement import MAX_DIFFERENCE
from ballast.model.hybrid.compressed.compression import CompressedCache, Compression, EntryTokens, Rotation
from ballast.model.hybrid.compressed.plain import PlainCompression
from ballast.model.hybrid.compressed.triton_compression import DeviceLimits, TritonCompression
from ballast.model.hybrid.faults.kernel_check import ParallelCompile, require, why_different
from ballast.model.hybrid.recurrent.state_pool import entry_states
from ballast.model.hybrid.sparse.sizes import GROUP
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.compressed import CompressedSpec

_MORE = 40
"""Number of entries that the test requests see, in addition to a full group of the selection and top_k."""
_PROMPT = 3
"""Tokens of the test prompt."""
_NUM_SLOTS = 3
"""Slots of states that the test requests read and write."""
_SINK = 5.0
"""Mean of the test sinks, so that they have a visible weight among some hundred keys."""


def compression_kernels(
    mixer: CompressedSpec,
    block_tokens: int,
    rms_eps: float,
    rotation: Rotation,
    kv_dtype: torch.dtype,
    parallel_compile: ParallelCompile = nullcontext,
) -> TritonCompression:
    """The operations on a CUDA device, that of the rotation. A captured step has no alternative to these kernels, so
    kernels that cannot be compiled or are wrong raise ValueError, as do heads that are too large. Launches inside the
    context that `parallel_compile` returns only compile."""
    given = mixer, block_tokens, rms_eps, rotation, kv_dtype
    kernels, trial = TritonCompression(*given, limits_of(rotation.cos.device)), Trial(*given)

    own = partial(trial.run, kernels), partial(trial.why_wrong, kernels)
    require("attention to compressed entries", *own, parallel_compile)
    return kernels


def limits_of(device: torch.device) -> DeviceLimits:
    """What limits kernels on a CUDA device."""
    about = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return DeviceLimits(about["max_shared_mem"], about["multiprocessor_count"])


class Trial:
    """The last token of one request, and the last few of another one, the last of which completes an entry. With an
    indexer, the selection covers every kind of round, if the rotation has enough positions."""

    def __init__(
        self, mixer: CompressedSpec, block_tokens: int, rms_eps: float, rotation: Rotation, kv_dtype: torch.dtype
    ) -> None:
        self._mixer, device = mixer, rotation.cos.device
        self._plain = PlainCompression(mixer, block_tokens, rms_eps, rotation, kv_dtype)
        num_entries = _MORE + (0 if mixer.index is None else GROUP + mixer.index.top_k)
        length = min(max(2 * mixer.window, mixer.ratio * num_entries), len(rotation.cos))
        if length > mixer.ratio > 0:
            length -= length % mixer.ratio
        self._length = length
        self._step, num_blocks = _tried_step(length, block_tokens, device)
        num_tokens, rng = len(self._step.positions), torch.Generator(device).manual_seed(0)

        def some(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=rng, device=device)

        def tokens(width: int, columns: int) -> EntryTokens:
            values, gates, offset = (some(rows, columns) for rows in (num_tokens, num_tokens, mixer.ratio))
            return EntryTokens(values, gates, offset, some(width))

        self._heads, self._sinks = some(num_tokens, mixer.num_heads, mixer.head_dim), some(mixer.num_heads) + _SINK
        self._key, self._norm = some(num_tokens, mixer.head_dim), some(mixer.head_dim)
        states = entry_states(mixer, _NUM_SLOTS, device)
        for state in states:
            state.copy_(some(*state.shape))
        for state in states[1:]:  # sums of weights
            state[:, :, 1].abs_()
        entries, index_keys = (
            some(num_blocks * block_tokens // max(1, mixer.row_tokens), width).to(kv_dtype)
            for width in (mixer.head_dim if mixer.ratio else 0, 0 if mixer.index is None else mixer.index.key_dim)
        )
        self._cache = CompressedCache(entries, None if mixer.index is None else index_keys, states)
        self._tokens = tokens(mixer.head_dim, mixer.entry_columns)
        index = mixer.index
        self._index_tokens = None if index is None else tokens(index.key_dim, mixer.index_columns)
        if index is not None:
            self._index_query, self._weights = (
                some(num_tokens, index.num_heads, index.key_dim),
                some(num_tokens, index.num_heads),
            )

    def run(
        self, compression: Compression, chosen: torch.Tensor | None = None
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
        """Results by name, and the selected entries, if the mixer has an indexer. `chosen`: the entries to attend to;
        None: those that are selected."""
        step, mixer, cache = self._step, self._mixer, copy.deepcopy(self._cache)
        key, selected = compression.key(self._key, self._norm, step), None
        if mixer.ratio:
            compression.keep_entries(self._tokens, cache.states[1], cache.entries, step)
        if self._index_tokens is not None and cache.index_keys is not None:
            compression.keep_entries(self._index_tokens, cache.states[2], cache.index_keys, step)
            selected = compression.choose(self._index_query, self._weights, cache.index_keys, step)
        query = compression.queries(self._heads, step)
        attended = compression.attend(query, key, cache, selected if chosen is None else chosen, self._sinks, step)
        compression.keep_window(key, cache.window, step)
        results = {"keys": key, "attention": attended, "entries": cache.entries}
        if cache.index_keys is not None:
            results["index keys"] = cache.index_keys
        names = ("incomplete entries", "incomplete index keys")
        results |= dict(zip(names, cache.states[1:], strict=False))
        # Kernels need not copy what a window that is not full yet holds after its last key.
        return results | {"windows": cache.window[:, : self._length]}, selected

    def why_wrong(self, compression: Compression) -> str | None:
        """The reason why operations are unreliable, or None. Compares their results with the plain implementation."""
        expected, plain_choice = self.run(self._plain)
        found, chosen = self.run(compression, plain_choice)
        if (reason := why_different(found, expected)) is not None:
            return reason
        if chosen is None or plain_choice is None:
            return None
        num_seen = (self._step.positions + 1) // self._mixer.ratio
        for ours, theirs, count in zip(chosen.tolist(), plain_choice.tolist(), num_seen.tolist(), strict=True):
            wanted = set(theirs[:count])
            num_others = len(wanted.difference(ours[:count]))
            if num_others > max(1, MAX_DIFFERENCE * len(wanted)):  # scores may be as near as their rounding
                return f"{num_others} of {len(wanted)} selected entries are not those with the highest scores"
        return None


def _tried_step(length: int, block_tokens: int, device: torch.device) -> tuple[Step, int]:
    """A step of the last token of one request, and the last tokens of another one, each of `length` tokens with blocks
    of its own; and the number of blocks, with the null block."""
    counts, each = [1, min(_PROMPT, length)], -(-length // block_tokens)
    positions = np.concatenate([np.arange(length - count, length) for count in counts]).astype(np.int32)
    owners, none = np.repeat([0, 1], counts), np.zeros(0, np.int32)
    first_slots = (1 + owners * each) * block_tokens
    batch = Batch(
        token_ids=np.zeros_like(positions),
        positions=positions,
        slots=(first_slots + positions).astype(np.int32),
        query_indptr=np.cumsum([0, *counts]).astype(np.int32),
        kv_indptr=np.array([0, each, 2 * each], np.int32),
        kv_indices=np.arange(1, 1 + 2 * each, dtype=np.int32),
        sampled=np.zeros(1, np.int64),
        # The first row replaces its state, the second one leaves another one.
        states=(np.array([1, 2], np.int32), np.array([1, 3], np.int32), np.zeros(3, np.int32), none, none),
    )
    return Step.from_batch(batch, device, has_states=True), 1 + 2 * each
