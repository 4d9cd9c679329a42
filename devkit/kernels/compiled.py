"""Compiles Triton kernels for GPUs that are not here."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction


def compiled_for(
    capability: int, function: JITFunction[Any], known: Mapping[str, Any], types: Mapping[str, str]
) -> Any:
    """The kernel for NVIDIA's GPUs of a compute capability, as 90. `known`: its constants, and among them num_warps and
    num_stages. `types`: of its other arguments, which are "i32" unless named. Pointers are multiples of 16."""
    constants = dict(known)
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages") if name in constants}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in function.arg_names}
    aligned = {(index,): [["tt.divisibility", 16]] for index, kind in enumerate(signature.values()) if kind[0] == "*"}
    return triton.compile(
        ASTSource(function, signature, constexprs=constants, attrs=aligned),
        target=GPUTarget("cuda", capability, 32),
        options=options,
    )


def advice_of_assembler(compiled: Any, capability: int) -> str:
    """What NVIDIA's assembler says of a compiled kernel: losses of performance, among others."""
    program = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(compiled.asm["ptx"])
        command = [str(program), "-v", f"-arch=sm_{capability}a", "-o", f"{folder}/kernel.cubin", str(source)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stderr
