"""Kernels that are launched before the kernel in front of them has ended; see also test_launches_compile.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T

import ballast.model.hybrid
from ballast._core import kernels
from ballast.host.isa import chosen_isa
from ballast.model.hybrid.graphs.capture import captured
from ballast.model.hybrid.panels.panel_linear import PanelLinear
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.pointwise.triton_pointwise import TritonPointwise
from ballast.model.rope import unrotated
from devkit.models.random_blocks import random_blocks

HYBRID = Path(ballast.model.hybrid.__file__).parent
WAIT = "wait_for_previous()"


def early_launches() -> Iterator[str]:
    """The names of kernels at the launches that pass `early`; `kernel.function` and others that vary are left out."""
    for file in sorted(HYBRID.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)):
                continue
            module, _, name = ast.unparse(node.func.value).partition(".")
            options = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg is None]
            is_early = any(each.startswith("early(") for each in options)
            if is_early and module.endswith("_kernels"):
                yield f"{module}.{name}"


def first_statements() -> dict[str, str]:
    """The first statement of each kernel and of each function that kernels call, behind its docstring."""
    first = {}
    for file in HYBRID.rglob("*_kernels.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                first[f"{file.stem}.{node.name}"] = ast.unparse(body[0])
    return first


def test_kernels_that_are_launched_early_wait_before_anything_else() -> None:
    launched, first = set(early_launches()), first_statements()
    chosen_by_type = {
        "gemv_kernels.quantized_gemv",
        "gemv_kernels.float_gemv",
        "dequant_gemm_kernels.quantized_gemm",
        "dequant_gemm_kernels.float_gemm",
        "int_gemm_kernels.int_gemm",
        "grouped_int_gemm_kernels.grouped_int_gemm",
        "paged_kernels.attend",
        "paged_fp8_kernels.attend_heads",
        "paged_fp8_kernels.attend_latents",
    }
    assert len(launched) > 20
    assert {name: first[name] for name in launched | chosen_by_type} == dict.fromkeys(launched | chosen_by_type, WAIT)


@pytest.mark.gpu
def test_a_chain_of_early_kernels_computes_what_the_same_kernels_compute_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each kernel reads what the one in front has just written, and overwrites what earlier ones have read. One of them
    is cuBLAS's."""
    device, width = torch.device("cuda:0"), 4096
    data = random_blocks(np.random.default_rng(0), T.Q4_K, width, width)
    matrix = kernels.Matrix(data, T.Q4_K, width, width)
    packed = kernels.pack(kernels.ThreadPool(4), matrix, chosen_isa(), activation_bytes=1)
    linear = PanelLinear(packed, width, width, is_transposed=False, device=device)
    begin, weight = torch.randn(2, width, device=device), torch.rand(width, device=device)
    turned = torch.linalg.qr(torch.randn(width, width, device=device)).Q

    def result(launches_early: bool) -> torch.Tensor:
        monkeypatch.setattr(platform_of(device), "launches_early", launches_early)
        pointwise, stream = TritonPointwise(1e-6, unrotated(2), device), begin.clone()

        def chain() -> None:
            parts: tuple[torch.Tensor, ...] = ()
            stream.copy_(begin)
            for index in range(40):
                normed = pointwise.add_and_norm(stream, parts, weight)
                product = linear.multiply(normed, by_int_gemm=index % 2 == 0)
                parts = (pointwise.gated(product, normed) @ turned,)
            pointwise.add_and_norm(stream, parts, weight)

        chain()
        with captured() as graph:
            chain()
        for _ in range(50):
            graph.replay()
        platform_of(device).synchronize()
        return stream.clone()

    assert torch.equal(result(True), result(False))
