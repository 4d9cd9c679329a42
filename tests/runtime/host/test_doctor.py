"""The doctor prints one line per fact, and exits with 1 only if Ballast cannot run."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ballast
from ballast._core.numa import Node, Topology
from ballast.host.cgroup import CpuQuota
from ballast.host.doctor import Finding, Software, diagnose, read_software, render, run
from ballast.host.machine import HugePages, Machine, Memory, NumaNode

GIB = 1 << 30

MACHINE = Machine(
    topology=Topology([Node(0, [0, 1, 4, 5], [[0, 4], [1]]), Node(1, [2, 3, 6, 7], [])]),
    cpu_model="Xeon Gold",
    cpu_flags=("avx2", "fma", "avx512f"),
    nodes=(
        NumaNode(0, frozenset({0, 1, 4, 5}), 64 * GIB, 32 * GIB),
        NumaNode(1, frozenset({2, 3, 6, 7}), 64 * GIB, 48 * GIB),
    ),
    memory=Memory(128 * GIB, 80 * GIB, None),
    cpu_quota=None,
    huge_pages=(HugePages(2 << 20, 0, 0), HugePages(1 << 30, 8, 6)),
    transparent_huge_pages="madvise",
    gpus=(),
    mempolicy_available=True,
)
SOFTWARE = Software(
    python="3.12.1",
    is_installed=True,
    required={"numpy": "2.4.6"},
    optional={"torch": None},
    extension_problem=None,
    usable_isas=("avx2", "reference"),
    packing_flags=("avx2", "fma"),
    chosen_isa="avx2",
    device="cpu",
    device_reason="NVIDIA's driver or a GPU is missing",
    compilers={"nvcc": False, "ninja": True, "g++": False},
)
ON_GPU = replace(
    SOFTWARE, device="cuda:0", device_reason="this machine has a GPU", optional={"flashinfer-python": "0.6"}
)


def found(machine: Machine = MACHINE, software: Software = SOFTWARE) -> dict[str, list[Finding]]:
    findings: dict[str, list[Finding]] = {}
    for finding in diagnose(machine, software):
        findings.setdefault(finding.subject, []).append(finding)
    return findings


def test_a_healthy_machine_is_described() -> None:
    findings = found()
    assert findings["cpu"][0].text == "Xeon Gold: 2 cores, 3 logical CPUs usable"
    assert findings["instructions"][0].text == "avx2, fma, avx512f"
    assert findings["NUMA 0"][0].text == "64.0 GiB, 32.0 GiB free, 3 of 4 CPUs usable"
    assert findings["NUMA 1"][0].text == "64.0 GiB, 48.0 GiB free, 0 of 4 CPUs usable"
    assert findings["threads"][0].text == "2 for node 0, pinned to CPUs 0-1"
    assert findings["memory"][0].text == "80.0 GiB available of 128.0 GiB"
    assert [finding.text for finding in findings["huge pages"]] == [
        "transparent: madvise",
        "6 of 8 pages of 1024 MiB free",
    ]
    assert render(diagnose(MACHINE, SOFTWARE)).endswith("\nBallast can run here.\n")


@pytest.mark.parametrize(
    ("machine", "subject", "text"),
    [
        (replace(MACHINE, cpu_flags=("fma",)), "instructions", "fma; without avx2 computing"),
        (replace(MACHINE, cpu_flags=()), "instructions", "none that kernels use; without avx2, fma computing"),
        (replace(MACHINE, nodes=()), "NUMA", "the kernel does not report the nodes"),
        (
            replace(MACHINE, topology=Topology([Node(0, [0, 1], [[0]], memory_allowed=False)])),
            "NUMA 0",
            "this process may not use its memory",
        ),
        (replace(MACHINE, transparent_huge_pages="never"), "huge pages", "transparent: never; large reads are slower"),
        (replace(MACHINE, transparent_huge_pages=None), "huge pages", "transparent: not in this kernel"),
        (
            replace(MACHINE, cpu_quota=CpuQuota(1.5, "/sys/fs/cgroup")),
            "CPU quota",
            "the time of 1.5 CPUs; the default is 1 thread",
        ),
        (
            replace(MACHINE, mempolicy_available=False),
            "memory policy",
            "cannot be set here; memory is allocated on the node",
        ),
        (MACHINE, "device", "auto is cpu: NVIDIA's driver or a GPU is missing"),
    ],
)
def test_suboptimal_settings_are_notes(machine: Machine, subject: str, text: str) -> None:
    [finding] = [finding for finding in found(machine)[subject] if finding.level != "ok"]
    assert finding.level == "note"
    assert text in finding.text


def test_a_gpu_is_reported_as_used_only_if_it_is() -> None:
    machine = replace(MACHINE, gpus=("NVIDIA H200",))
    unusable = replace(SOFTWARE, device_reason="the GPU cannot be used: the driver is too old")
    findings = found(machine, unusable)
    assert [(finding.level, finding.text) for finding in findings["GPU"]] == [("ok", "NVIDIA H200")]
    assert findings["device"][0].text == "auto is cpu: the GPU cannot be used: the driver is too old"
    assert "flashinfer" not in findings
    findings = found(machine, ON_GPU)
    assert (findings["device"][0].level, findings["device"][0].text) == ("ok", "auto is cuda:0: this machine has a GPU")
    assert "without nvcc, g++; attention" in findings["flashinfer"][0].text
    complete = replace(ON_GPU, compilers=dict.fromkeys(ON_GPU.compilers, True))
    assert "flashinfer" not in found(machine, complete)


def test_a_memory_limit_is_reported() -> None:
    limited = replace(MACHINE, memory=Memory(128 * GIB, 4 * GIB, "/sys/fs/cgroup/pod"))
    assert found(limited)["memory"][0].text == "4.0 GiB available of 128.0 GiB, the limit of cgroup /sys/fs/cgroup/pod"


@pytest.mark.parametrize(
    ("software", "subject"),
    [
        (replace(SOFTWARE, extension_problem="no module named _core"), "compiled part"),
        (replace(SOFTWARE, required={"numpy": None}), "numpy"),
    ],
)
def test_missing_requirements_are_reported_as_missing(software: Software, subject: str) -> None:
    findings = diagnose(MACHINE, software)
    assert [finding.subject for finding in findings if finding.level == "missing"] == [subject]
    assert render(findings).endswith(f"\nBallast cannot run: {subject}.\n")


def test_threads_of_two_nodes_are_placed_on_both() -> None:
    nodes = [Node(0, [0, 1], [[0], [1]]), Node(1, [2, 3], [[2], [3]])]
    texts = [finding.text for finding in found(replace(MACHINE, topology=Topology(nodes)))["threads"]]
    assert texts == ["2 for node 0, pinned to CPUs 0-1", "2 for node 1, pinned to CPUs 2-3"]


def test_the_doctor_works_without_the_compiled_part() -> None:
    findings = diagnose(None, replace(SOFTWARE, extension_problem="no module named _core"))
    assert render(findings).endswith("\nBallast cannot run: compiled part.\n")


def test_a_build_without_fast_kernels_for_its_architecture_is_reported() -> None:
    other = replace(SOFTWARE, packing_flags=(), usable_isas=("reference",), chosen_isa="reference")
    [finding] = found(replace(MACHINE, cpu_flags=()), other)["instructions"]
    assert (finding.level, finding.text.partition(";")[0]) == (
        "note",
        "there are no fast kernels for this architecture",
    )


def test_the_kernels_in_use_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    named = [replace(SOFTWARE, chosen_isa=isa) for isa in ("avx2", "reference")]
    assert [
        (finding.level, finding.text.split()[0]) for each in named for finding in found(software=each)["kernels"]
    ] == [
        ("ok", "avx2"),
        ("note", "reference,"),
    ]
    monkeypatch.setenv("BALLAST_CPU_ISA", "nonsense")
    out = io.StringIO()
    assert run(out) == 1
    assert "BALLAST_CPU_ISA=nonsense: usable on this machine are" in out.getvalue()
    assert "Ballast cannot run: kernels." in out.getvalue()


def test_an_optional_package_is_listed_with_its_purpose() -> None:
    assert found(software=ON_GPU)["flashinfer-python"][0].level == "ok"
    [finding] = found()["torch"]
    assert (finding.level, finding.text) == ("note", "not installed; needed for computing on a GPU")


def test_this_installation_knows_its_requirements_and_can_run() -> None:
    software = read_software()
    assert software.chosen_isa in software.usable_isas
    assert {"numpy", "gguf", "pyyaml", "uvicorn"} <= set(software.required)
    assert "kopf" not in software.required
    out = io.StringIO()
    assert run(out) == 0
    assert "Ballast can run here." in out.getvalue()


@pytest.mark.parametrize("has_project_file", [True, False])
def test_the_doctor_examines_a_source_tree_that_is_not_installed(tmp_path: Path, has_project_file: bool) -> None:
    folder = Path(ballast.__file__).parents[1]
    if not has_project_file:
        shutil.copytree(folder / "ballast", tmp_path / "runtime/ballast", ignore=shutil.ignore_patterns("*.gguf"))
        folder = tmp_path / "runtime"
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); from ballast.cli import main; sys.exit(main(['doctor']))"
    ended = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert f"not installed, running from {folder}" in ended.stdout
    last = ended.stdout.splitlines()[-1]
    assert last.startswith("Ballast cannot run: compiled part")
    assert ("numpy" in last) == has_project_file
