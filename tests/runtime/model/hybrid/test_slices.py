"""A long step gives the same results for all ways of cutting it into slices for attention. Also tests the cuts, and
that every slice's tables are those of a separate step."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ballast.engine.startup.build import EngineSettings
from ballast.model.batch import Batch
from ballast.model.hybrid import forward_pass
from ballast.model.hybrid.layers import latent_attention
from ballast.model.hybrid.layers.latent_attention import LatentAttention
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.steps.slices import SliceSizes, cut, even_bounds
from ballast.model.hybrid.steps.step import Step
from devkit.long import if_long
from devkit.models.batches import BLOCK_TOKENS, batch_of
from devkit.models.float_hybrid import load_hybrid
from devkit.models.written import MakeTiny

CPU = torch.device("cpu")
SETTINGS = EngineSettings(
    cache_lens=1024,
    max_batch_size=4,
    max_new_tokens=16,
    chunk_size=24,
    prefill_chunk_size=256,
    max_queue=8,
    block_tokens=BLOCK_TOKENS,
)
WHOLE = SliceSizes(tokens=10_000, long_tokens=10_000, long_from=None)
SIZES = [
    SliceSizes(tokens=7, long_tokens=10_000, long_from=None),  # cuts inside requests
    SliceSizes(tokens=64, long_tokens=10_000, long_from=40),  # some long slices, each in one piece
    SliceSizes(tokens=5, long_tokens=13, long_from=20),  # long requests in slices, their contexts in pieces
    SliceSizes(tokens=3, long_tokens=16, long_from=1),  # every request in a separate slice
]
CLOSE = {"rtol": 0, "atol": 1e-4}
"""Float32 sums in a different order; logits have magnitudes of about 1."""


def logits_of(hybrid: HybridModel, sizes: SliceSizes, *batches: Batch) -> tuple[list[np.ndarray], list[torch.Tensor]]:
    """The logits of each step, and the cache afterwards."""
    device = hybrid.devices[0]
    device.attention = device.prefill_attention  # so that short prompts are also cut like long ones
    kind = device.attention.kinds[0]
    if isinstance(kind, LatentAttention) and kind._expanded is not None:
        kind._expanded._piece_keys = sizes.long_tokens
    else:
        sizes = replace(sizes, long_from=None)
    device.attention.slices = sizes
    for kept in hybrid.kv_tensors:
        kept.zero_()
    logits = [hybrid.forward(batch, lambda: None).copy() for batch in batches]
    return logits, [kept.clone() for kept in hybrid.kv_tensors]


# One of each kind of attention: latent, of groups, with windows and gates, of selected positions.
@pytest.mark.parametrize(
    "arch",
    ["v3", "laguna", "glm5", *if_long("qwen3", "v2lite", "glm45air", "minimaxm2", "mimov2", "v32", "mistral4")],
)
def test_every_cut_of_a_step_gives_the_same_logits_and_cache(
    written: MakeTiny, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(arch=arch, quant="f32").gguf
    hybrid = load_hybrid(file, CPU, SETTINGS, kv_dtype=torch.float32, slices=WHOLE)
    first = batch_of([(0, 30), (0, 3), (0, 1), (0, 45), (0, 18), (0, 20)])
    # Each request continues at its end, or at the end of a part of it, from the cache of the previous step.
    second = batch_of([(0, 52), (0, 3), (0, 5), (0, 45), (0, 38), (0, 21)])
    second = later(second, [30, 2, 1, 17, 18, 20], first)
    expected, cached = logits_of(hybrid, WHOLE, first, second)
    for sizes, products in zip(SIZES, (10_000, 11, 7, 10_000), strict=True):
        for module in (latent_attention, forward_pass):
            monkeypatch.setattr(module, "PRODUCT_TOKENS", products)
        found, caches = logits_of(hybrid, sizes, first, second)
        for ours, whole in zip([*found, *caches], [*expected, *cached], strict=True):
            torch.testing.assert_close(torch.as_tensor(ours), torch.as_tensor(whole), **CLOSE)


def later(batch: Batch, begin_at: list[int], before: Batch) -> Batch:
    """The tokens of a batch of new requests from `begin_at` on; their first blocks are those of `before`."""
    bounds, old = batch.kv_indptr, before.kv_indptr
    blocks = batch.kv_indices + before.kv_indices.max()
    for row in range(len(begin_at)):
        count = min(bounds[row + 1] - bounds[row], old[row + 1] - old[row])
        blocks[bounds[row] : bounds[row] + count] = before.kv_indices[old[row] : old[row] + count]
    counts = np.diff(batch.query_indptr)
    request = np.repeat(np.arange(len(counts)), counts)
    kept = batch.positions >= np.array(begin_at)[request]
    slots = blocks[bounds[request] + batch.positions // BLOCK_TOKENS] * BLOCK_TOKENS + batch.positions % BLOCK_TOKENS
    begins = np.array([0, *np.cumsum(counts - np.array(begin_at))], np.int32)
    return Batch(
        token_ids=batch.token_ids[kept],
        positions=batch.positions[kept],
        slots=slots[kept].astype(np.int32),
        query_indptr=begins,
        kv_indptr=bounds,
        kv_indices=blocks,
        sampled=np.arange(begins[-1]),
    )


counts = st.lists(st.integers(1, 60), min_size=1, max_size=8)
limits = st.builds(SliceSizes, st.integers(1, 50), st.integers(1, 50), st.none() | st.integers(1, 50))


@given(counts, limits)
def test_slices_are_consecutive_and_within_limits(added: list[int], sizes: SliceSizes) -> None:
    begins = np.array([0, *itertools.accumulate(added)], np.int32)
    slices = cut(begins, sizes)
    if not slices:
        assert begins[-1] <= sizes.tokens
        return
    assert [0, *(own.end for own in slices)] == [*(own.begin for own in slices), begins[-1]]
    for own in slices:
        assert 0 < own.end - own.begin <= (sizes.long_tokens if own.is_long else sizes.tokens)
        requests = range(own.first_request, own.end_request)
        is_long = [sizes.long_from is not None and added[request] >= sizes.long_from for request in requests]
        assert is_long == [own.is_long] * len(is_long)
        assert len(requests) == 1 or not own.is_long


@given(counts, limits, st.integers(0, 40))
def test_tables_of_a_slice_match_those_of_the_step(added: list[int], sizes: SliceSizes, before: int) -> None:
    batch = batch_of([(before, count) for count in added])
    step = Step.from_batch(batch, CPU, sizes)
    places = [0]
    for part in step.slices:
        own = part.step
        tokens = slice(part.begin, part.end)
        assert torch.equal(own.positions, step.positions[tokens])
        assert torch.equal(own.slots, step.slots[tokens])
        table = own.requests
        np.testing.assert_array_equal(table.begins.numpy(), table.host_begins)
        np.testing.assert_array_equal(table.lens.numpy(), table.host_lens)
        places.append(table.place)
        for row, (begin, end) in enumerate(itertools.pairwise(table.host_begins.tolist())):
            positions = own.positions[begin:end]
            assert positions[-1] + 1 == table.host_lens[row]
            blocks = table.blocks[row, positions // BLOCK_TOKENS]
            assert torch.equal(blocks * BLOCK_TOKENS + positions % BLOCK_TOKENS, own.slots[begin:end])
    assert places == list(range(len(places)))


def test_a_short_step_is_not_cut() -> None:
    assert cut(np.array([0, 600, 601], np.int32), SliceSizes()) == ()
    assert [own.is_long for own in cut(np.array([0, 1, 1025], np.int32), SliceSizes())] == [False, True]


def test_pieces_are_even() -> None:
    assert list(even_bounds(3, 12, 4)) == [(3, 6), (6, 9), (9, 12)]
    assert list(even_bounds(3, 3, 4)) == []
