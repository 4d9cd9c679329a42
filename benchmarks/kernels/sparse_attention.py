"""Speed of a decode step's attention in one layer of DeepSeek V3.2's shape, over chosen positions and over all
positions. Prints one JSON line per length and instruction set.

128 heads on a latent of 512 + 64; 64 index heads of width 128, which choose 2048 positions. Projections are left out,
because both have the same. `index_read_share` is the read speed of the index keys as a share of the speed at which
threads read memory.

python benchmarks/kernels/sparse_attention.py [--threads N] [--isa NAME] [--lengths N ...]
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels
from devkit.bench_record import bench_record
from devkit.timing import best_of

I32 = NDArray[np.int32]

HEADS, RANK, ROPE = 128, 512, 64
INDEX_HEADS, INDEX_WIDTH, TOP_K = 64, 128, 2048
BLOCK_TOKENS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", choices=kernels.usable_isas())
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 32768, 131072])
    options = parser.parse_args()
    pool = kernels.ThreadPool(options.threads)
    read_speed = kernels.measure_read_speed(pool, 256 << 20)
    for isa in [options.isa] if options.isa else kernels.usable_isas()[:1]:
        for length in options.lengths:
            layer = Layer(pool, isa, length)
            dense, index, sparse = map(best_of, (layer.dense, layer.index, layer.sparse))
            figures = {
                "dense_seconds": round(dense, 6),
                "sparse_seconds": round(index + sparse, 6),
                "index_seconds": round(index, 6),
                "times_faster": round(dense / (index + sparse), 2),
                "index_gflops": round(2 * INDEX_HEADS * INDEX_WIDTH * length / index / 1e9, 1),
                "index_read_share": round(layer.index_bytes / index / read_speed, 3),
            }
            case = f"a token at the end of {length}"
            record = bench_record("kernels/sparse_attention", case, isa=isa, threads=options.threads, **figures)
            print(record, flush=True)


class Layer:
    """One token's queries, and its cache in scattered blocks."""

    def __init__(self, pool: kernels.ThreadPool, isa: str, length: int) -> None:
        rng = np.random.default_rng(0)
        num_blocks = -(-length // BLOCK_TOKENS)
        num_slots = num_blocks * BLOCK_TOKENS
        self._pool, self._isa = pool, isa
        self._query = rng.standard_normal((1, HEADS, RANK + ROPE), dtype=np.float32)
        self._cache = rng.standard_normal((num_slots, RANK + ROPE), dtype=np.float32)
        self._index_query = rng.standard_normal((1, INDEX_HEADS, INDEX_WIDTH), dtype=np.float32)
        self._weights = rng.standard_normal((1, INDEX_HEADS), dtype=np.float32)
        self._keys = rng.standard_normal((num_slots, INDEX_WIDTH), dtype=np.float32)
        self._tables = (
            np.array([0, 1], np.int32),
            np.array([length - 1], np.int32),
            np.array([0, num_blocks], np.int32),
            rng.permutation(num_blocks).astype(np.int32),
        )
        self._chosen = np.zeros((1, TOP_K), np.int32)
        self._num_chosen = np.zeros(1, np.int32)
        self._out = np.empty((1, HEADS, RANK), np.float32)
        self.index_bytes = length * INDEX_WIDTH * 4

    def dense(self) -> None:
        self._attend()

    def index(self) -> None:
        arrays = (self._index_query, self._weights, self._keys, BLOCK_TOKENS, *self._tables)
        kernels.choose_positions(self._pool, *arrays, self._chosen, self._num_chosen, isa=self._isa)

    def sparse(self) -> None:
        self._attend(self._chosen, self._num_chosen)

    def _attend(self, chosen: I32 | None = None, num_chosen: I32 | None = None) -> None:
        kernels.mla_attention(
            self._pool,
            self._query,
            self._cache,
            BLOCK_TOKENS,
            *self._tables,
            value_dim=RANK,
            scale=(RANK + ROPE) ** -0.5,
            out=self._out,
            isa=self._isa,
            chosen=chosen,
            num_chosen=num_chosen,
        )


if __name__ == "__main__":
    main()
