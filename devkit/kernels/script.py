"""A program that compiles one of Ballast's kernels for a GPU that is not here, in an image that has no devkit."""

COMPILES_ONE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ballast.model.hybrid.pointwise.pointwise_kernels import gated

known = {"BLOCK": 1024, "UNIT": 0}
kinds = dict.fromkeys(known, "constexpr") | {"width": "i32", "stride": "i32", "alpha": "fp32", "limit": "fp32"}
types = {name: kinds.get(name, "*fp32") for name in gated.arg_names}
compiled = triton.compile(ASTSource(gated, types, constexprs=known), target=GPUTarget("cuda", 90, 32))
print("cubin", len(compiled.asm["cubin"]) > 0)
"""
"""Prints "cubin True"."""
