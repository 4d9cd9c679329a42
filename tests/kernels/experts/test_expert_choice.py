"""Kernels of the experts' choice, its division and its order, and of the way to host memory and back: run by Triton's
interpreter here, on the device where there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from ballast.model.hybrid.experts import fused_routing, routing_kernels
from ballast.model.hybrid.experts.division import Divide, phase_of
from ballast.model.hybrid.experts.fused_routing import FusedRouter
from ballast.model.hybrid.experts.products.expert_panels import group_by_expert
from ballast.model.hybrid.handoff import transport_kernels
from ballast.model.hybrid.handoff.transport import Mailbox, carried
from devkit.kernels.interpreted import interpreted
from devkit.kernels.plain_routing import Router, divide
from devkit.models.specs.deepseek import R1_SPEC
from devkit.models.specs.deepseek4 import V4_FLASH_SPEC

CPU = torch.device("cpu")


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the kernels run in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    monkeypatch.setattr(fused_routing, "routing_kernels", interpreted(routing_kernels, monkeypatch))
    return CPU


@pytest.fixture(params=["torch", "kernel"])
def rule(request: pytest.FixtureRequest) -> Divide:
    return divide if request.param == "torch" else fused_routing.fused_divide


def plain_division(
    ids: list[list[int]], slots: list[int], share: float, phase: float
) -> tuple[list[list[int]], list[list[int]], list[list[int]], int]:
    left = sorted({expert for row in ids for expert in row if slots[expert] < 0})
    count = int(np.floor(np.float32(np.float32(share) * np.float32(len(left))) + np.float32(phase)))
    across = set(left[:count])

    def rows(kept: Callable[[int], int]) -> list[list[int]]:
        return [[kept(expert) for expert in row] for row in ids]

    return (
        rows(lambda expert: slots[expert]),
        rows(lambda expert: expert if expert in across else -1),
        rows(lambda expert: expert if slots[expert] < 0 and expert not in across else -1),
        count,
    )


def test_the_division_is_by_rank_among_the_distinct_experts(rule: Divide, device: torch.device) -> None:
    rng = np.random.default_rng(3)
    for num_tokens in (1, 2):
        for share in (0.0, 0.1, 0.25, 0.375, 1.0):
            ids = np.array([rng.permutation(20)[:7] for _ in range(num_tokens)], np.int32)
            slots = np.where(rng.random(20) < 0.3, rng.integers(0, 9, 20), -1).astype(np.int32)
            counter = torch.tensor(5, device=device)
            phase = phase_of(int(rng.integers(60)))
            given = (values.to(device) for values in map(torch.as_tensor, (ids, slots, share)))
            found = rule(*given, phase, counter)
            gpu_slots, across, on_host, count = plain_division(ids.tolist(), slots.tolist(), share, phase)
            assert found.gpu_slots.tolist() == gpu_slots
            assert found.across.tolist() == across
            assert found.on_host.tolist() == on_host
            assert int(counter) == 5 + count


def test_without_a_pcie_share_the_gpu_computes_only_its_own_experts(rule: Divide, device: torch.device) -> None:
    ids = torch.tensor([[0, 2], [1, 0]], dtype=torch.int32, device=device).repeat(200, 1)
    slots = torch.tensor([-1, 1, 0], dtype=torch.int32, device=device)
    found = rule(ids, slots, None, 0.5, torch.tensor(0, device=device))
    assert found.gpu_slots.tolist() == [[-1, 0], [1, -1]] * 200
    assert found.on_host.tolist() == [[0, -1], [-1, 0]] * 200
    assert (found.across == -1).all()


@pytest.mark.parametrize(("num_tokens", "share"), [(1, None), (4, 0.3), (200, None)])
def test_the_division_counts_the_tokens_of_each_expert(
    rule: Divide, device: torch.device, num_tokens: int, share: float | None
) -> None:
    rng = np.random.default_rng(num_tokens)
    ids = torch.tensor(np.stack([rng.permutation(20)[:7] for _ in range(num_tokens)]), dtype=torch.int32)
    slots = torch.where(torch.arange(20) % 3 == 0, torch.arange(20), -1).int().to(device)
    uses = torch.full((24,), 5, dtype=torch.int32, device=device)  # a row may be longer
    across = torch.tensor(0, device=device)
    shares = None if share is None else torch.tensor(share, device=device)
    for _ in range(2):
        rule(ids.to(device), slots, shares, 0.5, across, uses)
    assert uses.tolist() == (5 + 2 * torch.bincount(ids.flatten(), minlength=24)).tolist()


@pytest.mark.parametrize(("num_tokens", "hidden"), [(1, 600), (5, 600), (40, 2048)])
def test_transfers_to_host_memory_and_back_are_complete(
    num_tokens: int, hidden: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_pinned = device.type == "cuda"
    send, fetch = carried(transport_kernels if is_pinned else interpreted(transport_kernels, monkeypatch))
    most, rng = num_tokens + 1, torch.Generator().manual_seed(num_tokens)
    box = Mailbox(
        torch.zeros(most, hidden, pin_memory=is_pinned),
        torch.zeros(most, 3, dtype=torch.int32, pin_memory=is_pinned),
        torch.zeros(most, 3, pin_memory=is_pinned),
        torch.zeros(most, hidden, pin_memory=is_pinned),
    )
    box.results.normal_(generator=rng)
    x, ids = torch.randn(num_tokens, hidden, generator=rng), torch.arange(3 * num_tokens, dtype=torch.int32).view(-1, 3)
    weights = torch.randn(3, num_tokens, generator=rng).T
    send(box, x.to(device), ids.to(device), weights.to(device))
    if is_pinned:
        torch.cuda.synchronize()
    assert torch.equal(box.inputs[:num_tokens], x)
    assert torch.equal(box.ids[:num_tokens], ids)
    assert torch.equal(box.weights[:num_tokens], weights)
    assert not box.inputs[num_tokens:].any()
    assert not box.ids[num_tokens:].any()
    assert torch.equal(fetch(box, num_tokens, device).cpu(), box.results[:num_tokens])


def test_few_pairs_are_grouped_by_expert_in_one_launch(device: torch.device) -> None:
    rng = torch.Generator().manual_seed(0)
    for num_tokens, num_chosen, num_experts in ((1, 8, 32), (2, 6, 9), (4, 3, 4)):
        chosen = torch.rand(num_tokens, num_experts, generator=rng).argsort(1)[:, :num_chosen]
        ids = torch.where(torch.rand(chosen.shape, generator=rng) < 0.3, -1, chosen).int()
        order, tiles = fused_routing.fused_groups(ids.to(device), num_experts)
        groups = group_by_expert(ids, num_experts)
        num_groups = len(set(ids.flatten().tolist()) - {-1})
        assert order.tolist() == groups.order.tolist()
        assert tiles[:num_groups].tolist() == groups.tiles[:num_groups].tolist()
        assert tiles[num_groups:].tolist() == [[-1, 0, 0]] * (ids.numel() - num_groups)


def test_many_pairs_are_grouped_by_expert_in_two_launches(device: torch.device) -> None:
    rng = torch.Generator().manual_seed(0)
    for num_tokens, num_chosen, num_experts, missing in (
        (40, 8, 32, 0.3),
        (200, 6, 9, 0.0),
        (700, 3, 130, 0.9),
        (17, 4, 4, 1.0),
    ):
        chosen = torch.rand(num_tokens, num_experts, generator=rng).argsort(1)[:, :num_chosen]
        ids = torch.where(torch.rand(chosen.shape, generator=rng) < missing, -1, chosen).int()
        groups = group_by_expert(ids, num_experts)
        order, tiles = fused_routing.ordered_groups(ids.to(device), num_experts, groups.block, len(groups.tiles))
        assert order.tolist() == groups.order.tolist()
        is_tile = groups.tiles[:, 0] >= 0
        assert tiles.cpu()[is_tile].tolist() == groups.tiles[is_tile].tolist()
        assert tiles.cpu()[~is_tile].tolist() == [[-1, 0, 0]] * int((~is_tile).sum())


def test_the_fused_router_matches_the_reference_router(device: torch.device) -> None:
    v2 = {"num_experts": 40, "num_groups": 4, "num_groups_used": 2, "group_score": "max", "gating": "softmax"}
    rules = [
        replace(R1_SPEC.routing, num_experts=48, num_groups=4, num_groups_used=2, num_experts_used=5),
        replace(R1_SPEC.routing, **v2, num_experts_used=3, normalize_weights=False),
        replace(R1_SPEC.routing, num_experts=24, num_groups=1, num_groups_used=1, num_experts_used=6, gating="softmax"),
        replace(V4_FLASH_SPEC.routing, num_experts=24),
    ]
    rng = torch.Generator().manual_seed(0)
    for rule in rules:
        for bias in (None, torch.randint(-1, 2, (rule.num_experts,), generator=rng) / 2):
            for num_levels in (1, 3, 40):
                logits = torch.randint(0, num_levels, (2, rule.num_experts), generator=rng) / 4
                ids, weights = Router(rule, bias)(logits)
                found_ids, found_weights = FusedRouter(rule, None if bias is None else bias.to(device))(
                    logits.to(device)
                )
                assert found_ids.tolist() == ids.tolist()
                torch.testing.assert_close(found_weights.cpu(), weights, rtol=1e-5, atol=0)


def test_a_table_gives_the_experts_and_the_router_weighs_them(device: torch.device) -> None:
    """Also where scores vanish, and where they are large."""
    rule = replace(V4_FLASH_SPEC.routing, num_experts=24, num_experts_used=3)
    rng = torch.Generator().manual_seed(0)
    table = torch.rand(9, 24, generator=rng).argsort(1)[:, :3].int()
    token_ids, logits = torch.tensor([4, 0, 8, 4], dtype=torch.int32), torch.randn(4, 24, generator=rng)
    logits *= torch.tensor([1.0, 30.0, 5.0, 0.1])[:, None]
    found_ids, found = FusedRouter(rule, None, table.to(device))(logits.to(device), token_ids.to(device))
    assert found_ids.tolist() == table[token_ids].tolist()
    ids, weights = Router(rule, None, table)(logits, token_ids)
    assert ids.tolist() == found_ids.tolist()
    torch.testing.assert_close(found.cpu(), weights, rtol=1e-5, atol=0)
    scores = logits.double().exp().log1p().sqrt().gather(1, ids.long())
    torch.testing.assert_close(weights.double(), 1.5 * scores / scores.sum(1, keepdim=True), rtol=1e-5, atol=0)


@pytest.mark.parametrize("make", [Router, FusedRouter])
def test_nan_logits_still_give_distinct_experts(
    make: Callable[..., Router | FusedRouter], device: torch.device
) -> None:
    ids, _ = make(R1_SPEC.routing, torch.zeros(256, device=device))(torch.full((1, 256), torch.nan, device=device))
    assert len(set(ids[0].tolist())) == 8
    assert set(ids[0].tolist()) <= set(range(256))
