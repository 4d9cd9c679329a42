"""The attention kernel for single tokens against the plain way, by Triton's interpreter, and on a GPU if there is one;
compiled for GPUs that are not here.

Tolerance: both sum float32 products of the same numbers in float32, on tensor cores with 2⁻²⁰ of each left out.
"""

from __future__ import annotations

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ballast.model.hybrid import attention_kernels, decode_attention
from ballast.model.hybrid.attention import latent_attention
from ballast.model.hybrid.decode_attention import GpuAttention, kernel_constants
from ballast.model.hybrid.step import DecodeRows, RequestRows, Step
from ballast.testing.interpreted import interpreted

BLOCK_TOKENS = 16


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the kernel runs in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    monkeypatch.setattr(decode_attention, "attention_kernels", interpreted(attention_kernels, monkeypatch))
    return torch.device("cpu")


@pytest.mark.parametrize(
    ("rank", "rope", "heads", "lens"),
    [(512, 64, 4, [1, 90]), (64, 16, 20, [16, 17, 60]), (48, 24, 3, [2, 300])],
)
def test_single_tokens_attend_as_the_plain_way_has_them(device, rank, rope, heads, lens) -> None:
    rng = torch.Generator().manual_seed(len(lens) + rank)
    num_blocks = [-(-length // BLOCK_TOKENS) for length in lens]
    order = torch.randperm(sum(num_blocks), generator=rng) + 1
    cache = torch.randn((len(order) + 1) * BLOCK_TOKENS, rank + rope, generator=rng).half().to(device)
    # A prefill of three tokens stands before the single ones, on blocks of the last of them.
    query = torch.randn(3 + len(lens), heads, rank + rope, generator=rng).to(device)
    blocks = torch.zeros(len(lens), max(num_blocks), dtype=torch.int32)
    contexts = []
    for index, own in enumerate(order.split(num_blocks)):
        blocks[index, : len(own)] = own
        slots = (own[:, None] * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS)).flatten()
        contexts.append(slots[: lens[index]].to(device))
    positions = torch.tensor([0, 1, 2, *(length - 1 for length in lens)], device=device)
    nothing = torch.empty(0, dtype=torch.int64)
    prefill = RequestRows(0, 3, contexts[-1][:3] if lens[-1] >= 3 else torch.arange(3, device=device))
    singles = tuple(RequestRows(3 + index, 4 + index, context) for index, context in enumerate(contexts))
    expected = latent_attention(query, cache, Step(positions, nothing, nothing, (prefill, *singles)), rank, 0.1)

    rows = torch.arange(3, 3 + len(lens), dtype=torch.int32, device=device)
    host_lens = torch.tensor(lens, dtype=torch.int32)
    decode = DecodeRows(rows, host_lens.to(device), blocks.to(device), host_lens.numpy(), blocks.numpy())
    attend = GpuAttention(rank, rope, 0.1, BLOCK_TOKENS)
    found = attend(query, cache, Step(positions, nothing, nothing, (prefill,), decode))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("capability", "most_shared_bytes"), [(89, 99 << 10), (90, 227 << 10)])
def test_the_kernel_compiles_for_gpus_and_fits_their_shared_memory(
    tmp_path, monkeypatch, capability, most_shared_bytes
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    known = kernel_constants(512, 64, 32)
    num_stages = known.pop("num_stages")
    pointers = {"query": "*fp32", "cache": "*fp16", "rows": "*i32", "lens": "*i32", "blocks": "*i32", "sums": "*fp32"}
    pointers |= {"peaks": "*fp32", "scale": "fp32"}
    function = attention_kernels.decode_attention
    types = {name: "constexpr" if name in known else pointers.get(name, "i32") for name in function.arg_names}
    aligned = {(index,): [["tt.divisibility", 16]] for index, kind in enumerate(types.values()) if kind[0] == "*"}
    compiled = triton.compile(
        ASTSource(function, types, constexprs=known, attrs=aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_stages": num_stages},
    )
    assert compiled.metadata.shared <= most_shared_bytes
    assert "mma" in compiled.asm["ptx"], "products are made on tensor cores"
