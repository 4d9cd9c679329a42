"""The sizes of warm-up steps use every kernel that any step uses, as Triton tells kernels
apart: by constants, types, alignment and divisibility. Nothing is compiled or launched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as T
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import KernelInterface

from ballast._core import kernels
from ballast.model.hybrid.experts.division import MAX_SHARED_TOKENS, phase_of
from ballast.model.hybrid.experts.fused_routing import FEW_PAIRS, fused_divide, fused_groups
from ballast.model.hybrid.experts.products.expert_panels import ExpertPanels, group_by_expert
from ballast.model.hybrid.handoff import transport_kernels
from ballast.model.hybrid.handoff.transport import Mailbox, carried
from ballast.model.hybrid.panels.panel_linear import TUNED_TOKENS, PanelLinear
from ballast.model.hybrid.panels.product_sizes import MIN_CUBLAS_TOKENS
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.startup.warmup_sizes import sizes_for_experts, sizes_for_steps, smallest_for_experts
from devkit.models.random_blocks import random_blocks

CPU = torch.device("cpu")
HIDDEN, EXPERTS = 256, 12
MOST = 1100
COUNTS = [*range(1, 170), 200, 1023, 1024, 1025, 1099, MOST]


class Hopper:
    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What has been asked for since it was emptied; nothing runs."""
    requested: set[str] = set()
    binders: dict[int, Callable[..., Any]] = {}
    monkeypatch.setattr(driver, "_active", Hopper())

    def launch(kernel: Any, *arguments: Any, **known: Any) -> None:
        if id(kernel) not in binders:
            *_, binders[id(kernel)] = kernel.create_binder()
        _, specialization, options = binders[id(kernel)](*arguments, debug=False, **known)
        requested.add(f"{kernel.fn.__name__} {specialization} {options}")

    monkeypatch.setattr(KernelInterface, "__getitem__", lambda kernel, grid: partial(launch, kernel))
    return requested


def check(launched: set[str], run: Callable[[int], None], counts: list[int]) -> None:
    """Runs `run` with each of these numbers of tokens. None needs a kernel that `counts` have not requested."""
    for count in counts:
        run(count)
    warmed_up = set(launched)
    assert warmed_up
    for count in COUNTS:
        launched.clear()
        run(count)
        assert launched <= warmed_up, f"{count} tokens"


@pytest.mark.parametrize("kind", [T.Q4_K, T.Q6_K, T.BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize(("heads", "by_int_gemm"), [(1, False), (2, True)])
def test_linears(rng, pool, launched, kind, heads, by_int_gemm) -> None:
    rows = 48
    matrix = kernels.Matrix(random_blocks(rng, kind, heads * rows, HIDDEN), kind, heads * rows, HIDDEN)
    packed = kernels.pack(
        pool, matrix, kernels.usable_isas()[0], activation_bytes=1, num_heads=heads, head_stride=rows, num_rows=rows
    )
    linear = PanelLinear(packed, rows, HIDDEN, is_transposed=False, device=CPU)
    linear.int_gemm_tokens = frozenset(TUNED_TOKENS[::2] if by_int_gemm else ())
    check(launched, lambda count: linear(torch.zeros(count, heads, HIDDEN)), sizes_for_steps(MOST, 6, EXPERTS))


@pytest.mark.parametrize("num_used", [1, 3, 6, 8])
def test_experts_and_their_way_there(rng, pool, launched, num_used) -> None:
    stacks = []
    for rows, cols in ((HIDDEN, HIDDEN),) * 3:
        matrix = kernels.Matrix(random_blocks(rng, T.Q4_K, EXPERTS * rows, cols), T.Q4_K, EXPERTS * rows, cols)
        packed = kernels.pack(
            pool,
            matrix,
            kernels.usable_isas()[0],
            activation_bytes=1,
            num_heads=EXPERTS,
            head_stride=rows,
            num_rows=rows,
        )
        stacks.append(PanelStack(torch.from_numpy(packed.panels.copy()), T.Q4_K, EXPERTS, rows, cols))
    experts = ExpertPanels(*stacks)
    box = Mailbox(
        *(
            torch.zeros(MOST, size, dtype=kind)
            for size, kind in (
                (HIDDEN, torch.float32),
                (num_used, torch.int32),
                (num_used, torch.float32),
                (HIDDEN, torch.float32),
            )
        )
    )
    send, fetch = carried(transport_kernels)
    slots, share, across = torch.zeros(EXPERTS, dtype=torch.int32), torch.tensor(0.25), torch.tensor(0)

    def run(count: int) -> None:
        ids = torch.arange(count * num_used, dtype=torch.int32).view(count, num_used) % EXPERTS
        x, weights = torch.zeros(count, HIDDEN), torch.zeros(count, num_used)
        division = fused_divide(ids, slots, share if count <= MAX_SHARED_TOKENS else None, phase_of(0), across)
        send(box, x, division.on_host, weights)
        fetch(box, count, CPU)
        division.gpu_slots.copy_(ids)
        experts(x, division.gpu_slots, weights)
        if count <= group_by_expert(ids, EXPERTS).block and ids.numel() <= FEW_PAIRS:
            fused_groups(division.gpu_slots, EXPERTS)

    check(launched, run, sizes_for_steps(MOST, num_used, EXPERTS))

    def requested(sizes: list[int]) -> set[str]:
        launched.clear()
        for count in sizes:
            ids = torch.zeros(count, num_used, dtype=torch.int32)
            experts(torch.zeros(count, HIDDEN), ids, torch.zeros(count, num_used))
        return set(launched)

    smallest = smallest_for_experts(MOST, num_used, EXPERTS)
    assert requested(smallest) == requested(sizes_for_experts(MOST, num_used, EXPERTS))
    assert requested(smallest[:-1]) != requested(smallest)


def test_warmup_sizes_cover_ranges_and_include_the_maximum() -> None:
    assert sizes_for_experts(4096, 8, 256) == [1, 2, 3, 5, 9, 17, 65, 129, 257, 4096]
    assert sizes_for_experts(16384, 8, 256) == [1, 2, 3, 5, 9, 17, 65, 129, 257, 16384]
    assert smallest_for_experts(16384, 8, 256) == [1, 2, 3, 5, 9, 17, 65, 129, 257, 4096]
    assert sizes_for_experts(1, 8, 256) == [1]
    assert {2, 5, MIN_CUBLAS_TOKENS, 4096} <= set(sizes_for_steps(4096, 6, 64))
    assert sizes_for_steps(7, 8, 256) == [1, 2, 3, 7]
