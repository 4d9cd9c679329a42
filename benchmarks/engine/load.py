"""Speed of loading weights compared with the system's limits: the speed of reading the file, and of touching fresh
memory.

python benchmarks/engine/load.py [MODEL.gguf] [--threads N] [--rounds 3] [--cold] [--packed-dir DIR]

Each round reads the file like `dd bs=1M of=/dev/null` and loads the weights in a separate process. Before and after
that, a separate process touches as many bytes of fresh memory as the file has, with as many threads. A virtual machine
gets memory from its host when it first touches it. This can be far slower than everything else and varies from minute
to minute, so compare a round with the mean of its own two measurements. `--cold` drops the file from the page cache
before it is read and before it is loaded. With `--packed-dir`, a round also packs the weights into that folder and then
loads them from it; existing sets there are removed. Prints one JSON line per round.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from ballast._core import kernels
from ballast.host.filesystem import read_file_system
from ballast.host.isa import chosen_isa
from ballast.model.kept_weights import kept_weights
from ballast.model.metadata import read_spec
from ballast.model.packed_tensors import Packing
from ballast.model.weights import load_weights
from ballast.tiny import write_tiny_model
from ballast.weights.gguf import open_gguf
from ballast.weights.packed_dir import open_packed_dir
from devkit.bench_record import bench_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--packed-dir", type=Path)
    parser.add_argument("--load-once", action="store_true", help="load, print seconds and bytes, and exit")
    parser.add_argument("--touch-once", action="store_true", help="touch fresh memory, print the seconds, and exit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = options.model or write_tiny_model(Path(directory)).gguf
        if options.load_once:
            print(json.dumps(load_once(path, options.threads, options.packed_dir)))
            return
        if options.touch_once:
            print(json.dumps({"seconds": fresh_memory_seconds(path.stat().st_size, options.threads)}))
            return
        read_speed(path)  # from here on the page cache holds the file, if it fits
        for _ in range(options.rounds):
            prepare(path, cold=options.cold)
            print(record(path, options, read_speed(path)), flush=True)


def prepare(path: Path, *, cold: bool) -> None:
    if cold:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def record(path: Path, options: argparse.Namespace, read: float) -> str:
    threads = options.threads

    def in_a_process(*arguments: str) -> dict[str, float]:
        command = [sys.executable, __file__, str(path), "--threads", str(threads), *arguments]
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
        found: dict[str, float] = json.loads(ran.stdout)
        return found

    def load(*arguments: str) -> dict[str, float]:
        prepare(path, cold=options.cold)
        return in_a_process("--load-once", *arguments)

    before = in_a_process("--touch-once")["seconds"]
    loaded = load()
    after = in_a_process("--touch-once")["seconds"]
    fresh = path.stat().st_size / ((before + after) / 2)
    kept = {}
    if options.packed_dir is not None:
        for folder in options.packed_dir.glob("ballast-packed-*"):
            shutil.rmtree(folder)
        first, second = (load("--packed-dir", str(options.packed_dir))["seconds"] for _ in range(2))
        kept = {
            "kept_in": read_file_system(options.packed_dir).kind,
            "first_start_s": round(first, 3),
            "second_start_s": round(second, 3),
            "second_of_first": round(second / first, 3),
        }
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
        fresh_memory_s=[round(before, 3), round(after, 3)],
        share_of_read=round(speed / read, 3),
        share_of_read_and_fresh_memory=round(speed * (1 / read + 1 / fresh), 3),
        cpu_s=round(loaded["cpu_seconds"], 2),
        peak_growth_of_file=round(loaded["peak_growth_bytes"] / loaded["file_bytes"], 4),
        cold=options.cold,
        load_average=round(os.getloadavg()[0], 1),
        **kept,
    )


def read_speed(path: Path) -> float:
    """Bytes per second of sequential reads into one buffer."""
    buffer = bytearray(1 << 20)
    begin, total = time.perf_counter(), 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total / (time.perf_counter() - begin)


def fresh_memory_seconds(num_bytes: int, threads: int) -> float:
    """Seconds in which threads touch fresh huge pages. Each thread touches a separate part."""
    with mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory, ThreadPoolExecutor(threads) as pool:
        memory.madvise(mmap.MADV_HUGEPAGE)
        pages = np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE]
        begin = time.perf_counter()
        list(pool.map(lambda part: part.fill(1), np.array_split(pages, threads)))
        seconds = time.perf_counter() - begin
        del pages
    return seconds


def load_once(path: Path, threads: int, packed_dir: Path | None) -> dict[str, float]:
    gguf = open_gguf(path)
    spec = read_spec(gguf, None)
    packing = Packing(kernels.ThreadPool(threads), chosen_isa(), 2)
    if packed_dir is not None:
        kept = kept_weights(gguf, spec, packing.isa, (threads,))
        opened = open_packed_dir(packed_dir, gguf, packing.isa, (threads,), kept.tensors, kept.file_bytes)
        packing = replace(packing, kept=opened, kept_tensors=kept.tensors)
    before, cpu, begin = status_bytes("VmRSS"), time.process_time(), time.perf_counter()
    weights = load_weights(gguf, spec, spec.vocab_size, packing, lambda _: None)
    writing = None if packing.kept is None else packing.kept.finish()
    seconds = time.perf_counter() - begin
    if writing is not None:
        writing.join()
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
