"""Memory read speed of the threads by buffer size. Prints one JSON line per size.

python benchmarks/kernels/read_speed.py [--threads N] [--gib 1 2 4 16 48] [--turns 2]

Small buffers are partly in the last-level cache. The weights of a large model are not, and on a virtual machine the
address translation of that much memory also takes time.
"""

from __future__ import annotations

import argparse
import os

from ballast._core import kernels
from devkit.bench_record import bench_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--gib", type=int, nargs="*", default=[1, 2, 4, 16, 48])
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    pool = kernels.ThreadPool(options.threads)
    speeds: dict[int, list[float]] = {gib: [] for gib in options.gib}
    for _ in range(options.turns):
        for gib, found in speeds.items():
            found.append(round(kernels.measure_read_speed(pool, gib << 30) / 1e9, 1))
    for gib, found in speeds.items():
        case = f"{gib} GiB, {options.threads} threads"
        print(bench_record("kernels/read_speed", case, threads=options.threads, gb_per_s=found))


if __name__ == "__main__":
    main()
