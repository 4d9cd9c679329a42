"""Compare two builds of the CPU kernels alternately: one linear layer, one thread, weights in or beyond the caches
(`--rows`). Prints one JSON line per case.

Each build runs in a separate process. Each turn measures both, and the order alternates. Ratios above 1 mean that the
second build is faster: the ratio of the best turns, and the median of the ratios per turn.

python benchmarks/kernels/turns.py BEFORE.so NOW.so [--format Q2_K Q3_K] [--tokens 1 4 16] [--isa avx512] [--rows 1024]

BEFORE.so and NOW.so are `_core` modules, which a build puts into the package's folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time

import numpy as np
from gguf import GGMLQuantizationType as GgmlType

COLS = 2048
BUDGET_S = 0.12


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "--serve":
        serve(sys.argv[2])
        return
    from devkit.bench_record import bench_record

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("builds", nargs=2)
    parser.add_argument("--format", nargs="*", default=["Q2_K", "Q3_K"])
    parser.add_argument("--tokens", nargs="*", type=int, default=[1, 4, 16])
    parser.add_argument("--isa", nargs="*", default=["avx512"])
    parser.add_argument("--activation_bytes", nargs="*", type=int, default=[2])
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    servers = [Server(build) for build in args.builds]
    for isa in args.isa:
        for name in args.format:
            for num_bytes in args.activation_bytes:
                for num_tokens in args.tokens:
                    case = f"{isa}, {name} {args.rows} x {COLS}, {num_bytes} bytes an activation, {num_tokens} tokens"
                    question = [name, args.rows, isa, num_bytes, num_tokens]
                    figures = take_turns(servers, question, args.turns)
                    print(bench_record("kernels/turns", case, threads=1, turns=args.turns, **figures), flush=True)
    for server in servers:
        server.close()


def take_turns(servers: list[Server], question: list[object], turns: int) -> dict[str, float]:
    seconds: list[list[float]] = [[], []]
    num_bytes = 0.0
    for turn in range(turns):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            taken, num_bytes = servers[which].ask(question)
            seconds[which].append(taken)
    before, now = (min(each) for each in seconds)
    return {
        "before_gb_per_s": round(num_bytes / before / 1e9, 2),
        "now_gb_per_s": round(num_bytes / now / 1e9, 2),
        "ratio_of_best": round(before / now, 3),
        "median_ratio_of_turns": round(statistics.median(a / b for a, b in zip(*seconds, strict=True)), 3),
    }


class Server:
    """A process that measures with one build."""

    def __init__(self, build: str) -> None:
        command = [sys.executable, __file__, "--serve", build]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: list[object]) -> tuple[float, float]:
        """Returns the seconds of the fastest call and the bytes of the weights."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        seconds, num_bytes = json.loads(self._process.stdout.readline())
        return seconds, num_bytes

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=30)


def serve(build: str) -> None:
    spec = importlib.util.spec_from_file_location("ballast._core", build)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ballast._core"] = module
    spec.loader.exec_module(module)
    from devkit.kernels.cases import matrix_of

    kernels = module.kernels
    pool = kernels.ThreadPool(1)
    packed: dict[str, object] = {}
    for line in sys.stdin:
        name, rows, isa, num_bytes, num_tokens = json.loads(line)
        key = f"{name} {rows} {isa} {num_bytes}"
        if key not in packed:
            packed.clear()
            packed[key] = kernels.pack(pool, matrix_of(GgmlType[name], rows, COLS), isa, activation_bytes=num_bytes)
        weight = packed[key]
        x = np.random.default_rng(0).standard_normal((num_tokens, COLS), dtype=np.float32)
        out = np.empty((num_tokens, rows), np.float32)
        times: list[float] = []
        while len(times) < 3 or sum(times) < BUDGET_S:
            begin = time.perf_counter()
            kernels.linear(pool, x, weight, out)
            times.append(time.perf_counter() - begin)
        print(json.dumps([min(times), weight.nbytes]), flush=True)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
