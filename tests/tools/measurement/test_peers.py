"""Comparison with another engine: rows of an interrupted run, and how the other engine was built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import gguf
import gguf.quants
import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType

from ballast.model.metadata import read_spec
from ballast.weights.gguf import open_gguf
from benchmarks.peers.greedy_text import differences, write_floats
from devkit.models.written import tiny_model, write_tiny_model
from devkit.peer_build import build_options, source_of_build

ROOT = Path(__file__).resolve().parents[3]
ENGINES = ("Ballast", "llama.cpp")
BATCHED_BENCH = """#!/bin/sh
[ "$1" != --version ] || { echo "version: 0.1 (build 7)"; exit; }
while [ $# -gt 1 ]; do
  case $1 in -npp) prompts=$2 ;; -npl) batches=$2 ;; esac
  shift
done
speed=0
for prompt in $(echo "$prompts" | tr , ' '); do
  for batch in $(echo "$batches" | tr , ' '); do
    speed=$((speed + 1))
    echo "| $prompt | 4 | $batch | 0 | 0 | $speed | 0 | $speed | 0 | 0 |"
  done
done
"""
"""Prints rows like llama-batched-bench; its speeds are 1, 2, 3 ..."""


def compare(*words: object, program: str = "llama_cpp.py") -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/peers" / program, *map(str, words)],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


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
    greedy, sampled = compare("--merge", rows)
    assert (greedy["ours_tokens_per_s"], greedy["theirs_tokens_per_s"]) == ([20.0, 24.0], [10.0, 8.0])
    assert (greedy["case"], greedy["ratio_of_medians"], greedy["median_of_ratios"]) == ("m: decode B=1", 2.44, 2.5)
    assert (sampled["ours_tokens_per_s"], sampled["theirs_tokens_per_s"]) == ([18.0], [10.0])
    assert greedy["peer"] == "llama.cpp 1 (build 2)"
    assert (greedy["command"], greedy["peer_command"]) == ("Ballast run", "llama.cpp run")
    assert greedy["peer_build"] == "-DGGML_CUDA=ON"


def test_rounds_of_several_runs_are_compared_together(tmp_path: Path) -> None:
    for run, speeds in {"first": (20.0, 10.0), "second": (30.0, 10.0)}.items():
        lines = [row(engine, "m: prefill 512", 1, speed) for engine, speed in zip(ENGINES, speeds, strict=True)]
        (tmp_path / run).write_text("\n".join(lines) + "\n")
    (record,) = compare("--merge", tmp_path / "first", tmp_path / "second")
    assert (record["ours_tokens_per_s"], record["theirs_tokens_per_s"]) == ([20.0, 30.0], [10.0, 10.0])


def test_both_engines_compute_the_first_case_once_before_they_are_measured(tmp_path: Path) -> None:
    peer = tmp_path / "llama-batched-bench"
    peer.write_text(BATCHED_BENCH)
    peer.chmod(0o755)
    model = write_tiny_model(tmp_path).gguf
    rows = tmp_path / "rows.jsonl"
    sizes = ["--prefill", 16, 24, "--batch", 1, 2, "--steps", 4, "--rounds", 2, "--threads", 1]
    records = compare(model, tmp_path, *sizes, "--rows", rows)
    assert [(record["case"].split(": ")[1], record["theirs_tokens_per_s"]) for record in records] == [
        ("prefill 16", [2, 2]),
        ("prefill 24", [3, 3]),
        ("decode B=1", [2, 2]),
        ("decode B=1, sampled", [2, 2]),
        ("decode B=2", [3, 3]),
        ("decode B=2, sampled", [3, 3]),
    ]
    assert all(min(record["ours_tokens_per_s"]) > 0 for record in records)
    engines = [json.loads(line)["engine"] for line in rows.read_text().splitlines()]
    assert engines == (["Ballast"] * 6 + ["llama.cpp"] * 4) * 2


def test_the_build_options_that_matter_are_read_from_cmakes_cache(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    assert build_options(tmp_path / "bin") == ""
    cache = "# comment\nCMAKE_BUILD_TYPE:STRING=Release\nGGML_CUDA:BOOL=ON\nGGML_AVX2:BOOL=\nOTHER:BOOL=ON\n"
    (tmp_path / "CMakeCache.txt").write_text(cache)
    assert build_options(tmp_path / "bin") == "-DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON"


def test_the_source_of_a_build_is_read_from_cmakes_cache(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for cache in ("", "CMAKE_HOME_DIRECTORY:INTERNAL=/nowhere\n"):
        (tmp_path / "CMakeCache.txt").write_text(cache)
        with pytest.raises(SystemExit, match=r"CMakeCache\.txt"):
            source_of_build(tmp_path / "bin")
    (tmp_path / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={tmp_path}\n")
    assert source_of_build(tmp_path / "bin") == tmp_path


def test_tokens_that_another_engine_would_not_choose_are_found_with_their_distance() -> None:
    logits = np.array([[1, 4, 0], [8, 2, 6], [5, 5, 0]], np.float32)
    assert differences(logits, (1, 0, 0)) == differences(logits, (1, 0, 1)) == []
    assert differences(logits, (0, 2, 0)) == [(0, 0.75), (1, 0.25)]


@pytest.mark.parametrize(("arch", "rates"), [("kimilinear", (4, 1)), ("glm53flash", (4,)), ("v4", ())])
def test_a_copy_has_the_values_and_a_conversions_dimensions(tmp_path: Path, arch: str, rates: tuple[int, ...]) -> None:
    file = tiny_model(arch=arch, quant="q8_0").gguf
    before, after = (gguf.GGUFReader(each) for each in (file, write_floats(file, tmp_path / "floats.gguf")))
    types = {tensor.name: tensor.tensor_type for tensor in before.tensors}
    assert GgmlType.Q8_0 in types.values()
    for tensor, old in zip(after.tensors, before.tensors, strict=True):
        is_table = old.tensor_type == GgmlType.I32
        assert is_table == tensor.name.endswith("ffn_gate_tid2eid.weight")
        assert tensor.tensor_type == (GgmlType.I32 if is_table else GgmlType.F32)
        values = old.data if is_table else gguf.quants.dequantize(old.data, old.tensor_type)
        assert np.array_equal(tensor.data.ravel(), values.ravel()), tensor.name
    shapes = {tensor.name: tensor.data.shape for tensor in after.tensors}
    if rates:
        assert shapes["blk.0.ssm_a"] == rates
        assert shapes["blk.0.ssm_conv1d_q.weight"][1] == 1
    assert read_spec(open_gguf(tmp_path / "floats.gguf")) == read_spec(open_gguf(file))


KT_PYTHON = """#!/bin/sh
echo "a line that kt-kernel prints"
echo '{"version": "0.7.2", "ms": {"1": 30000.0}}'
echo "$@" >> "$(dirname "$0")/words"
"""
"""Stands for an interpreter with kt-kernel that needs half a minute per token."""


def test_layers_of_kt_kernel_are_compared_by_method(tmp_path: Path) -> None:
    kt_python = tmp_path / "python"
    kt_python.write_text(KT_PYTHON)
    kt_python.chmod(0o755)
    words = ("--methods", "gguf", "int8", "--tokens", 1, "--rounds", 2, "--threads", 1)
    records = compare(kt_python, *words, program="ktransformers.py")
    assert [record["case"] for record in records] == ["R1's shape, gguf: 1 tokens", "R1's shape, int8: 1 tokens"]
    for record in records:
        assert record["theirs_ms"] == [30000.0, 30000.0]
        assert len(record["ours_ms"]) == 2
        assert record["ratio_of_medians"] == round(30000 / median(record["ours_ms"]), 2)
        assert record["peer"] == "kt-kernel 0.7.2"
    called = (tmp_path / "words").read_text().splitlines()
    assert [line.split()[1] for line in called] == ["gguf", "gguf", "int8", "int8"]
    assert {line.partition(" ")[2].partition(" ")[2] for line in called} == {"1 64 8 7168 2048 12 1"}


def test_choices_explain_every_recorded_text_that_differs() -> None:
    """Texts of the newest records are equal with float32 weights, and with quantised ones if there is no choice."""
    lines = (ROOT / "benchmarks/results/greedy_text.jsonl").read_text().splitlines()
    newest = {record["case"]: record for record in map(json.loads, lines)}
    for case, record in newest.items():
        assert record["equal"] == record["texts"], case
        assert not record["quantised_wrong"] or record["unchosen_equal"] == record["texts"], case
