"""Compare Ballast's engine with llama.cpp on one file and one machine, alternately: prefill, and decode at several
batch sizes.

python benchmarks/peers/llama_cpp.py MODEL.gguf LLAMA_BUILD_BIN [--rounds 3] [--prefill 512 4096 32768]
    [--batch 1 4 16] [--steps 200] [--case NAME] [--rows FILE] [--peer_options "…"] [any option of `ballast serve`]
python benchmarks/peers/llama_cpp.py --merge FILE...

Each round starts Ballast and stops it, then runs llama-batched-bench twice, for prompts and for decode, so one engine
at a time is in memory. Both get random tokens, and contexts of 64 tokens before decoding. Each computes its first
prompt and its first batch once before the measurement. llama-batched-bench does not sample. Ballast decodes greedily,
and sampled as DeepSeek-R1 recommends (temperature 0.6, top_p 0.95). Other options are those of `ballast serve`.

--rows appends each figure to a file as soon as it is measured. --merge makes records from such files, also from runs
that were stopped early: it uses the rounds that both engines finished. Without --merge, the records follow at the end.

To get llama.cpp, use a release of https://github.com/ggml-org/llama.cpp, or the source in the crate `llama-cpp-sys-4`
(`cargo vendor`, then vendor/llama-cpp-sys-4/llama.cpp). Version 0.11.0 of the crate has b12032, though its programs
report build 11434. Build it next to this repository:

cmake -S llama.cpp -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \\
    -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90          # both for a GPU only
ninja -C build llama-batched-bench llama-server          # LLAMA_BUILD_BIN is build/bin

For a comparison of AVX2 kernels on a CPU with AVX-512, set BALLAST_CPU_ISA=avx2 and build llama.cpp with
-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from devkit.bench_record import bench_record
from devkit.peer_build import build_options, version_of

CONTEXT = 64
"""Tokens of each request before decoding."""
OURS = Path(__file__).parents[1] / "engine/whole_model.py"
PEER_OPTIONS = "-ngl 99 -ncmoe 99 --load-mode none -fit off -fa auto -b 4096 -ub 4096"
"""Options for experts in host memory. The memory must be pinned, so mmap is off. Steps are as long as in Ballast."""

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("llama_build_bin", type=Path, nargs="?", help="directory of llama-batched-bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 4096, 32768], help="tokens of each prompt")
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--steps", type=int, default=200, help="tokens of each reply")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--case", default="", help="suffix of the records' names")
    parser.add_argument("--rows", type=Path, help="file to append each figure to")
    parser.add_argument(
        "--peer_options", default=PEER_OPTIONS, help="options of llama-batched-bench; default: %(default)s"
    )
    parser.add_argument("--merge", type=Path, nargs="+", help="make records from such files and measure nothing")
    options, serve = parser.parse_known_args()
    if options.merge:
        rows = rows_of_runs(options.merge)
    elif options.model is None or options.llama_build_bin is None:
        parser.error("MODEL.gguf and LLAMA_BUILD_BIN are required unless --merge is given")
    else:
        rows = []
        for row in measured(options, serve):
            rows.append(row)
            figure = f"{row['case']}: {row['tokens_per_s']} tok/s"
            print(f"round {row['round']}, {row['engine']}: {figure}", file=sys.stderr, flush=True)
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    for record in merged(rows):
        print(json.dumps(record))


def rows_of_runs(paths: Sequence[Path]) -> list[Row]:
    """The rows of several runs, with consecutive round numbers."""
    rows: list[Row] = []
    for path in paths:
        before = max((row["round"] for row in rows), default=0)
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows.append(row | {"round": before + row["round"]})
    return rows


def measured(options: argparse.Namespace, serve: Sequence[str]) -> Iterator[Row]:
    """A row for each figure of each round, in the order of measurement."""
    build = options.llama_build_bin
    facts: Row = {"version": version_of(build / "llama-batched-bench"), "build": build_options(build)}
    for number in range(1, options.rounds + 1):
        yield from ours(options, serve, number)
        yield from theirs(options, number, facts)


def ours(options: argparse.Namespace, serve: Sequence[str], number: int) -> Iterator[Row]:
    """Figures of Ballast's engine, each as soon as it is measured."""
    command = our_command(options, serve)
    shown = shlex.join(["python", "benchmarks/engine/whole_model.py", options.model.name, *command[3:]])
    facts: Row = {"benchmark": "peers/llama_cpp", "engine": "Ballast", "round": number, "command": shown}
    start_s = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):  # a library printed it
                continue
            record = json.loads(line)
            if start_s is None:
                start_s = record["start_s"]
                print(f"Ballast started in {start_s} s", file=sys.stderr)
            else:
                yield record | facts | {"start_s": start_s}
    if process.returncode != 0:
        sys.exit(f"{shown} ended with {process.returncode}; see its error above")


def our_command(options: argparse.Namespace, serve: Sequence[str]) -> list[str]:
    batch = max([1, *options.batch])
    cases = {"prefill": options.prefill, "batch": options.batch, "prompt": [CONTEXT], "steps": [options.steps]}
    limits = {
        "max_batch_size": [batch],
        "max_new_tokens": [options.steps + 2],
        "cache_lens": [most_tokens(options) + 64 * batch],
        "cpu_threads": [options.threads],
    }
    words = [word for name, values in (cases | limits).items() for word in (f"--{name}", *map(str, values))]
    named = ["--case", options.case] if options.case else []
    return [sys.executable, str(OURS), str(options.model), "--once", *named, *words, *serve]


def most_tokens(options: argparse.Namespace) -> int:
    """Number of tokens that the cache must hold at the same time."""
    sums: list[int] = [0, *options.prefill, *(batch * (CONTEXT + options.steps + 2) for batch in options.batch)]
    return max(sums)


def theirs(options: argparse.Namespace, number: int, facts: Row) -> Iterator[Row]:
    """The same for llama.cpp, each figure as soon as it is printed."""
    name = f"{options.model.name}{options.case and ', '}{options.case}"

    def row(case: str, speed: str, command: str) -> Row:
        figures = {"round": number, "tokens_per_s": float(speed), "command": command}
        record: Row = json.loads(bench_record("peers/llama_cpp", f"{name}: {case}", engine="llama.cpp", **figures))
        return record | facts

    if options.prefill:
        context = max(options.prefill) + 256
        words: list[object] = ["-c", context, "-npp", first_twice(options.prefill), "-ntg", 1, "-npl", 1]
        for command, cells in rows_of(options, words):
            yield row(f"prefill {cells[0]}", cells[5], command)
    if options.batch:
        # Each sequence has an equal share of the context, in whole blocks of 256 tokens.
        share = -(-(CONTEXT + options.steps) // 256) * 256
        words = ["-c", share * max(options.batch), "-npp", CONTEXT, "-ntg", options.steps]
        words += ["-npl", first_twice(options.batch)]
        for command, cells in rows_of(options, words):
            yield row(f"decode B={cells[2]}", cells[7], command)


def first_twice(values: Sequence[int]) -> str:
    """The list in the syntax of llama-batched-bench, with the case that `rows_of` skips."""
    return ",".join(map(str, [values[0], *values]))


def rows_of(options: argparse.Namespace, words: Sequence[object]) -> Iterator[tuple[str, list[str]]]:
    """The command for the record, and each row but the first of the numbers that llama-batched-bench prints: PP, TG, B,
    N_KV, T_PP s, S_PP t/s, T_TG s, S_TG t/s, T s, S t/s."""
    more = [*shlex.split(options.peer_options), "-t", str(options.threads), *map(str, words)]
    command = [str(options.llama_build_bin / "llama-batched-bench"), "-m", str(options.model), *more]
    shown = shlex.join(["llama-batched-bench", "-m", options.model.name, *more])
    last: list[str] = []
    is_first = True
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = [*last[-30:], line]
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if line.startswith("|") and cells[0].isdigit():
                if not is_first:
                    yield shown, cells
                is_first = False
    if process.returncode != 0:
        sys.exit(f"{shown} ended with {process.returncode}; the last of what it printed:\n{''.join(last)}")


def merged(rows: Sequence[Row]) -> Iterator[Row]:
    """A record for each case of Ballast, with the figures of the rounds that both engines finished. A sampled case is
    compared with the peer's greedy one."""
    for case in dict.fromkeys(row["case"] for row in rows if row["engine"] == "Ballast"):
        ours = {row["round"]: row for row in rows if row["engine"] == "Ballast" and row["case"] == case}
        peers = {
            row["round"]: row
            for row in rows
            if row["engine"] == "llama.cpp" and row["case"] == case.removesuffix(", sampled")
        }
        both = sorted(ours.keys() & peers.keys())
        if not both:
            continue
        speeds = [ours[number]["tokens_per_s"] for number in both]
        found = [peers[number]["tokens_per_s"] for number in both]
        last = peers[both[-1]]
        dropped = ("engine", "round", "tokens_per_s", "seconds", "step_s")
        yield {name: value for name, value in ours[both[-1]].items() if name not in dropped} | {
            "ours_tokens_per_s": speeds,
            "theirs_tokens_per_s": found,
            "ratio_of_medians": round(median(speeds) / median(found), 2),
            "median_of_ratios": round(median(a / b for a, b in zip(speeds, found, strict=True)), 2),
            "peer": f"llama.cpp {last['version']}",
            "peer_build": last["build"],
            "peer_command": last["command"],
        }


if __name__ == "__main__":
    main()
