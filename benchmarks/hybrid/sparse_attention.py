"""Time of one attention layer of DeepSeek V3.2's shape on a GPU, over chosen positions and over all positions, in half
precision: 128 heads on a latent of 512 + 64; 64 index heads of width 128, which choose 2,048 positions. Projections are
left out: except for the indexer's, both have the same.

python benchmarks/hybrid/sparse_attention.py [--batch 1 4 16] [--lengths 4096 32768 131072] [--prompt 1024]

Decode steps are captured over enough layers that the caches do not fit the GPU's L2 cache. `prompt` tokens at the end
of each length are queued like a slice of a step. Dense attention is flashinfer's if it is installed, and ours
otherwise. `index_read_share` is the read speed of the index keys as a share of the GPU's memory read speed. Figures are
medians of 5. Prints one JSON line per case. Without a GPU, it prints a message instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ballast.host.gpu import why_unusable
from ballast.model.hybrid.attention.gpu import GpuAttention, compiled_flashinfer, paged_attention
from ballast.model.hybrid.attention.sizes import LatentSizes
from ballast.model.hybrid.sparse.gpu import sparse_kernels
from ballast.model.hybrid.sparse.sizes import IndexSizes, tokens_at_once
from ballast.model.switched_off import SwitchedOff
from devkit.bench_record import bench_record
from devkit.gpu_times import median_us
from devkit.kernels.attention_cases import attention_case

DEVICE = torch.device("cuda:0")
SIZES = LatentSizes(num_heads=128, rank=512, rope_dim=64, scale=0.1, block_tokens=32)
INDEX = IndexSizes(num_heads=64, key_dim=128, top_k=2048, block_tokens=32)
COLD_BYTES = 512 << 20
READ_BYTES = 4 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--lengths", type=int, nargs="*", default=[4096, 32768, 131072])
    parser.add_argument("--prompt", type=int, default=1024, help="0: none")
    options = parser.parse_args()
    reason = why_unusable("cuda:0")
    if reason is not None:
        print(f"not run: {reason}", file=sys.stderr)
        return
    read_speed = measured_read_speed()
    for length in options.lengths:
        for batch in options.batch:
            measure(f"{batch} tokens at the end of {length}", [1] * batch, [length] * batch, read_speed)
        if options.prompt:
            measure(f"the last {options.prompt} tokens of {length}", [options.prompt], [length], read_speed)


@torch.inference_mode()
def measure(name: str, tokens: Sequence[int], lens: Sequence[int], read_speed: float) -> None:
    case = attention_case(SIZES, tokens, lens, DEVICE, torch.float16)
    step, num_tokens, is_decode = case.step, sum(tokens), max(tokens) == 1
    rng = torch.Generator(DEVICE).manual_seed(1)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, device=DEVICE)

    def copies(of: torch.Tensor) -> list[torch.Tensor]:
        """Number of layers whose caches exceed the GPU's L2 cache for single tokens, which read each cache once."""
        more = min(31, COLD_BYTES // of.nbytes) if is_decode else 0
        return [of, *(of.clone() for _ in range(more))]

    dense = GpuAttention(paged_attention(SIZES, DEVICE), compiled_flashinfer(SIZES, DEVICE, SwitchedOff()))
    choose, attend = sparse_kernels(INDEX, SIZES, torch.float16, DEVICE)
    caches, keys = copies(case.cache), copies(some(len(case.cache), INDEX.key_dim).half())
    num_layers = min(len(caches), len(keys))
    query, weights = some(num_tokens, INDEX.num_heads, INDEX.key_dim).half(), some(num_tokens, INDEX.num_heads)
    owners = torch.from_numpy(np.repeat(np.arange(len(tokens), dtype=np.int32), tokens)).to(DEVICE)
    capacity = step.requests.blocks.shape[1] * INDEX.block_tokens
    num_rows = min(num_tokens, tokens_at_once(capacity))
    scores = torch.empty((num_rows, capacity), device=DEVICE)
    chosen = torch.empty((num_tokens, INDEX.top_k), dtype=torch.int32, device=DEVICE)

    def scored(layer: int) -> None:
        for first in range(0, num_tokens, num_rows):
            rows = scores[: min(num_rows, num_tokens - first)]
            choose.score(query, weights, keys[layer], owners, step, first, rows)

    def chose(layer: int) -> None:
        for first in range(0, num_tokens, num_rows):
            choose.choose(scores[: min(num_rows, num_tokens - first)], step, first, chosen)

    def whole(layer: int) -> None:
        attend(case.query, caches[layer], choose(query, weights, keys[layer], owners, step), owners, step)

    dense.prepare(step)
    chosen.copy_(choose(query, weights, keys[0], owners, step))
    ways: dict[str, tuple[int, Callable[[int], object]]] = {
        "dense": (len(caches), lambda layer: dense(case.query, caches[layer], step)),
        "sparse": (num_layers, whole),
        "scores": (len(keys), scored),
        "choice": (num_layers, chose),
        "attention": (len(caches), lambda layer: attend(case.query, caches[layer], chosen, owners, step)),
    }
    us = {way: layer_us(count, run, is_captured=is_decode) for way, (count, run) in ways.items()}
    seen = float((step.positions + 1).sum())
    index_bytes = seen * INDEX.key_dim * 2
    figures = {f"{way}_us": round(value, 1) for way, value in us.items()}
    figures |= {
        "times_faster": round(us["dense"] / us["sparse"], 2),
        "index_tflops": round(2 * INDEX.num_heads * INDEX.key_dim * seen / us["scores"] / 1e6, 1),
    }
    if is_decode:
        figures |= {
            "index_read_share": round(index_bytes / us["scores"] * 1e6 / read_speed, 3),
            "memory_gb_per_s": round(read_speed / 1e9),
        }
    kernels = "flashinfer" if dense.has_flashinfer else "ours"
    print(bench_record("hybrid/sparse_attention", name, dense_by=kernels, **figures), flush=True)


def measured_read_speed() -> float:
    """Bytes per second of a sum or of a copy (read and written bytes); the faster of the two."""
    source = torch.zeros(READ_BYTES // 4, device=DEVICE)
    target = torch.empty_like(source)
    return 1e6 * READ_BYTES * max(1 / median_us(lambda: source.sum()), 2 / median_us(lambda: target.copy_(source)))


def layer_us(num_layers: int, run: Callable[[int], object], *, is_captured: bool) -> float:
    """Microseconds per layer, over `layers` consecutive layers."""

    def layers() -> None:
        for layer in range(num_layers):
            run(layer)

    if not is_captured:
        return median_us(layers) / num_layers
    layers()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers()
    return median_us(graph.replay) / num_layers


if __name__ == "__main__":
    main()
