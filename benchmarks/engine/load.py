"""Speed of loading weights, beside the system's limits: how fast the file is read, and fresh memory is handed out.

python benchmarks/engine/load.py [MODEL.gguf] [--threads N] [--rounds 3]

Each round reads the file as `dd bs=1M of=/dev/null` does, touches as many bytes of fresh memory as the file has with as
many threads, and loads the weights in a process of its own. A virtual machine gets memory from its host when it first
touches it, which can be far slower than all the rest: compare a round with its own fresh memory. One JSON line a round.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ballast._core import kernels
from ballast.host.isa import chosen_isa
from ballast.model.metadata import read_spec
from ballast.model.weights import Packing, load_weights
from ballast.tiny import write_tiny_model
from ballast.weights.gguf import open_gguf
from support.bench_record import bench_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load-once", action="store_true", help="load, print the seconds and bytes, and end")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = options.model or write_tiny_model(Path(directory)).gguf
        if options.load_once:
            print(json.dumps(load_once(path, options.threads)))
            return
        read_speed(path)  # from here on the file is in the cache, if it fits
        for _ in range(options.rounds):
            read = read_speed(path)
            fresh = fresh_memory_speed(path.stat().st_size, options.threads)
            print(record(path, options.threads, read, fresh), flush=True)


def record(path: Path, threads: int, read: float, fresh: float) -> str:
    command = [sys.executable, __file__, str(path), "--threads", str(threads), "--load-once"]
    loaded = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout)
    speed = loaded["file_bytes"] / loaded["seconds"]
    return bench_record(
        "engine/load",
        f"{path.name}, {chosen_isa()}",
        threads=threads,
        file_gb=round(loaded["file_bytes"] / 1e9, 3),
        load_s=round(loaded["seconds"], 3),
        load_gb_per_s=round(speed / 1e9, 2),
        read_gb_per_s=round(read / 1e9, 2),
        fresh_memory_gb_per_s=round(fresh / 1e9, 2),
        share_of_read=round(speed / read, 3),
        share_of_read_and_fresh_memory=round(speed * (1 / read + 1 / fresh), 3),
        cpu_s=round(loaded["cpu_seconds"], 2),
        peak_growth_of_file=round(loaded["peak_growth_bytes"] / loaded["file_bytes"], 4),
    )


def read_speed(path: Path) -> float:
    """Bytes per second of sequential reads into one buffer."""
    buffer = bytearray(1 << 20)
    begin, total = time.perf_counter(), 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total / (time.perf_counter() - begin)


def fresh_memory_speed(num_bytes: int, threads: int) -> float:
    """Bytes per second at which threads touch fresh huge pages, each a part of its own."""
    with mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory, ThreadPoolExecutor(threads) as pool:
        memory.madvise(mmap.MADV_HUGEPAGE)
        pages = np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE]
        begin = time.perf_counter()
        list(pool.map(lambda part: part.fill(1), np.array_split(pages, threads)))
        seconds = time.perf_counter() - begin
        del pages
    return num_bytes / seconds


def load_once(path: Path, threads: int) -> dict[str, float]:
    gguf = open_gguf(path)
    spec = read_spec(gguf, None)
    packing = Packing(kernels.ThreadPool(threads), chosen_isa(), 2)
    before, cpu, begin = status_bytes("VmRSS"), time.process_time(), time.perf_counter()
    weights = load_weights(gguf, spec, spec.vocab_size, packing, lambda _: None)
    seconds = time.perf_counter() - begin
    figures = {
        "file_bytes": sum(info.num_bytes for info in gguf.tensors.values()),
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu,
        "peak_growth_bytes": status_bytes("VmHWM") - before,
    }
    del weights
    return figures


def status_bytes(key: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{key}:")[1].split()[0]) * 1024


if __name__ == "__main__":
    main()
