"""Compare the engine with ik_llama.cpp, and optionally with llama.cpp, alternately on one model and the same cores:
prefill, and decode at several batch sizes.

python benchmarks/peers/ik_llama_cpp.py MODEL.gguf IK_BUILD_BIN [--llama_cpp BUILD_BIN] [--rounds 5] [--threads N]
    [--activation_bytes 2]

README.md in this folder says how both are built. Each round measures Ballast, then each peer with its fastest options:
ik_llama.cpp prefills with the file's layout and does everything else with interleaved rows (`-rtr`); llama.cpp decides
this itself. Progress goes to standard error. One JSON line per case and peer follows at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from devkit.bench_record import bench_record
from devkit.peer_build import build_options, output_of, version_of

PREFILL = "prefill 512"
SINGLE = "decode B=1"
BATCHES = (4, 8, 16)
MEMORY = ("memory_gb_per_s", "share_of_memory_speed")
"""Figures of our runs that are recorded in addition to the speed: the memory read speed right after, and the share of
it that decoding reached."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer engine, and its programs with the fastest options for each case."""

    name: str
    prefill: str
    single: str
    batches: str

    def way(self, case: str) -> str:
        return {PREFILL: self.prefill, SINGLE: self.single}.get(case, self.batches)


IK_LLAMA = Peer(
    "ik_llama.cpp",
    "llama-bench -mla 3 -fa 1 -fmoe 1 -rtr 0",
    "llama-bench -mla 3 -fa 1 -fmoe 1 -rtr 1",
    "llama-batched-bench -npp 64 -rtr -fa off",
)
LLAMA = Peer("llama.cpp", "llama-bench -fa 1", "llama-bench -fa 1", "llama-batched-bench -npp 64")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("ik_build_bin", type=Path, help="directory of llama-bench and llama-batched-bench")
    parser.add_argument("--llama_cpp", type=Path, help="the same directory of llama.cpp, which is then measured too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=24, help="tokens of each reply")
    parser.add_argument(
        "--activation_bytes",
        type=int,
        choices=(1, 2),
        help="Ballast's bytes per activation; default: by type; the peers always use one",
    )
    options = parser.parse_args()
    ours: dict[str, list[float]] = defaultdict(list)
    theirs: dict[tuple[Peer, str], list[float]] = defaultdict(list)
    peers = {IK_LLAMA: options.ik_build_bin} | ({} if options.llama_cpp is None else {LLAMA: options.llama_cpp})
    versions = {peer: version_of(folder / "llama-batched-bench") for peer, folder in peers.items()}
    records: dict[str, list[dict[str, float]]] = defaultdict(list)
    for number in range(1, options.rounds + 1):
        for case, record in run_ours(options).items():
            ours[case].append(record["tokens_per_s"])
            records[case].append(record)
        for peer, folder in peers.items():
            for case, speed in run_theirs(options, peer, folder).items():
                theirs[peer, case].append(speed)
        lines = (f"{case} {ours[case][-1]:.1f}, {peer.name} {found[-1]:.1f}" for (peer, case), found in theirs.items())
        print(f"round {number}: {', '.join(lines)}", file=sys.stderr, flush=True)
    for (peer, case), found in theirs.items():
        print(
            bench_record(
                "engine/beside_ik_llama",
                f"{options.model.name}: {case}" + ("" if peer is IK_LLAMA else f", beside {peer.name}"),
                threads=options.threads,
                activation_bytes=options.activation_bytes or "by type",
                ours_tokens_per_s=ours[case],
                theirs_tokens_per_s=found,
                ratio_of_medians=round(median(ours[case]) / median(found), 2),
                median_of_ratios=round(median(a / b for a, b in zip(ours[case], found, strict=True)), 2),
                **{name: [record[name] for record in records[case]] for name in MEMORY if name in records[case][0]},
                theirs=f"{peer.name}, {peer.way(case)}, fed random tokens",
                peer_version=versions[peer],
                peer_build=build_options(peers[peer]),
            )
        )


def run_ours(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Each case's record from `decode.py`. The peers' programs decode without sampling, so Ballast decodes greedily
    here."""
    program = [sys.executable, Path(__file__).parents[1] / "engine/decode.py", options.model]
    numbers = ["--threads", options.threads, "--steps", options.steps]
    if options.activation_bytes is not None:
        numbers += ["--activation_bytes", options.activation_bytes]
    lines = output_of([*program, *numbers, "--prefill", 512, "--batch", 1, *BATCHES], Path.cwd()).splitlines()
    measured = [json.loads(line) for line in lines if line.startswith("{")]
    greedy = [record for record in measured if not record["case"].endswith(", sampled")]
    return {record["case"].split(": ")[-1]: record for record in greedy}


def run_theirs(options: argparse.Namespace, peer: Peer, folder: Path) -> dict[str, float]:
    # | model | … | test | t/s |, and | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |
    [*_, prefill] = table(options, folder, peer.prefill, "-p", 512, "-n", 0, "-r", 2)
    [*_, single] = table(options, folder, peer.single, "-p", 0, "-n", options.steps, "-r", 2)
    arguments = ("-c", 8192, "-ntg", options.steps, "-npl", ",".join(map(str, BATCHES)))
    batches = table(options, folder, peer.batches, *arguments)
    speeds = {PREFILL: float(prefill[-1].split()[0]), SINGLE: float(single[-1].split()[0])}
    return speeds | {f"decode B={row[2]}": float(row[7]) for row in batches if row[0] == "64"}


def table(options: argparse.Namespace, folder: Path, way: str, *more: object) -> list[list[str]]:
    """The rows of the tables that a peer's program prints, on either stream."""
    program, *flags = way.split()
    command = [folder.resolve() / program, *flags, "-m", options.model.resolve(), "-t", options.threads]
    with TemporaryDirectory() as directory:  # for the log files that it writes
        lines = output_of([*command, *more], Path(directory)).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


if __name__ == "__main__":
    main()
