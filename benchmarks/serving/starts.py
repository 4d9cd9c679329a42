"""First and later starts of `ballast serve`: seconds until it is ready, by phase. One JSON line per kind of start.

python benchmarks/serving/starts.py MODEL.gguf [--name NAME] [--firsts 1] [--laters 2] [--limit_s 900]
                                    [any option of `ballast serve`]

Each first start has an empty folder for kernels and measurements; the later starts use the folder of the last one,
after its compilers have ended. `ready_s` counts from the start of the process; the phases are those of
`ballast_start_seconds`; `compiled_s` is when the last compiler ended. The model's file should be in the page cache for
all starts or for none.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from devkit.bench_record import bench_record
from devkit.servers.process import ServerProcess

WAITING = "other kernels compute prompts until these are compiled"
COMPILED = "compiler ended"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--name", default="", help="prefix of the record's case, for example the model's shape")
    parser.add_argument("--firsts", type=int, default=1, help="number of first starts")
    parser.add_argument("--laters", type=int, default=2, help="number of later starts")
    parser.add_argument("--limit_s", type=float, default=900.0, help="longest start")
    parser.add_argument("--gpu", default="", help="for the record")
    options, served = parser.parse_known_args()
    name = options.name or options.model.name
    facts = {"gpu": options.gpu} if options.gpu else {}
    facts["command"] = " ".join(["ballast serve --gguf_path", options.model.name, *served])
    command = ["--gguf_path", str(options.model), *served]
    for number in range(options.firsts):
        with TemporaryDirectory(prefix="ballast-starts-") as folder:
            kernels = kernel_folder(Path(folder))
            show(name, "first start", [one_start(command, kernels, options.limit_s)], facts)
            if number == options.firsts - 1 and options.laters:
                later = [one_start(command, kernels, options.limit_s) for _ in range(options.laters)]
                show(name, "later start", later, facts)


def kernel_folder(folder: Path) -> dict[str, str]:
    """The environment that makes a server keep compiled kernels and measurements in `folder`."""
    return {"TRITON_CACHE_DIR": str(folder / "triton"), "FLASHINFER_WORKSPACE_BASE": str(folder)}


def one_start(command: Sequence[str], kernels: Mapping[str, str], limit_s: float) -> dict[str, Any]:
    """Seconds of a start, and the names of measurements that it reused."""
    begin = time.perf_counter()
    with ServerProcess(*command, environment={**os.environ, **kernels}, until_ready=False) as server:
        server.event("ready", limit_s)
        found: dict[str, Any] = {"ready_s": round(time.perf_counter() - begin, 1)}
        started = server.event("started")
        for line in server.events:
            print(line, file=sys.stderr)
        waiting = [name for line in server.events if line["event"] == WAITING for name in line["kernels"]]
        if waiting:
            ended = server.wait_for_events(
                lambda line: line["event"] == COMPILED and line["kernels"] in waiting, len(waiting), limit_s
            )
            print(*ended, sep="\n", file=sys.stderr)
            found["compiled_s"] = round(time.perf_counter() - begin, 1)
    phases = {name: seconds for name, seconds in started.items() if name.endswith("_s")}
    return {**found, **phases, "not_measured_again": started["not_measured_again"]}


def show(name: str, kind: str, starts: Sequence[Mapping[str, Any]], facts: Mapping[str, str]) -> None:
    """Print a record. Each figure is a list with one number per start, or null where a start has none.
    `after_weights_s` is the rest of `ready_s`; `not_measured_again` names what no start measured."""
    names = dict.fromkeys(figure for start in starts for figure in start if figure.endswith("_s"))
    figures: dict[str, Any] = {figure: [start.get(figure) for start in starts] for figure in names}
    figures["after_weights_s"] = [round(start["ready_s"] - start["weights_s"], 1) for start in starts]
    print(
        bench_record(
            "serving/starts",
            f"{name}: {kind}",
            **figures,
            not_measured_again=sorted(set.intersection(*(set(start["not_measured_again"]) for start in starts))),
            **facts,
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
