"""The kernels of keys that neighbouring tokens share against torch's operations, by Triton's interpreter, and on a
GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ballast.model.hybrid.pointwise import block_kernels, pool_kernels, triton_pointwise, triton_pools
from ballast.model.hybrid.pointwise.pools import BlockTokens, PooledTokens, PoolMemory
from ballast.model.hybrid.pointwise.triton_pointwise import TritonPointwise
from ballast.model.hybrid.recurrent.state_rows import PlannedRows
from ballast.model.hybrid.steps.step import Step
from ballast.model.rope import RopeTable
from devkit.kernels import torch_pools
from devkit.kernels.interpreted import interpreted
from devkit.kernels.torch_pointwise import TorchPointwise

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
WIDTH, NUM_SLOTS = 24, 9
# By row: tokens, the first position, and the slots before and after. Then the chunks of the rows behind the first two:
# row, begin, end and slot.
ROWS = [(1, 7, 1, 1), (1, 5, 2, 3), (6, 3, 4, 4), (9, 0, 0, 5), (1, 2, 6, 6), (3, 9, 7, 8)]
CHUNKS = [(2, 2, 5, 0), (2, 5, 8, 4), (3, 8, 11, 2), (3, 11, 17, 5), (4, 17, 18, 6), (5, 18, 21, 8)]


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the kernels run in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    monkeypatch.setattr(triton_pools, "pool_kernels", interpreted(pool_kernels, monkeypatch))
    monkeypatch.setattr(triton_pointwise, "block_kernels", interpreted(block_kernels, monkeypatch))
    return torch.device("cpu")


def on_device(values: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def step_on(device: torch.device, rows: list[tuple[int, int, int, int]], chunks: list[tuple[int, ...]]) -> Step:
    """Tokens have slots of their own, in one block per request of 16 tokens."""
    counts, first, before, after = (list(column) for column in zip(*rows, strict=True))
    begins = [sum(counts[:row]) for row in range(len(rows) + 1)]
    planned = PlannedRows(begins, before, after, chunks, sum(1 for row in range(2) if rows[row][0] == 1))
    positions = [at + token for at, count in zip(first, counts, strict=True) for token in range(count)]
    slots = [16 * (row + 1) + first[row] + token for row, count in enumerate(counts) for token in range(count)]
    states = planned.send(lambda host: torch.from_numpy(host).to(device))
    return Step(on_device(positions, device), on_device(slots, device), torch.zeros(0), (), states=states)


def tokens_on(device: torch.device, pool: int, rows: list[tuple[int, int, int, int]]) -> PooledTokens:
    rng = torch.Generator().manual_seed(2)
    num_tokens = sum(row[0] for row in rows)
    keys, gates, offset = (torch.randn(n, WIDTH, generator=rng).to(device) for n in (num_tokens, num_tokens, pool))
    return PooledTokens(keys, 5 * gates, 3 * offset)


def memory_on(device: torch.device, pool: int, dtype: torch.dtype = torch.float32) -> PoolMemory:
    """Slot 0 must not be read."""
    rng = torch.Generator().manual_seed(3)
    states = torch.randn(NUM_SLOTS, pool - 1, 2, WIDTH, generator=rng)
    states[0] = torch.nan
    return PoolMemory(torch.full((16 * 8 // pool, WIDTH), 7.0, dtype=dtype, device=device), states.to(device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("pool", [2, 4])
def test_pools_get_the_weighted_mean_of_their_tokens_keys(device: torch.device, pool: int, dtype: torch.dtype) -> None:
    step, tokens = step_on(device, ROWS, CHUNKS), tokens_on(device, pool, ROWS)
    memories = [memory_on(device, pool, dtype) for _ in range(2)]
    torch_pools.keep_pools(tokens, memories[0], step)
    triton_pools.keep_pools(tokens, memories[1], step)
    plain, found = memories
    close = CLOSE if dtype == torch.float32 else {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(found.keys, plain.keys, **close)
    torch.testing.assert_close(found.states, plain.states, rtol=0, atol=0, equal_nan=True)
    complete = {int(slot) // pool for slot, at in zip(step.slots, step.positions, strict=True) if (at + 1) % pool == 0}
    assert set((found.keys != 7.0).any(1).nonzero().flatten().tolist()) == complete


def test_a_pool_is_the_same_in_any_steps(device: torch.device) -> None:
    """The definition, for the second pool of a request: token by token, and in one step."""
    rows = [(8, 0, 0, 5)]
    tokens, whole, parts = tokens_on(device, 4, rows), memory_on(device, 4), memory_on(device, 4)
    triton_pools.keep_pools(tokens, whole, step_on(device, [*rows, (1, 0, 0, 0)], [(0, 0, 8, 5), (1, 8, 9, 0)]))
    for at in range(8):
        own = PooledTokens(tokens.keys[at:][:1], tokens.gates[at:][:1], tokens.offset)
        step = step_on(device, [(1, at, 0 if at == 0 else 6, 6), (1, 0, 0, 0)], [])
        one = replace(step, slots=step.slots[:1], positions=step.positions[:1])
        triton_pools.keep_pools(own, parts, one)
    shares = (tokens.gates[4:] + tokens.offset).softmax(0)
    torch.testing.assert_close(whole.keys[5], (shares * tokens.keys[4:]).sum(0), **CLOSE)
    torch.testing.assert_close(parts.keys, whole.keys, **CLOSE)
    assert not whole.states[5].any()
    assert not parts.states[6].any()


def rotation(num_pairs: int) -> RopeTable:
    angles = np.random.default_rng(4).uniform(-3, 3, (20, num_pairs)).astype(np.float32)
    return RopeTable(np.cos(angles), np.sin(angles))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("pool", "num_pairs"), [(2, 12), (4, 5)])
def test_blocks_get_the_normed_mean_of_their_tokens_keys(
    device: torch.device, pool: int, num_pairs: int, dtype: torch.dtype
) -> None:
    """Rotated by the position of the first token. Keys are columns of wider products."""
    step, given = step_on(device, ROWS, CHUNKS), tokens_on(device, pool, ROWS)
    tokens = BlockTokens(torch.cat([given.keys, given.keys], 1)[:, :WIDTH], given.gates[0])
    queries = torch.stack([given.keys, given.gates], 1)
    results = []
    for make in (TorchPointwise, TritonPointwise):
        memory = memory_on(device, pool, dtype)
        memory = PoolMemory(memory.keys, memory.states[:, :, 0].contiguous())
        pointwise = make(1e-5, rotation(num_pairs), device)
        pointwise.keep_blocks(tokens, memory, step)
        results.append((memory.keys, memory.states, pointwise.block_queries(queries, tokens.norm, memory.keys, step)))
    close = CLOSE if dtype == torch.float32 else {"rtol": 1e-3, "atol": 1e-3}
    plain, found = results
    torch.testing.assert_close(found[0], plain[0], **close)
    torch.testing.assert_close(found[1], plain[1], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(found[2], plain[2], **close)
    assert found[2].dtype == dtype
    complete = {int(slot) // pool for slot, at in zip(step.slots, step.positions, strict=True) if (at + 1) % pool == 0}
    assert set((found[0] != 7.0).any(1).nonzero().flatten().tolist()) == complete


def test_a_block_is_the_same_in_any_steps(device: torch.device) -> None:
    """The definition, for the second block of a request: token by token, and in one step."""
    table = rotation(12)
    pointwise = TritonPointwise(1e-5, table, device)
    rows, given = [(8, 0, 0, 5)], tokens_on(device, 4, [(8, 0, 0, 5)])
    whole, parts = (
        PoolMemory(each.keys, each.states[:, :, 0].contiguous()) for each in (memory_on(device, 4) for _ in range(2))
    )
    tokens = BlockTokens(given.keys, given.gates[0])
    pointwise.keep_blocks(tokens, whole, step_on(device, [*rows, (1, 0, 0, 0)], [(0, 0, 8, 5), (1, 8, 9, 0)]))
    for at in range(8):
        own = BlockTokens(tokens.keys[at:][:1], tokens.norm)
        step = step_on(device, [(1, at, 0 if at == 0 else 6, 6), (1, 0, 0, 0)], [])
        pointwise.keep_blocks(own, parts, replace(step, slots=step.slots[:1], positions=step.positions[:1]))
    mean = tokens.keys[4:].mean(0)
    normed = mean * (mean.square().mean() + 1e-5).rsqrt() * tokens.norm
    first, second = normed.view(2, 12)
    cos, sin = (torch.from_numpy(each[4]).to(device) for each in (table.cos, table.sin))
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin])
    torch.testing.assert_close(whole.keys[5], turned, **CLOSE)
    torch.testing.assert_close(parts.keys, whole.keys, **CLOSE)
    assert not whole.states[5].any()
    assert not parts.states[6].any()


def test_large_keys_of_blocks_are_clamped_and_counted(device: torch.device) -> None:
    step, given = step_on(device, ROWS, CHUNKS), tokens_on(device, 2, ROWS)
    memory = memory_on(device, 2, torch.float16)
    memory = PoolMemory(memory.keys, memory.states[:, :, 0].contiguous())
    pointwise = TritonPointwise(1e-5, rotation(5), device)
    tokens = BlockTokens(given.keys, torch.full((WIDTH,), 1e6, device=device))
    pointwise.keep_blocks(tokens, memory, step)
    assert memory.keys.isfinite().all()
    assert memory.keys.max() == torch.finfo(torch.float16).max
    assert pointwise.num_saturated > 0
