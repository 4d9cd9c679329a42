"""`ballast serve` with CPU/GPU hybrid inference, as a process, with an injected fault.

    python -m devkit.servers.hybrid_server --fault cuda --once FILE --port 0 [any option of `ballast serve`]

This also works with device=cpu: torch then runs the GPU's part on the CPU, with float32 weights.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import torch

from ballast import cli, prepared_model
from ballast.engine.startup import loading
from ballast.engine.startup.build import DeviceSettings, EngineSettings
from ballast.model.hybrid.backends import selection
from ballast.model.hybrid.handoff import host_experts
from ballast.model.hybrid.model import HybridModel
from ballast.model.runner import Runner
from ballast.model.spec import ModelSpec
from ballast.weights.gguf import GgufModel
from devkit.models import cpu_backend

Fault = Literal["load", "experts", "silent", "cuda", "memory", "stray"]
"""Out of memory while the model loads; or in a step: the CPU's experts fail, the device skips the request for a layer,
torch raises a CUDA error or an out-of-memory error, a kernel writes to an invalid address (requires a GPU)."""

LIMIT_S = 2.0
"""Limit for a device that does not respond during an expert offload, instead of the default."""


def main(argv: Sequence[str]) -> int:
    """Serve until stopped, or until the fault."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--fault", choices=get_args(Fault))
    parser.add_argument("--once", type=Path, help="the fault occurs in the first step that finds this file")
    parser.add_argument("--at_layer", type=int, default=1, help="index of the routed layer with the fault")
    faults, rest = parser.parse_known_args(argv)
    if faults.fault == "silent":
        host_experts.LIMIT_S = LIMIT_S

    def load_with_fault(
        gguf_model: GgufModel, spec: ModelSpec, num_sampled_ids: int, settings: EngineSettings, *hooks: Any
    ) -> Runner:
        if not settings.devices:
            torch.set_num_threads(1)
            selection.MAKERS["cpu"] = cpu_backend.CpuBackend
            on_cpu = DeviceSettings("cpu:0", range(spec.num_layers))  # torch's name for it
            settings = replace(settings, devices=(on_cpu,))
        if faults.fault == "load":
            selection.MAKERS["cpu"] = FullDevice
        runner = loading.load_runner(gguf_model, spec, num_sampled_ids, settings, *hooks)
        assert isinstance(runner, HybridModel)
        if faults.fault is not None:
            inject(runner, faults.fault, faults.once, faults.at_layer)
        return runner

    prepared_model.load_runner = load_with_fault  # type: ignore[attr-defined,assignment]
    return cli.main(["serve", *rest])


def out_of_memory(*_: object, **__: object) -> NoReturn:
    """Loading any weight runs out of memory."""
    raise torch.OutOfMemoryError("CUDA out of memory on demand\nadvice for programmers")


class FullDevice(cpu_backend.CpuBackend):
    """A device without memory for any weight."""

    make_linear = staticmethod(out_of_memory)


def inject(model: HybridModel, fault: Fault, once: Path, at_layer: int) -> None:
    """Trigger `fault` in the first step that finds the file `once`. Disables captured steps, which cannot be changed:
    layers are queued one by one."""
    model.devices[0].graphs = None
    hand_off = model._experts._host
    begin, submit = hand_off.begin, hand_off.submit
    is_due = False

    def begin_with_fault(num_tokens: int) -> None:
        nonlocal is_due
        is_due = once.exists()
        begin(num_tokens)
        if is_due and fault == "stray":
            write_astray()

    def submit_with_fault(layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        if is_due and layer == at_layer:
            if fault == "cuda":
                raise torch.AcceleratorError("CUDA error: the device was lost on demand\nadvice for programmers")
            if fault == "memory":
                out_of_memory()
            if fault == "silent":
                return
            if fault == "experts":
                ids = ids + (1 << 20)
        submit(layer, x, ids, weights)

    hand_off.begin = begin_with_fault  # type: ignore[method-assign]
    hand_off.submit = submit_with_fault  # type: ignore[method-assign]


def write_astray() -> None:
    """Queue a kernel that writes to an invalid address."""
    import triton
    import triton.language as tl

    @triton.jit
    def stray(pointer):  # type: ignore[no-untyped-def]
        tl.store(pointer + (1 << 46), 1.0)

    stray[(1,)](torch.zeros(1, device="cuda"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
