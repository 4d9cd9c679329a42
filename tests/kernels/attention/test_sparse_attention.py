"""A GPU's choice of positions and its attention to them, against the plain way: by Triton's interpreter, and on a GPU
if there is one; compiled for GPUs that are not here.

The plain way's choice is compared with the CPU's kernels. Of the same scores both ways choose the same positions, bit
for bit; the tolerance of scores and averages is that of attention (`test_paged_attention.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch

from ballast._core import kernels
from ballast.model.hybrid.attention import paged, paged_kernels
from ballast.model.hybrid.attention.paged import Tiling, Tilings, choose_tilings
from ballast.model.hybrid.attention.sizes import GroupedSizes, LatentSizes, Sizes
from ballast.model.hybrid.recurrent.state_rows import PlannedRows
from ballast.model.hybrid.sparse import choice_kernels, chosen_kernels, triton_choice, triton_chosen
from ballast.model.hybrid.sparse.choice import PlainPositionChoice, highest, num_chosen
from ballast.model.hybrid.sparse.chosen import PlainChosenAttention
from ballast.model.hybrid.sparse.gpu import Trial, sparse_kernels
from ballast.model.hybrid.sparse.sizes import MAX_CHOSEN, IndexSizes, group_counts, most_kept_bytes
from ballast.model.hybrid.sparse.sparse import SparseAttention
from ballast.model.hybrid.sparse.triton_choice import Spans, TritonPositionChoice, keep_constants, score_constants
from ballast.model.hybrid.sparse.triton_chosen import TritonChosenAttention, attend_constants
from ballast.model.hybrid.steps.step import RequestTable, Step
from devkit.kernels.attention_cases import attention_case
from devkit.kernels.compiled import compiled_for
from devkit.kernels.interpreted import interpreted
from devkit.long import spread

SIZES = LatentSizes(num_heads=20, rank=64, rope_dim=16, scale=0.2, block_tokens=16)
INDEX = IndexSizes(num_heads=20, key_dim=24, top_k=24, block_tokens=16)
V32 = LatentSizes(num_heads=128, rank=512, rope_dim=64, scale=0.1, block_tokens=32)
V32_INDEX = IndexSizes(num_heads=64, key_dim=128, top_k=2048, block_tokens=32)
POOLED = replace(INDEX, pool=4)
FLASH_NEXT_INDEX = replace(V32_INDEX, num_heads=4, pool=4, has_weights=False)
PUBLISHED = {
    "V3.2": (V32, V32_INDEX),
    "GLM-5": (replace(V32, num_heads=64), replace(V32_INDEX, num_heads=32)),
    "GLM-5.3-Flash": (replace(V32, num_heads=64, rope_dim=0), replace(V32_INDEX, num_heads=32, pool=4)),
    "Qwen3.8-Flash-Next": (GroupedSizes(24, 2, 256, 256, 0.0625, 32), FLASH_NEXT_INDEX),
}
GROUPED = GroupedSizes(num_heads=36, num_kv_heads=2, key_dim=24, v_dim=40, scale=0.2, block_tokens=16)
SMALL_TILES = Tilings(prompts=Tiling(32, 16, 4, 1), singles=Tiling(16, 16, 4, 1))
SMALL_SPANS = Spans(scored=16, group=64, short=32)
TOLERANCES = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.float16: {"rtol": 2e-3, "atol": 4e-3}}
STEPS = {
    "below what is chosen": ([1, 1, 5], [1, 24, 20]),
    "single tokens": ([1, 1, 1], [200, 24, 25]),
    "a prompt, a token, a later piece": ([7, 1, 4], [7, 90, 120]),
}


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the kernels run in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    monkeypatch.setattr(triton_choice, "choice_kernels", interpreted(choice_kernels, monkeypatch))
    monkeypatch.setattr(triton_chosen, "chosen_kernels", interpreted(chosen_kernels, monkeypatch))
    monkeypatch.setattr(paged, "paged_kernels", interpreted(paged_kernels, monkeypatch))
    return torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """The arguments of a choice and of attention to it."""

    index_query: torch.Tensor
    weights: torch.Tensor
    keys: torch.Tensor
    query: torch.Tensor
    cache: torch.Tensor
    owners: torch.Tensor
    step: Step

    @property
    def of_choice(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Step]:
        return self.index_query, self.weights, self.keys, self.owners, self.step

    def seen(self, chosen: torch.Tensor) -> list[list[int]]:
        """What each token's row of a choice says."""
        counts = (self.step.positions + 1).clamp(max=chosen.shape[1]).tolist()
        return [row[:count] for row, count in zip(chosen.tolist(), counts, strict=True)]


def make(
    tokens: Sequence[int],
    lens: Sequence[int],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    index: IndexSizes = INDEX,
) -> Case:
    given = attention_case(SIZES, tokens, lens, device, dtype, seed)
    rng = torch.Generator(device).manual_seed(seed + 1)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, device=device)

    num_tokens = sum(tokens)
    owners = torch.from_numpy(np.repeat(np.arange(len(tokens), dtype=np.int32), tokens)).to(device)
    return Case(
        some(num_tokens, index.num_heads, index.key_dim).to(dtype),
        some(num_tokens, index.num_heads),
        some(len(given.cache) // index.pool, index.key_dim).to(dtype),
        given.query,
        given.cache,
        owners,
        given.step,
    )


def scores_of(choice: TritonPositionChoice, case: Case) -> torch.Tensor:
    capacity = case.step.requests.blocks.shape[1] * INDEX.block_tokens
    scores = torch.full((len(case.query), capacity), torch.nan, device=case.query.device)
    choice.score(*case.of_choice, 0, scores)
    return scores


def test_heads_without_weights_have_weight_1(device: torch.device) -> None:
    case, unweighted = make(*STEPS["single tokens"], device), replace(INDEX, has_weights=False)
    query, ones, rest = case.index_query, torch.ones_like(case.weights), (case.keys, case.owners, case.step)
    for make_choice in (PlainPositionChoice, partial(TritonPositionChoice, num_processors=2, spans=SMALL_SPANS)):
        found, expected = make_choice(unweighted)(query, None, *rest), make_choice(INDEX)(query, ones, *rest)
        assert case.seen(found) == case.seen(expected)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("num_processors", [1, 8], ids=["whole", "split"])
@pytest.mark.parametrize(("tokens", "lens"), STEPS.values(), ids=STEPS)
def test_every_position_that_a_token_sees_is_scored(device, tokens, lens, num_processors, dtype) -> None:
    case = make(tokens, lens, device, dtype)
    scores = scores_of(TritonPositionChoice(INDEX, num_processors, SMALL_SPANS), case)
    for token, (row, owner) in enumerate(zip(scores, case.owners.tolist(), strict=True)):
        num_seen = int(case.step.positions[token]) + 1
        if num_seen <= INDEX.top_k:
            assert row.isnan().all(), "which need not be scored"
            continue
        own = slice(token, token + 1)
        blocks = case.step.requests.blocks[owner]
        expected = PlainPositionChoice(INDEX).scores(case.index_query[own], case.weights[own], case.keys, blocks)[0]
        torch.testing.assert_close(row[:num_seen], expected[:num_seen], **TOLERANCES[dtype])
        assert row[num_seen:].isnan().all()


def tied(case: Case, seed: int) -> torch.Tensor:
    """Scores of which many are equal, some are zeros of either sign, and some are no numbers."""
    rng = torch.Generator().manual_seed(seed)
    capacity = case.step.requests.blocks.shape[1] * INDEX.block_tokens
    scores = (torch.randn((len(case.query), capacity), generator=rng) * 3).round() / 8
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, 0.0, 1e-40, -1e-40, 3e38])
    places = torch.randint(0, capacity, (len(case.query), 24), generator=rng)
    return scores.scatter(1, places, odd.repeat(len(case.query), 3)).to(case.query.device)


@pytest.mark.parametrize("group", [64, 128, 256])
@pytest.mark.parametrize(("tokens", "lens"), STEPS.values(), ids=STEPS)
def test_the_highest_scores_are_chosen_with_ties_by_lower_position(device, tokens, lens, group) -> None:
    case = make(tokens, lens, device)
    scores = tied(case, 2)
    chosen = torch.full((len(scores), INDEX.top_k), -1, dtype=torch.int32, device=device)
    TritonPositionChoice(INDEX, 1, replace(SMALL_SPANS, group=group)).choose(scores, case.step, 0, chosen)
    for token, found in enumerate(case.seen(chosen)):
        seen = scores[token, : int(case.step.positions[token]) + 1].cpu()
        # NaN ranks highest. Zeros of both signs are equal.
        order = [(-torch.inf if score != score else -score, position) for position, score in enumerate(seen.tolist())]
        nans = [position for position, score in enumerate(seen.tolist()) if score != score]
        rest = [position for _, position in sorted(order) if position not in nans]
        assert found == sorted((nans + rest)[: INDEX.top_k])


@pytest.mark.parametrize("score", [0.0, -0.0, 1.5, torch.nan, -torch.inf])
def test_the_first_of_equal_scores_are_chosen(device, score: float) -> None:
    case = make([1, 2], [150, 40], device)
    scores = torch.full((3, case.step.requests.blocks.shape[1] * 16), score, device=device)
    chosen = torch.full((3, INDEX.top_k), -1, dtype=torch.int32, device=device)
    TritonPositionChoice(INDEX, 4, SMALL_SPANS).choose(scores, case.step, 0, chosen)
    assert case.seen(chosen) == [list(range(24))] * 3


def test_a_choice_is_that_of_the_cpus_kernels(pool) -> None:
    case = make([1, 1, 6], [200, 20, 70], torch.device("cpu"))
    requests = case.step.requests
    counts = [-(-length // 16) for length in requests.host_lens.tolist()]
    indices = np.concatenate([row[:count] for row, count in zip(requests.blocks.numpy(), counts, strict=True)])
    chosen, num_chosen = np.zeros((8, INDEX.top_k), np.int32), np.zeros(8, np.int32)
    kernels.choose_positions(
        pool,
        case.index_query.numpy(),
        case.weights.numpy(),
        case.keys.numpy(),
        16,
        requests.host_begins,
        case.step.positions.numpy(),
        np.array([0, *np.cumsum(counts)], np.int32),
        indices,
        chosen,
        num_chosen,
        isa="reference",
    )
    found = case.seen(PlainPositionChoice(INDEX)(*case.of_choice))
    assert found == [row[:count].tolist() for row, count in zip(chosen, num_chosen, strict=True)]
    ties = tied(case, 3)
    ours = highest(ties, case.step.positions + 1, INDEX.top_k)
    assert len(set(map(tuple, case.seen(ours)))) > 4


def test_rounds_keep_the_highest_of_groups_until_one_group_is_left() -> None:
    rounds = {length: group_counts(length, 2048) for length in (1, 16384, 16385, 131072, 163840, 1048576)}
    assert rounds == {
        1: [1],
        16384: [1],
        16385: [2, 1],
        131072: [8, 1],
        163840: [10, 2, 1],
        1048576: [64, 8, 1],
    }
    # 1,024 tokens are scored 256 at a time.
    assert most_kept_bytes(1024, 131072, 2048) == 256 * 8 * 2048 * 8
    assert group_counts(1 << 20, MAX_CHOSEN)[-1] == 1
    with pytest.raises(ValueError, match="top_k is 8193; the maximum is half of a group of 16384"):
        group_counts(20000, MAX_CHOSEN + 1)


def test_tokens_are_scored_in_chunks_that_fit(device, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make([5, 1, 2], [60, 130, 90], device)
    expected = case.seen(PlainPositionChoice(INDEX)(*case.of_choice))
    monkeypatch.setattr("ballast.model.hybrid.sparse.sizes.SCORE_BYTES", 4 * 144 * 3)
    assert case.seen(TritonPositionChoice(INDEX, 2, SMALL_SPANS)(*case.of_choice)) == expected


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("num_processors", [1, 36], ids=["whole", "split"])
@pytest.mark.parametrize(("tokens", "lens"), STEPS.values(), ids=STEPS)
def test_attention_reads_only_the_chosen_positions(device, tokens, lens, num_processors, dtype) -> None:
    case = make(tokens, lens, device, dtype)
    chosen = PlainPositionChoice(INDEX)(*case.of_choice)
    for row, found in zip(chosen, case.seen(chosen), strict=True):
        row[len(found) :] = 10**6  # which must not be read
    found = TritonChosenAttention(SIZES, INDEX, SMALL_TILES, num_processors)(
        case.query, case.cache, chosen, case.owners, case.step
    )
    for token, (owner, positions) in enumerate(zip(case.owners.tolist(), case.seen(chosen), strict=True)):
        blocks = case.step.requests.blocks[owner]
        slots = [int(blocks[position // 16]) * 16 + position % 16 for position in positions]
        rows = case.cache[slots].float()
        shares = (case.query[token] @ rows.T * SIZES.scale).softmax(-1)
        torch.testing.assert_close(found[token], shares @ rows[:, : SIZES.rank], **TOLERANCES[dtype])
    plain = PlainChosenAttention(SIZES, INDEX)(case.query, case.cache, chosen.clamp(max=10**5), case.owners, case.step)
    torch.testing.assert_close(found, plain, **TOLERANCES[dtype])


def test_single_token_kernels_read_their_lengths_from_device_memory(device) -> None:
    planned, later = make([1, 1], [100, 30], device), make([1, 1], [33, 180], device, seed=3)
    attend = SparseAttention(
        TritonPositionChoice(INDEX, 4, SMALL_SPANS),
        TritonChosenAttention(SIZES, INDEX, SMALL_TILES, 4),
        is_shared=False,
    )
    plain = SparseAttention(PlainPositionChoice(INDEX), PlainChosenAttention(SIZES, INDEX), is_shared=False)
    wide = torch.zeros((2, 12), dtype=torch.int32, device=device)
    wide[:, : later.step.requests.blocks.shape[1]] = later.step.requests.blocks
    attend.prepare(planned.step)
    requests = planned.step.requests
    object.__setattr__(requests, "blocks", wide)
    requests.lens.copy_(later.step.requests.lens)
    planned.step.positions.copy_(later.step.positions)
    results = []
    plain.prepare(later.step)
    for way, step in ((attend, planned.step), (plain, later.step)):
        way.choose(later.index_query, later.weights, later.keys, step)
        results.append(way(later.query, later.cache, step))
    torch.testing.assert_close(*results, **TOLERANCES[torch.float32])


@pytest.mark.parametrize("tokens", [[1, 1], [7, 1]])
def test_steps_with_states_send_the_owners_of_tokens_once(tokens: list[int]) -> None:
    """Recurrent layers and sparse attention read the same table."""
    case, seen = make(tokens, [100, 30], torch.device("cpu")), []

    class Choice(PlainPositionChoice):
        def __call__(self, *given) -> torch.Tensor:
            seen.append(given[3])
            return super().__call__(*given)

    begins = case.step.requests.host_begins.tolist()
    chunks = [] if tokens == [1, 1] else [(0, 0, 7, 1), (1, 7, 8, 2)]
    rows = PlannedRows(begins, [1, 2], [1, 2], chunks, 0 if chunks else 2).send(torch.from_numpy)
    attend = SparseAttention(Choice(INDEX), PlainChosenAttention(SIZES, INDEX), is_shared=False)
    attend.prepare(step := replace(case.step, states=rows))
    attend.choose(case.index_query, case.weights, case.keys, step)
    assert seen[0] is rows.owners
    assert rows.owners.tolist() == case.owners.tolist()


def test_layers_without_an_indexer_use_the_choice_of_the_previous_layer() -> None:
    case = make([1, 1], [100, 30], torch.device("cpu"))
    attend = SparseAttention(PlainPositionChoice(INDEX), PlainChosenAttention(SIZES, INDEX), is_shared=True)
    attend.prepare(case.step)
    attend.choose(case.index_query, case.weights, case.keys, case.step)
    first, second = (attend(case.query, case.cache, case.step) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    attend.prepare(case.step)
    assert not attend._chosen, "a choice is kept for its own step alone"


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("tokens", "lens"), STEPS.values(), ids=STEPS)
def test_pools_are_chosen_together_with_the_tokens_after_them(device, tokens, lens, dtype) -> None:
    """Attention has no rotated part."""
    case, sizes = make(tokens, lens, device, dtype, index=POOLED), replace(SIZES, rank=SIZES.key_dim, rope_dim=0)
    chosen = TritonPositionChoice(POOLED, 4, SMALL_SPANS)(*case.of_choice)
    plain = PlainPositionChoice(POOLED)(*case.of_choice)
    assert chosen.shape == plain.shape == (sum(tokens), POOLED.top_k + 3)
    for token, (own, other) in enumerate(zip(chosen.tolist(), plain.tolist(), strict=True)):
        num_seen = int(case.step.positions[token]) + 1
        tail = list(range(num_seen // 4 * 4, num_seen))
        count = min(num_seen // 4 * 4, POOLED.top_k) + len(tail)
        assert own[:count] == other[:count]
        assert own[count - len(tail) : count] == tail
        pools = [position // 4 for position in own[: count - len(tail)]]
        assert pools == sorted(pools)
        assert [position % 4 for position in own[: count - len(tail)]] == [0, 1, 2, 3] * (len(pools) // 4)
        chosen[token, count:] = 10**6  # which must not be read
    given = case.query, case.cache, chosen, case.owners, case.step
    found = TritonChosenAttention(sizes, POOLED, SMALL_TILES, 4)(*given)
    expected = PlainChosenAttention(sizes, POOLED)(*given[:2], plain, *given[3:])
    torch.testing.assert_close(found, expected, **TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("num_processors", [1, 36], ids=["whole", "split"])
@pytest.mark.parametrize(("tokens", "lens"), STEPS.values(), ids=STEPS)
def test_heads_of_a_group_read_their_keys_and_values_at_chosen_positions(
    device, tokens, lens, num_processors, dtype
) -> None:
    """Groups of 18 heads, which fill more than a tile."""
    case, given = make(tokens, lens, device, dtype, index=POOLED), attention_case(GROUPED, tokens, lens, device, dtype)
    chosen = PlainPositionChoice(POOLED)(*case.of_choice)
    counts = num_chosen(case.step.positions + 1, POOLED).tolist()
    rest = case.owners, given.step
    plain = PlainChosenAttention(GROUPED, POOLED)(given.query, given.cache, chosen, *rest)
    for token, (owner, count) in enumerate(zip(case.owners.tolist(), counts, strict=True)):
        positions = chosen[token, :count]
        slots = given.step.requests.blocks[owner][positions // 16] * 16 + positions % 16
        keys, values = torch.split(given.cache[slots].float(), [48, 80], 1)
        for head in range(36):
            of_group = head // 18
            own = keys[:, 24 * of_group :][:, :24], values[:, 40 * of_group :][:, :40]
            shares = (given.query[token, head] @ own[0].T * GROUPED.scale).softmax(-1)
            torch.testing.assert_close(plain[token, head], shares @ own[1], **TOLERANCES[torch.float32])
        chosen[token, count:] = 10**6  # which must not be read
    attend = TritonChosenAttention(GROUPED, POOLED, SMALL_TILES, num_processors)
    torch.testing.assert_close(attend(given.query, given.cache, chosen, *rest), plain, **TOLERANCES[dtype])


@pytest.mark.parametrize("index", [INDEX, replace(POOLED, has_weights=False)], ids=["positions", "pools"])
@pytest.mark.parametrize("wrong", ["scores", "choice", "attention", "nothing"])
def test_incorrect_kernels_are_detected_at_start(device, wrong: str, index: IndexSizes) -> None:
    choose, attend = TritonPositionChoice(index, 2, SMALL_SPANS), TritonChosenAttention(SIZES, index, SMALL_TILES, 2)

    class WrongChoice(TritonPositionChoice):
        def score(self, *given) -> None:
            choose.score(*given)
            if wrong == "scores":
                given[-1][1, 3] += 1.0

        def choose(self, scores, step, first, chosen) -> None:
            choose.choose(scores, step, first, chosen)
            if wrong == "choice":
                chosen[0, 0] += 1 if chosen[0, 1] > chosen[0, 0] + 1 else -1

    class WrongAttention(TritonChosenAttention):
        def __call__(self, *given) -> torch.Tensor:
            return attend(*given) * (1.1 if wrong == "attention" else 1.0)

    reason = Trial(
        WrongChoice(index, 2, SMALL_SPANS),
        WrongAttention(SIZES, index, SMALL_TILES, 2),
        index,
        SIZES,
        torch.float32,
        device,
    ).why_wrong()
    reported = {
        "scores": "scores of positions",
        "choice": "the chosen positions are not",
        "attention": "attention to selected",
    }
    assert reason is None if wrong == "nothing" else reported[wrong] in reason


@pytest.mark.gpu
@pytest.mark.parametrize("length", [2048, 2049, 5000, 70_000])
@pytest.mark.parametrize(("sizes", "index"), PUBLISHED.values(), ids=PUBLISHED)
def test_kernels_of_published_sizes_match_the_reference(sizes: Sizes, index: IndexSizes, length: int) -> None:
    device = torch.device("cuda:0")
    choose, attend = sparse_kernels(index, sizes, torch.float16, device)
    given = attention_case(sizes, [1, 3, 1], [length, length, 100], device, torch.float16)
    rng = torch.Generator(device).manual_seed(5)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, device=device)

    owners = torch.tensor([0, 1, 1, 1, 2], dtype=torch.int32, device=device)
    keys = some(len(given.cache) // index.pool, 128).half()
    weights = some(5, index.num_heads) if index.has_weights else None
    query = some(5, index.num_heads, 128).half()
    chosen = choose(query, weights, keys, owners, given.step)
    expected = PlainPositionChoice(index)(query, weights, keys, owners, given.step)
    counts = num_chosen(given.step.positions + 1, index).tolist()
    for token, count in enumerate(counts):
        ours, theirs = set(chosen[token, :count].tolist()), set(expected[token, :count].tolist())
        assert len(ours) == count
        assert len(ours ^ theirs) <= 4 * index.pool, "which scores are as near as float32 rounds"
        assert sorted(ours) == chosen[token, :count].tolist()
        blocks = given.step.requests.blocks[int(owners[token])]
        own, own_weights = query[token : token + 1], None if weights is None else weights[token : token + 1]
        alone = choose(own, own_weights, keys, *alone_at(given.step, token, blocks))
        assert torch.equal(alone[0, :count], chosen[token, :count]), "independent of the batch"
    found = attend(given.query, given.cache, chosen, owners, given.step)
    plain = PlainChosenAttention(sizes, index)(
        given.query, given.cache, chosen.clamp(0, length - 1), owners, given.step
    )
    torch.testing.assert_close(found, plain, **TOLERANCES[torch.float16])


def alone_at(step: Step, token: int, blocks: torch.Tensor) -> tuple[torch.Tensor, Step]:
    """The owner of a token, and a step of it alone."""
    length = int(step.positions[token]) + 1
    lens = np.array([length], np.int32)
    begins = np.array([0, 1], np.int32)
    sent = [torch.from_numpy(values).to(blocks.device) for values in (begins, lens)]
    requests = RequestTable(begins, lens, *sent, blocks[None].contiguous())
    own = Step(step.positions[token : token + 1].clone(), step.slots[token : token + 1].clone(), sent[0][:0], requests)
    return torch.zeros(1, dtype=torch.int32, device=blocks.device), own


COMPILED = {
    "score": (choice_kernels.score, score_constants(V32_INDEX, Spans())),
    "score without weights": (choice_kernels.score, score_constants(FLASH_NEXT_INDEX, Spans())),
    "first round": (choice_kernels.keep_highest, keep_constants(V32_INDEX, Spans(), is_first=True)),
    "later rounds": (choice_kernels.keep_highest, keep_constants(V32_INDEX, Spans(), is_first=False)),
}


@pytest.mark.parametrize(
    ("name", "capability", "shared_bytes"),
    spread([*COMPILED, "attend", "attend heads"], [(89, 99 << 10), (90, 227 << 10)]),
)
@pytest.mark.usefixtures("kept_kernels")
def test_the_kernels_compile_for_gpus_and_fit_their_shared_memory(name, capability, shared_bytes) -> None:
    if name in COMPILED:
        function, known = COMPILED[name]
    else:
        function, (heads, of_heads) = chosen_kernels.attend, PUBLISHED["Qwen3.8-Flash-Next"]
        known = attend_constants(V32, choose_tilings(V32, shared_bytes).prompts, V32_INDEX)
        if name == "attend heads":
            known = attend_constants(heads, choose_tilings(heads, shared_bytes).singles, of_heads)
    pointers = dict.fromkeys(("sums", "peaks", "weights", "scores"), "*fp32") | {"scale": "fp32"}
    pointers |= dict.fromkeys(("query", "cache", "keys"), "*fp16")
    pointers |= dict.fromkeys(("chosen", "positions", "owners", "blocks", "kept"), "*i32")
    pointers["given"] = "*fp32" if known.get("IS_FIRST") else "*i32"
    compiled = compiled_for(capability, function, known, pointers)
    assert compiled.metadata.shared <= shared_bytes
    if name in ("score", "score without weights", "attend", "attend heads"):
        assert "mma" in compiled.asm["ptx"], "products are made on tensor cores"
