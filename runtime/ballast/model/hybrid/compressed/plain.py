"""`Compression` in torch's operations, token after token, on any device: what kernels are compared with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from ballast.model.hybrid.attention.device_kv_pool import largest_number
from ballast.model.hybrid.compressed.compression import (
    CompressedCache,
    EntryTokens,
    Rotation,
    index_sizes,
)
from ballast.model.hybrid.sparse.choice import PlainPositionChoice
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.compressed import CompressedSpec


class PlainCompression:
    """`Compression` in float32. It reads tables on the host, so CUDA graphs cannot capture it."""

    def __init__(
        self, mixer: CompressedSpec, block_tokens: int, rms_eps: float, rotation: Rotation, kv_dtype: torch.dtype
    ) -> None:
        self.num_saturated = torch.zeros((), dtype=torch.int64, device=rotation.cos.device)
        self._mixer = mixer
        self._block_tokens = block_tokens
        self._rms_eps = rms_eps
        self._rotation = rotation
        self._largest = largest_number(kv_dtype)
        sizes = index_sizes(mixer, block_tokens)
        self._choose = None if sizes is None else PlainPositionChoice(sizes)

    def queries(self, heads: torch.Tensor, step: Step) -> torch.Tensor:
        """See `Compression`."""
        return self._turned(F.rms_norm(heads, heads.shape[-1:], eps=self._rms_eps), step.positions)

    def key(self, key: torch.Tensor, norm: torch.Tensor, step: Step) -> torch.Tensor:
        """See `Compression`."""
        normed = F.rms_norm(key, norm.shape, norm, self._rms_eps)
        return self._bounded(self._turned(normed[:, None], step.positions)[:, 0])

    def keep_entries(self, tokens: EntryTokens, states: torch.Tensor, entries: torch.Tensor, step: Step) -> None:
        """See `Compression`."""
        rows, ratio, width = step.states, len(tokens.offset), states.shape[3]
        assert rows is not None
        plane = entries.view(-1, width)
        before = [states[slot].clone() if slot else torch.zeros_like(states[0]) for slot in rows.before.tolist()]
        places, slots = (step.positions % ratio).tolist(), step.slots.tolist()
        # The columns of the incomplete entry come last, and its sums first.
        gates = (tokens.gates + tokens.offset[places]).view(len(places), -1, width).flip(1)
        values = tokens.values.reshape(gates.shape).flip(1)
        for row, (begin, end) in enumerate(itertools.pairwise(rows.begins.tolist())):
            state, left = before[row], rows.left_by(row)
            for token in range(begin, end):
                state = _added(state, gates[token], values[token])
                if places[token] == ratio - 1:
                    entry = F.rms_norm(state[0, 2] / state[0, 1], (width,), tokens.norm, self._rms_eps)
                    position = step.positions[token : token + 1] + 1 - ratio
                    at = slots[token] // self._mixer.row_tokens
                    plane[at] = self._bounded(self._turned(entry[None, None], position)[0, 0]).to(plane.dtype)
                    state = torch.cat([state[1:], torch.zeros_like(state[:1])])
                for _, slot in (each for each in left if each[0] == token + 1):
                    states[slot] = state

    def choose(self, query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, step: Step) -> torch.Tensor:
        """See `Compression`."""
        assert self._choose is not None
        assert step.states is not None
        own = keys.view(-1, query.shape[2])
        turned = self._bounded(self._turned(query, step.positions)).to(keys.dtype)
        return self._choose(turned, weights, own, step.states.owners, step)

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
        rows, mixer = step.states, self._mixer
        assert rows is not None
        out = torch.empty_like(query)
        for row, (begin, end) in enumerate(itertools.pairwise(rows.begins.tolist())):
            first = int(step.positions[begin])
            window = cache.window[int(rows.before[row])]
            earlier = window[torch.arange(first - mixer.window, first).remainder(mixer.window)]
            keys = torch.cat([earlier, key[begin:end]])
            entries = self._entries(cache, row, step)
            for token, position in enumerate(step.positions[begin:end].tolist(), begin):
                last = mixer.window + token - begin + 1
                own = keys[last - min(mixer.window, position + 1) : last]
                if mixer.ratio:
                    seen = (position + 1) // mixer.ratio
                    own = torch.cat([own, entries(slice(0, seen) if chosen is None else chosen[token, :seen])])
                scores = query[token] @ own.T / math.sqrt(mixer.head_dim)
                weights = torch.cat([scores, sinks[:, None]], 1).softmax(1)[:, :-1]
                out[token] = weights @ own
        return self._turned(out, step.positions, backwards=True)

    def keep_window(self, key: torch.Tensor, window: torch.Tensor, step: Step) -> None:
        """See `Compression`."""
        rows, size = step.states, self._mixer.window
        assert rows is not None
        before = [window[slot].clone() if slot else torch.zeros_like(window[0]) for slot in rows.before.tolist()]
        for row, (begin, end) in enumerate(itertools.pairwise(rows.begins.tolist())):
            ring, left = before[row], rows.left_by(row)
            for token in range(begin, end):
                ring[int(step.positions[token]) % size] = key[token]
                for _, slot in (each for each in left if each[0] == token + 1):
                    window[slot] = ring

    def _entries(self, cache: CompressedCache, row: int, step: Step) -> Callable[[torch.Tensor | slice], torch.Tensor]:
        """A function that returns the entries of a request with these numbers."""
        mixer, blocks = self._mixer, step.requests.blocks[row].long()
        if not mixer.ratio:
            return lambda _: torch.zeros(0)
        plane = cache.entries.view(-1, mixer.head_dim)
        numbers = torch.arange(len(blocks) * self._block_tokens // mixer.ratio, device=blocks.device)
        positions = (numbers + 1) * mixer.ratio - mixer.row_tokens
        slots = blocks[positions // self._block_tokens] * self._block_tokens + positions % self._block_tokens
        at = slots // mixer.row_tokens
        return lambda which: plane[at[which]].float()

    def _turned(self, heads: torch.Tensor, positions: torch.Tensor, *, backwards: bool = False) -> torch.Tensor:
        """Rotates the last numbers of each head [T, heads, width], 2i together with 2i + 1."""
        dim = 2 * self._rotation.cos.shape[1]
        cos, sin = (table[positions.long()][:, None] for table in self._rotation)
        if backwards:
            sin = -sin
        rest, turned = heads.tensor_split((heads.shape[-1] - dim,), -1)
        even, odd = turned[..., 0::2], turned[..., 1::2]
        pairs = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1)
        return torch.cat([rest, pairs.flatten(-2)], -1)

    def _bounded(self, values: torch.Tensor) -> torch.Tensor:
        self.num_saturated += (values.abs() > self._largest).sum()
        return values.clamp(-self._largest, self._largest)


def _added(sums: torch.Tensor, gates: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Maximum, sum and total [parts, 3, W] of softmaxes with one more gate and value; a sum of 0 holds none."""
    most, count, total = sums.unbind(1)
    before = most.where(count > 0, -torch.inf)
    most = torch.maximum(before, gates)
    fade, weight = (before - most).exp(), (gates - most).exp()
    return torch.stack([most, count * fade + weight, total * fade + weight * values], 1)
