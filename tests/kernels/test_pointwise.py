"""The kernels between a layer's products against torch's operations, by Triton's interpreter, and on a GPU if there is
one; compiled for a GPU that is not here.

Tolerance: sums of squares are taken in another order.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ballast.model.hybrid import pointwise_kernels, triton_pointwise
from ballast.model.hybrid.pointwise import TorchPointwise
from ballast.model.hybrid.step import Step
from ballast.model.hybrid.triton_pointwise import TritonPointwise
from ballast.model.rope import RopeTable
from support.kernels.interpreted import interpreted

ROPE = 24
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the kernels run in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    monkeypatch.setattr(triton_pointwise, "pointwise_kernels", interpreted(pointwise_kernels, monkeypatch))
    return torch.device("cpu")


@pytest.fixture
def both(device: torch.device) -> tuple[TorchPointwise, TritonPointwise]:
    """Torch's way and the kernels', with the same tables."""
    angles = np.random.default_rng(0).uniform(0, 3, (50, ROPE // 2)).astype(np.float32)
    rope = RopeTable(np.cos(angles), np.sin(angles))
    return TorchPointwise(1e-6, rope, device), TritonPointwise(1e-6, rope, device)


def random(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(device)


@pytest.mark.parametrize("num_parts", [0, 1, 2, 3])
@pytest.mark.parametrize("width", [96, 1024])
def test_parts_join_the_stream_before_it_is_normed(device, both, num_parts: int, width: int) -> None:
    parts = tuple(random(3, width, device=device) + index for index in range(num_parts))
    weight = random(width, device=device)
    streams = [random(3, width, device=device) for _ in both]
    plain, fused = (way.add_and_norm(stream, parts, weight) for way, stream in zip(both, streams, strict=True))
    torch.testing.assert_close(fused, plain, **CLOSE)
    torch.testing.assert_close(streams[1], streams[0], **CLOSE)
    assert torch.equal(streams[0], random(3, width, device=device)) == (num_parts == 0)


def test_a_part_of_wider_rows_is_normed_by_itself(device, both) -> None:
    rows, weight = random(4, 160, device=device), random(96, device=device)
    plain, fused = (way.norm(rows[:, :96], weight) for way in both)
    torch.testing.assert_close(fused, plain, **CLOSE)


@pytest.mark.parametrize(("rank", "num_heads", "dtype"), [(64, 3, torch.float32), (48, 16, torch.float16)])
def test_queries_and_keys_turn_by_their_position_and_keys_reach_their_slot(
    device, both, rank: int, num_heads: int, dtype: torch.dtype
) -> None:
    nope, joined = random(3, num_heads, rank, device=device), random(3, num_heads * 40 + rank, device=device)
    heads = joined[:, : num_heads * 40].view(3, num_heads, 40)
    latents, weight = random(3, rank + ROPE + 8, device=device)[:, : rank + ROPE], random(rank, device=device)
    nothing = torch.empty(0, dtype=torch.int64)
    positions, slots = (torch.tensor(values, dtype=torch.int32, device=device) for values in ([7, 0, 49], [9, 2, 15]))
    step = Step(positions, slots, nothing, ())
    caches = [torch.full((16, rank + ROPE), 3.0, dtype=dtype, device=device) for _ in both]
    plain, fused = (
        way.query_and_cache(nope, heads, latents, weight, cache, step) for way, cache in zip(both, caches, strict=True)
    )
    torch.testing.assert_close(fused, plain, **CLOSE)
    torch.testing.assert_close(caches[1], caches[0], rtol=1e-3 if dtype == torch.float16 else 1e-5, atol=1e-6)
    assert (caches[1] != 3.0).any(1).nonzero().flatten().tolist() == [2, 9, 15]


def test_a_gate_opens_what_goes_up(device, both) -> None:
    gate, up = random(2, 1500, device=device), random(2, 1500, device=device)
    plain, fused = (way.gated(gate, up) for way in both)
    torch.testing.assert_close(fused, plain, **CLOSE)
    both_halves = torch.cat([gate, up], 1)
    torch.testing.assert_close(both[1].gated(both_halves[:, :1500], both_halves[:, 1500:]), plain, **CLOSE)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("add_and_norm", {"PARTS": 3, "WIDTH": 7168, "STRIDE": 7168, "PADDED_WIDTH": 8192}),
        (
            "query_and_cache",
            {
                "HEAD_DIM": 192,
                "HEADS_STRIDE": 24576,
                "RANK": 512,
                "ROPE": 64,
                "LATENT_STRIDE": 576,
                "PADDED_RANK": 512,
                "PADDED_PAIRS": 32,
            },
        ),
        ("gated", {"BLOCK": 1024}),
    ],
)
@pytest.mark.usefixtures("kept_kernels")
def test_kernels_compile_for_a_gpu(name: str, known: dict[str, int]) -> None:
    kinds = {"positions": "*i32", "slots": "*i32", "cache": "*fp16", "eps": "fp32"}
    kinds |= dict.fromkeys(("num_heads", "width", "stride"), "i32")
    function = getattr(pointwise_kernels, name)
    types = {name: "constexpr" if name in known else kinds.get(name, "*fp32") for name in function.arg_names}
    compiled = triton.compile(ASTSource(function, types, constexprs=known), target=GPUTarget("cuda", 90, 32))
    assert compiled.metadata.shared <= 48 << 10
