"""Compares the engine with llama.cpp, run in turns on one model and the same cores: prefill, and decode at several
batch sizes. One JSON line per case follows at the end; progress goes to stderr.

BALLAST_CPU_ISA=avx2 python benchmarks/peers/llama_cpp.py MODEL.gguf LLAMA_BUILD_BIN [--rounds 3] [--threads N]

llama-batched-bench measures every case of llama.cpp. For a comparison of AVX2 kernels on a CPU with AVX-512, build
llama.cpp for AVX2 too:

cmake -S llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON \\
    -DGGML_BMI2=ON -DLLAMA_CURL=OFF
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from support.bench_record import bench_record

BATCHES = (1, 4, 16)
PROMPT = 512
TIMEOUT_S = 900
"""For one program of a round."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("llama_build_bin", type=Path, help="directory of llama-batched-bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=24, help="tokens of each reply")
    options = parser.parse_args()
    ours: dict[str, list[float]] = defaultdict(list)
    theirs: dict[str, list[float]] = defaultdict(list)
    for number in range(1, options.rounds + 1):
        for case, speed in run_ours(options).items():
            ours[case].append(speed)
        for case, speed in run_theirs(options).items():
            theirs[case].append(speed)
        speeds = (f"{case} {ours[case][-1]:.1f} ({found[-1]:.1f})" for case, found in theirs.items())
        print(f"round {number}, Ballast (llama.cpp): {', '.join(speeds)}", file=sys.stderr, flush=True)
    for case, found in theirs.items():
        print(
            bench_record(
                "engine/beside_llama_cpp",
                f"{options.model.name}: {case}",
                threads=options.threads,
                ours_tokens_per_s=ours[case],
                theirs_tokens_per_s=found,
                ratio_of_medians=round(median(ours[case]) / median(found), 2),
                median_of_ratios=round(median(a / b for a, b in zip(ours[case], found, strict=True)), 2),
            )
        )


def run_ours(options: argparse.Namespace) -> dict[str, float]:
    """Tokens per second of each case, by `decode.py`: greedy, since llama-batched-bench does not sample."""
    program = [sys.executable, str(Path(__file__).parents[1] / "engine/decode.py"), str(options.model)]
    numbers = ["--threads", options.threads, "--steps", options.steps, "--prefill", PROMPT, "--batch", *BATCHES]
    lines = output_of([*program, *map(str, numbers)]).splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    greedy = [record for record in records if not record["case"].endswith(", sampled")]
    return {record["case"].split(": ")[-1]: record["tokens_per_s"] for record in greedy}


def run_theirs(options: argparse.Namespace) -> dict[str, float]:
    """The same of llama.cpp. Prompts of 64 tokens come before decoding, as in `decode.py`."""
    # | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |
    [prefill] = rows_of(options, "-npp", PROMPT, "-ntg", 1, "-npl", 1)
    decode = rows_of(options, "-npp", 64, "-ntg", options.steps, "-npl", ",".join(map(str, BATCHES)))
    return {f"prefill {PROMPT}": float(prefill[5])} | {f"decode B={row[2]}": float(row[7]) for row in decode}


def rows_of(options: argparse.Namespace, *arguments: object) -> list[list[str]]:
    """The rows of numbers in the table that llama-batched-bench prints."""
    program = [options.llama_build_bin / "llama-batched-bench", "-m", options.model, "-t", options.threads, "-c", 4096]
    lines = output_of([str(word) for word in (*program, *arguments)]).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in rows if row[0].isdigit()]


def output_of(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}; the last of what it printed:\n{done.stdout[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
