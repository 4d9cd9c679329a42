"""Time of one attention layer on a GPU with our kernels and with flashinfer's, over a cache in half precision or in 8
bits: for latents of 512 + 64 numbers, and for groups of heads of width 128, given as query heads / KV heads.

python benchmarks/hybrid/attention.py [--kv_types fp16 fp8] [--heads 128 16] [--groups 32/4 64/4 96/8]
    [--batch 1 4 16] [--contexts 64 512 2048 8192 32768] [--prompts 32 128 512 4096] [--tilings 16/64/4/5 …]

"--tilings" are further ones of our kernels for decode steps: rows, keys, warps and stages.

Decode steps, which flashinfer supports for latents only, are captured over enough layers that the cache does not fit
the GPU's L2 cache. Prompts are queued as in a server. Figures are medians of 5. Prints one JSON line per case. Without
a GPU, it prints a message instead.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import torch

from ballast.host.gpu import why_unusable
from ballast.model.hybrid.attention.attention import Attention
from ballast.model.hybrid.attention.expanded import ExpandedAttention, ExpandedSizes, ExpandedWeights
from ballast.model.hybrid.attention.flashinfer_grouped import FlashinferGrouped
from ballast.model.hybrid.attention.gpu import compiled_flashinfer, paged_attention
from ballast.model.hybrid.attention.paged import PagedAttention, Tiling, Tilings
from ballast.model.hybrid.attention.sizes import GroupedSizes, LatentSizes, Sizes
from ballast.model.hybrid.attention.triton_expanded import TritonExpandedKernels
from ballast.model.switched_off import SwitchedOff
from devkit.bench_record import bench_record
from devkit.gpu_times import median_us
from devkit.kernels.attention_cases import AttentionCase, attention_case

DEVICE = torch.device("cuda:0")
COLD_BYTES = 256 << 20
LONG_FROM = 1024
"""Minimum prompt that is measured outside the latent space too."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, nargs="*", default=[128, 16])
    parser.add_argument("--groups", nargs="*", default=["32/4", "64/4", "96/8"])
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--contexts", type=int, nargs="*", default=[64, 512, 2048, 8192, 32768])
    parser.add_argument("--prompts", type=int, nargs="*", default=[32, 128, 512, 4096])
    parser.add_argument("--kv_types", nargs="*", choices=["fp16", "fp8"], default=["fp16", "fp8"])
    parser.add_argument("--tilings", nargs="*", default=[])
    options = parser.parse_args()
    reason = why_unusable("cuda:0")
    if reason is not None:
        print(f"not run: {reason}", file=sys.stderr)
        return
    models: list[Sizes] = [LatentSizes(heads, 512, 64, 0.1, 32) for heads in options.heads]
    for groups in options.groups:
        heads, kv_heads = map(int, groups.split("/"))
        models.append(GroupedSizes(heads, kv_heads, 128, 128, 0.1, 32))
    for sizes in (replace(each, is_short=kv_type == "fp8") for each in models for kv_type in options.kv_types):
        ours = paged_attention(sizes, DEVICE)
        kernels: dict[str, Attention | None] = {
            "ours": ours,
            "flashinfer": compiled_flashinfer(sizes, DEVICE, SwitchedOff()),
        }
        for tiling in options.tilings:
            singles = Tiling(*map(int, tiling.split("/")))
            processors = torch.cuda.get_device_properties(DEVICE).multi_processor_count
            tried = PagedAttention(sizes, Tilings(ours.tilings.prompts, singles), processors)
            for context in options.contexts:
                for batch in options.batch:
                    decode(f"ours {tiling}", tried, sizes, batch, context)
        for name, attend in kernels.items():
            if attend is None:
                continue
            for context in options.contexts if not isinstance(attend, FlashinferGrouped) else ():
                for batch in options.batch:
                    decode(name, attend, sizes, batch, context)
            for prompt in options.prompts:
                prefill(name, attend, sizes, prompt)
        if isinstance(sizes, LatentSizes):
            for prompt in options.prompts:
                if prompt >= LONG_FROM:
                    expanded(sizes, prompt)


@torch.inference_mode()
def decode(name: str, attend: Attention, sizes: Sizes, batch: int, context: int) -> None:
    case = attention_case(sizes, [1] * batch, [context] * batch, DEVICE, torch.float16)
    caches = [case.cache, *(case.cache.clone() for _ in range(min(31, COLD_BYTES // case.cache.nbytes)))]

    def layers() -> None:
        for cache in caches:
            attend(case.query, cache, case.step)

    attend.prepare(case.step)
    layers()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers()
    us = median_us(graph.replay) / len(caches)
    kv_bytes = batch * context * case.cache.shape[1] * case.cache.element_size()
    record(f"decode B={batch} context {context}, {named(sizes)}, {name}", us, kv_gb_per_s=kv_bytes / us / 1e3)


@torch.inference_mode()
def prefill(name: str, attend: Attention, sizes: Sizes, prompt: int) -> None:
    case: AttentionCase = attention_case(sizes, [prompt], [prompt], DEVICE, torch.float16)
    attend.prepare(case.step)
    us = median_us(lambda: attend(case.query, case.cache, case.step))
    seen = prompt * (prompt + 1) / 2
    flops = seen * sizes.num_heads * 2 * (sizes.key_dim + sizes.v_dim)
    record(f"prompt of {prompt}, {named(sizes)}, {name}", us, tflops=flops / us / 1e6)


@torch.inference_mode()
def expanded(sizes: LatentSizes, prompt: int) -> None:
    """Keys and values expanded from the latent space, by our kernels: heads of 128 + 64, and 128 for values."""
    own = ExpandedSizes(sizes.num_heads, sizes.rank, 128, sizes.rope_dim, 128, sizes.scale, sizes.block_tokens)
    case = attention_case(sizes, [prompt], [prompt], DEVICE, torch.float16)
    attend = ExpandedAttention(own, TritonExpandedKernels(own, torch.zeros((), dtype=torch.int64, device=DEVICE)), 8192)
    width = 128 * own.num_heads
    keys, values = (torch.randn(2 * own.rank, width, device=DEVICE, dtype=torch.float16) / 32 for _ in range(2))
    query = torch.randn(prompt, own.num_heads, 192, device=DEVICE, dtype=torch.float16)
    us = median_us(lambda: attend(query, ExpandedWeights(keys, values), case.cache, case.step))
    flops = prompt * (prompt + 1) / 2 * own.num_heads * 2 * 320
    record(f"prompt of {prompt}, {named(sizes)}, expanded, ours", us, tflops=flops / us / 1e6)


def named(sizes: Sizes) -> str:
    groups = "" if isinstance(sizes, LatentSizes) else f" in {sizes.num_kv_heads} groups"
    return f"{sizes.num_heads} heads{groups}{', 8 bits' if sizes.is_short else ''}"


def record(case: str, us: float, **figures: float) -> None:
    rounded = {name: round(value, 1) for name, value in figures.items()}
    gpu = torch.cuda.get_device_name(DEVICE)
    print(bench_record("hybrid/attention", case, us_per_layer=round(us, 1), **rounded, gpu=gpu), flush=True)


if __name__ == "__main__":
    main()
