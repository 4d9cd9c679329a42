"""Rows of a comparison that was ended early, and how another engine was built."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.peer_build import build_options

ROOT = Path(__file__).resolve().parents[2]


def row(engine: str, case: str, number: int, speed: float) -> str:
    facts = {"commit": "0123456", "command": f"{engine} run", "version": "1 (build 2)", "build": "-DGGML_CUDA=ON"}
    return json.dumps({"engine": engine, "case": case, "round": number, "tokens_per_s": speed, **facts})


def test_only_rounds_that_both_engines_finished_are_compared(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    lines = [
        row("Ballast", "m: decode B=1", 1, 20.0),
        row("Ballast", "m: decode B=1, sampled", 1, 18.0),
        row("llama.cpp", "m: decode B=1", 1, 10.0),
        row("Ballast", "m: decode B=1", 2, 24.0),
        row("llama.cpp", "m: decode B=1", 2, 8.0),
        row("Ballast", "m: decode B=1", 3, 99.0),
        row("Ballast", "m: prefill 512", 1, 99.0),
    ]
    rows.write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/peers/llama_cpp.py", "--merge", rows],
        env={"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'runtime'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    greedy, sampled = (json.loads(line) for line in done.stdout.splitlines())
    assert (greedy["ours_tokens_per_s"], greedy["theirs_tokens_per_s"]) == ([20.0, 24.0], [10.0, 8.0])
    assert (greedy["case"], greedy["ratio_of_medians"], greedy["median_of_ratios"]) == ("m: decode B=1", 2.44, 2.5)
    assert (sampled["ours_tokens_per_s"], sampled["theirs_tokens_per_s"]) == ([18.0], [10.0])
    assert greedy["peer"] == "llama.cpp 1 (build 2)"
    assert (greedy["command"], greedy["peer_command"]) == ("Ballast run", "llama.cpp run")
    assert greedy["peer_build"] == "-DGGML_CUDA=ON"


def test_the_build_options_that_matter_are_read_from_cmakes_cache(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    assert build_options(tmp_path / "bin") == ""
    cache = "# comment\nCMAKE_BUILD_TYPE:STRING=Release\nGGML_CUDA:BOOL=ON\nGGML_AVX2:BOOL=\nOTHER:BOOL=ON\n"
    (tmp_path / "CMakeCache.txt").write_text(cache)
    assert build_options(tmp_path / "bin") == "-DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON"
