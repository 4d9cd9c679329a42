"""`make fuzz`: reads thousands of damaged files. The exit code is 1 if a case ends with an exit code other than 0, 2, 3
or 4."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tools.fuzz.targets import TARGETS
from tools.fuzz.workers import Outcome, make_case, run_all

COUNTS = {"gguf": 50_000, "config": 5_000, "tokenizer": 5_000, "rules": 5_000, "options": 5_000}
FINDINGS = Path("build/fuzz")
_SHOWN = 3


def main() -> int:
    options = _options()
    if options.only is not None:
        return _run_one(options.kinds[0], options.seed, options.only)
    problems: dict[str, list[Outcome]] = defaultdict(list)
    for kind in options.kinds:
        count = options.count or COUNTS[kind]
        deadline = time.monotonic() + options.seconds / len(options.kinds) if options.seconds else None
        codes: Counter[str] = Counter()
        began, slowest = time.monotonic(), 0.0
        for outcome in run_all(kind, options.seed, _until(count, deadline), options.workers):
            codes[str(outcome.codes.get("serve", outcome.problem))] += 1
            slowest = max(slowest, outcome.seconds)
            if outcome.problem is not None:
                problems[f"{kind}: {_cause(outcome)}"].append(outcome)
        took = time.monotonic() - began
        summary = ", ".join(f"{code}: {number}" for code, number in sorted(codes.items()))
        print(
            f"{kind}: {codes.total()} cases in {took:.0f} s, at most {slowest:.2f} s of CPU; exit codes {summary}",
            flush=True,
        )
    return _report(problems, options.seed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument(
        "kinds", nargs="*", default=list(COUNTS), help=f"kinds of files: {', '.join(TARGETS)}; default: all"
    )
    parser.add_argument("--seed", type=int, default=20, help="seed of the cases; default: %(default)s")
    parser.add_argument("--count", type=int, help="cases of each kind; default: 50,000 of gguf, 5,000 of others")
    parser.add_argument("--seconds", type=float, help="stop after this time, over all kinds; default: no limit")
    parser.add_argument("--only", type=int, metavar="N", help="run case N of one kind, and show its output")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: %(default)s")
    options = parser.parse_args()
    unknown = set(options.kinds) - TARGETS.keys()
    if unknown:
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    return options


def _until(count: int, deadline: float | None) -> Iterator[int]:
    return itertools.takewhile(lambda _: deadline is None or time.monotonic() < deadline, range(count))


def _run_one(kind: str, seed: int, number: int) -> int:
    """Run one case. Keeps its files for inspection, or as a test."""
    folder = _kept(kind, seed, number)
    (outcome,) = run_all(kind, seed, [number], 1)
    print(
        f"{outcome.output}{outcome.codes} in {outcome.seconds:.2f} s; {outcome.problem or 'as it should be'}: {folder}"
    )
    return outcome.problem is not None


def _kept(kind: str, seed: int, number: int) -> Path:
    folder = FINDINGS / f"{kind}-{seed}-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    make_case(kind, seed, number, folder)
    return folder


def _cause(outcome: Outcome) -> str:
    """The key by which findings are grouped: the last line of a traceback, and where it was raised."""
    places = re.findall(r'File ".*?([\w/]+\.py)", line (\d+)', outcome.output)
    lines = [line for line in outcome.output.splitlines() if line.startswith("ballast: internal error")]
    summary = f"{lines[-1][:100]} at {places[-1][0]}:{places[-1][1]}" if lines and places else ""
    return f"{outcome.problem} {summary}"


def _report(problems: dict[str, list[Outcome]], seed: int) -> int:
    for cause, outcomes in sorted(problems.items(), key=lambda item: -len(item[1])):
        print(f"\n{len(outcomes)} x {cause}")
        for outcome in outcomes[:_SHOWN]:
            print(f"    {_kept(outcome.kind, seed, outcome.number)}")
    print(f"\n{sum(map(len, problems.values()))} findings")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
