"""`ballast doctor`: reports the machine's resources, missing software, and what the software is needed for."""

from __future__ import annotations

import importlib
import platform
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, TextIO

from ballast.errors import ConfigError, first_line, how_to_install
from ballast.host.gpu import auto_device
from ballast.host.machine import Machine, read_machine
from ballast.host.nvcc import has_ninja, has_nvcc
from ballast.version import __version__

_DISTRIBUTION = "ballast-serve"
_SOURCE_TREE = Path(__file__).parents[3]
"""The folder of pyproject.toml in a source tree."""
_OPTIONAL = {
    "torch": "computing on a GPU",
    "triton": "GPU kernels",
    "flashinfer-python": "attention on a GPU, which is two to four times as fast with it",
}
"""Optional distributions → their purpose."""

Level = Literal["ok", "note", "missing"]


@dataclass(frozen=True, slots=True)
class Software:
    """Installed software: versions by distribution, None if missing."""

    python: str
    is_installed: bool
    """Whether Ballast is an installed distribution; otherwise this runs from a source tree."""
    required: Mapping[str, str | None]
    optional: Mapping[str, str | None]
    extension_problem: str | None
    """Why the compiled module cannot be imported; None if it can."""
    usable_isas: tuple[str, ...]
    """Instruction sets that this machine and the compiled module support, best first."""
    packing_flags: tuple[str, ...]
    """CPU features that the simplest packed kernels need; empty if the compiled module has none."""
    chosen_isa: str | ConfigError
    """The instruction set in use, or the error if the requested one is not usable."""
    device: str
    """The device that device=auto selects."""
    device_reason: str
    compilers: Mapping[str, bool]
    """Compilers for flashinfer's kernels → whether the compiler was found."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. Level "missing": Ballast cannot run until this is fixed."""

    level: Level
    subject: str
    text: str


def run(out: TextIO | None = None, *, measure: bool = False) -> int:
    """Print the report. Returns 1 if Ballast cannot run here, otherwise 0. `measure`: include the speeds of memory and
    of the GPUs' buses."""
    software = read_software()
    machine = None if software.extension_problem else read_machine()
    findings = diagnose(machine, software)
    if measure and machine is not None:
        findings += _measured(machine, software)
    (out or sys.stdout).write(render(findings))
    return 1 if any(finding.level == "missing" for finding in findings) else 0


def diagnose(machine: Machine | None, software: Software) -> list[Finding]:
    """All findings, first those about the machine. `machine` is None without the compiled module, which reads it.
    Pure."""
    described = [] if machine is None else [*_cpu(machine, software), *_threads(machine), *_memory(machine)]
    gpus = [] if machine is None else _gpus(machine, software)
    return [*described, *gpus, *_software(software)]


def render(findings: list[Finding]) -> str:
    """The report as text, with a conclusion."""
    width = max(len(finding.subject) for finding in findings)
    lines = [f"{finding.level:7}  {finding.subject:{width}}  {finding.text}" for finding in findings]
    missing = [finding.subject for finding in findings if finding.level == "missing"]
    lines.append(f"\nBallast cannot run: {', '.join(missing)}." if missing else "\nBallast can run here.")
    return "\n".join(lines) + "\n"


def read_software() -> Software:
    """The software that is installed in the running Python."""
    problem = _extension_problem()
    device, reason = ("cpu", "") if problem else auto_device()
    declared = _required_by_distribution()
    requirements = _required_by_source_tree() if declared is None else declared
    return Software(
        python=platform.python_version(),
        is_installed=declared is not None,
        required={name: _version(name) for name in sorted(map(_name, requirements))},
        optional={name: _version(name) for name in _OPTIONAL},
        extension_problem=problem,
        usable_isas=() if problem else _usable_isas(),
        packing_flags=() if problem else _packing_flags(),
        chosen_isa="" if problem else _chosen_isa(),
        device=device,
        device_reason=reason,
        compilers={"nvcc": has_nvcc(), "ninja": has_ninja(), "g++": shutil.which("g++") is not None},
    )


def _required_by_distribution() -> Sequence[str] | None:
    """Packages that a server needs (no extras). None if Ballast is not installed."""
    try:
        declared = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return None
    return [requirement for requirement in declared if ";" not in requirement]


def _required_by_source_tree() -> Sequence[str]:
    """The same from the source tree; empty without one, such as when only the package was copied."""
    try:
        project = tomllib.loads((_SOURCE_TREE / "pyproject.toml").read_text())["project"]
    except (OSError, ValueError, KeyError):
        return ()
    return project["dependencies"] if project.get("name") == _DISTRIBUTION else ()


def _name(requirement: str) -> str:
    length = next(
        (at for at, char in enumerate(requirement) if not (char.isalnum() or char in "-_.")), len(requirement)
    )
    return requirement[:length]


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _extension_problem() -> str | None:
    try:
        # Import a module inside: without a build, the folder of stubs imports as an empty package.
        importlib.import_module("ballast._core.kernels")
    except ImportError as error:
        return str(error)
    return None


def _usable_isas() -> tuple[str, ...]:
    return tuple(importlib.import_module("ballast._core.kernels").usable_isas())


def _packing_flags() -> tuple[str, ...]:
    from ballast.host.isa import packing_flags  # needs the compiled module, which may be missing

    return packing_flags()


def _chosen_isa() -> str | ConfigError:
    from ballast.host.isa import chosen_isa  # needs the compiled module, which may be missing

    try:
        return chosen_isa()
    except ConfigError as error:
        return error


def _cpu(machine: Machine, software: Software) -> Iterator[Finding]:
    yield Finding(
        "ok", "cpu", f"{machine.cpu_model}: {machine.num_physical_cores} cores, {len(machine.cpus)} logical CPUs usable"
    )
    yield _instructions(machine, software)
    if not machine.nodes:
        yield Finding("note", "NUMA", "the kernel does not report the nodes; memory is treated as one node")
    for node in machine.nodes:
        usable = len(node.cpus & machine.cpus)
        memory = f"{_gib(node.total_bytes)}, {_gib(node.free_bytes)} free"
        text = f"{memory}, {usable} of {len(node.cpus)} CPUs usable"
        if usable and node.index not in machine.memory_nodes:
            text += "; this process may not use its memory, so every access is remote"
        yield Finding("ok" if node.index in machine.memory_nodes or not usable else "note", f"NUMA {node.index}", text)


def _instructions(machine: Machine, software: Software) -> Finding:
    if not software.packing_flags:
        text = "there are no fast kernels for this architecture; computing with quantised weights is slow"
        return Finding("note", "instructions", text)
    known = ", ".join(machine.cpu_flags)
    lacking = [flag for flag in software.packing_flags if flag not in machine.cpu_flags]
    if not lacking:
        return Finding("ok", "instructions", known)
    text = f"without {', '.join(lacking)} computing with quantised weights is slow"
    return Finding("note", "instructions", f"{known or 'none that kernels use'}; {text}")


def _threads(machine: Machine) -> Iterator[Finding]:
    from ballast.host.numa import format_cpus, plan_threads  # needs the compiled module, which may be missing

    plan = plan_threads(machine.topology, machine.default_threads, "auto")
    if plan.placement is None:
        yield Finding("note", "threads", f"not pinned: {plan.reason}")
    else:
        for node in plan.placement.nodes:
            name = "the only node" if node.node < 0 else f"node {node.node}"
            yield Finding("ok", "threads", f"{len(node.cpus)} for {name}, pinned to CPUs {format_cpus(node.cpus)}")
    quota = machine.quota_note(machine.default_threads)
    if quota is not None:
        yield Finding("note", "CPU quota", f"{quota}; a pod with exclusive CPUs is faster")
    if machine.mempolicy_available:
        yield Finding("ok", "memory policy", "may be set")
    else:
        text = "cannot be set here; memory is allocated on the node of the thread that touches it first"
        yield Finding("note", "memory policy", text)


def _memory(machine: Machine) -> Iterator[Finding]:
    memory = machine.memory
    limit = "" if memory.limited_by is None else f", the limit of cgroup {memory.limited_by}"
    text = f"{_gib(memory.available_bytes)} available of {_gib(memory.total_bytes)}{limit}"
    yield Finding("ok", "memory", text)
    transparent = machine.transparent_huge_pages
    if transparent in ("always", "madvise"):
        yield Finding("ok", "huge pages", f"transparent: {transparent}")
    else:
        yield Finding(
            "note", "huge pages", f"transparent: {transparent or 'not in this kernel'}; large reads are slower"
        )
    for pool in machine.huge_pages:
        if pool.total:
            text = f"{pool.free} of {pool.total} pages of {pool.page_bytes >> 20} MiB free"
            yield Finding("ok", "huge pages", text)


def _gpus(machine: Machine, software: Software) -> Iterator[Finding]:
    for gpu in machine.gpus:
        yield Finding("ok", "GPU", gpu)
    if software.device == "cpu":
        yield Finding("note", "device", f"auto is cpu: {software.device_reason}")
        return
    yield Finding("ok", "device", f"auto is {software.device}: {software.device_reason}")
    absent = [name for name, is_found in software.compilers.items() if not is_found]
    if software.optional.get("flashinfer-python") is not None and absent:
        text = f"cannot compile its kernels without {', '.join(absent)}; attention uses Ballast's, which are slower"
        yield Finding("note", "flashinfer", text)


def _measured(machine: Machine, software: Software) -> Iterator[Finding]:
    from ballast.host.bandwidth import by_node, copy_bytes_per_s  # needs the compiled module, which may be missing

    found = list(by_node(machine))
    if not found:
        yield Finding("note", "bandwidth", "not measured: too little memory is free")
    for index, threads, rate in found:
        name = "memory" if index < 0 else f"memory of node {index}"
        yield Finding("ok", "bandwidth", f"{name}: {rate / 1e9:.1f} GB/s, read by {threads} threads of this node")
    if software.device == "cpu":
        return
    for index, name in enumerate(machine.gpus):
        try:
            rate = copy_bytes_per_s(f"cuda:{index}")
        except RuntimeError as error:
            yield Finding("note", "bandwidth", f"PCIe of {name} cannot be measured: {first_line(error)}")
        else:
            yield Finding("ok", "bandwidth", f"PCIe of {name}: {rate / 1e9:.1f} GB/s, copied from pinned memory")


def _software(software: Software) -> Iterator[Finding]:
    running = f"{__version__}, Python {software.python}"
    if software.is_installed:
        yield Finding("ok", "Ballast", running)
    else:
        yield Finding("note", "Ballast", f"{running}; not installed, running from {Path(__file__).parents[1]}")
    if software.extension_problem is None:
        yield Finding("ok", "compiled part", f"can be imported; usable kernels: {', '.join(software.usable_isas)}")
        yield _kernels(software.chosen_isa)
    else:
        problem = f"{software.extension_problem}; build it with `make setup`, or install the package again"
        yield Finding("missing", "compiled part", problem)
    for name, found in software.required.items():
        if found is None:
            yield Finding("missing", name, f"not installed; {how_to_install()}")
        else:
            yield Finding("ok", name, found)
    for name, found in software.optional.items():
        if found is None:
            yield Finding("note", name, f"not installed; needed for {_OPTIONAL[name]}")
        else:
            yield Finding("ok", name, found)


def _kernels(chosen: str | ConfigError) -> Finding:
    if isinstance(chosen, ConfigError):
        return Finding("missing", "kernels", str(chosen))
    if chosen == "reference":
        return Finding("note", "kernels", "reference, which is meant for comparison and is slow")
    return Finding("ok", "kernels", f"{chosen} computes here")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB"
