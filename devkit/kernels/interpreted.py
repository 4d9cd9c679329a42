"""Runs Triton kernels in Triton's interpreter, on the CPU."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from numpy.typing import NDArray
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import (
    InterpretedFunction,
    InterpreterBuilder,
    InterpreterOptions,
    ReduceOps,
    ScanOps,
    TensorHandle,
)
from triton.runtime.jit import JITFunction

from ballast.model.hybrid.attention.paged_fp8_kernels import SPLIT_CODES

Words = NDArray[np.int64]
_RUNNING = {"plus": np.add, "larger": np.fmax, "smaller": np.fmin}
"""NumPy equivalents of the reductions of `reduce_kernels`."""


def interpreted(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of a module of kernels whose kernels are always interpreted, as are the functions that they use from other
    modules. Triton decides that when a kernel is defined, so the modules are executed again.
    The only PTX instructions that the interpreter supports are those that `_inline_asm` implements. It combines values
    one by one in Python; those of `reduce_kernels` NumPy combines in the same order."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    _save_time(monkeypatch)
    monkeypatch.setattr(InterpreterBuilder, "create_inline_asm", _inline_asm)
    monkeypatch.setattr(InterpreterBuilder, "create_fma", _fma)
    monkeypatch.setattr(ReduceOps, "generic_reduce", _reduce_all)
    monkeypatch.setattr(ScanOps, "generic_scan", _scan_all)
    spec = importlib.util.spec_from_file_location(f"interpreted_{kernels.__name__}", kernels.__file__ or "")
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    for name, value in list(vars(copy).items()):
        if isinstance(value, JITFunction):
            monkeypatch.setattr(copy, name, vars(interpreted(sys.modules[value.fn.__module__], monkeypatch))[name])
    return copy


def _save_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than half of the interpreter's; the results are the same."""
    monkeypatch.setattr(InterpretedFunction, "__call__", _call_from_kernel)
    monkeypatch.setattr(interpreter, "_get_np_dtype", _np_dtype)
    monkeypatch.setattr(core, "_unwrap_if_constexpr", _unwrapped)
    monkeypatch.setattr(core, "_unwrap_shape", _unwrapped_shape)
    monkeypatch.setattr(tl.block_type, "__init__", _make_block_type)
    monkeypatch.setattr(tl.tensor, "__init__", _make_tensor)
    monkeypatch.setattr(TritonSemantic, "binary_op_type_checking_impl", _operands)
    monkeypatch.setattr(TritonSemantic, "broadcast_impl_value", _broadcast)
    # Without `debug`, overflows of integers are computed and not reported.
    monkeypatch.setattr(interpreter.interpreter_builder, "options", InterpreterOptions(sanitize_overflow=False))


def _fma(_builder: InterpreterBuilder, left: TensorHandle, right: TensorHandle, added: TensorHandle) -> TensorHandle:
    """left * right + added, as on a GPU: the product is exact in float64, and in the kernels so is the sum, mostly."""
    total = left.data.astype(np.float64) * right.data + added.data
    return TensorHandle(total.astype(left.data.dtype), left.dtype.scalar)


def _call_from_kernel(function: InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
    """Call a function from a kernel, whose launch has replaced the language's builtins: Triton would do so again."""
    return function.rewrite()(*args, **kwargs)


_of_scalar = functools.cache(interpreter._get_np_dtype)


def _np_dtype(kind: tl.dtype) -> np.dtype[Any]:
    """NumPy's type for the elements of Triton's."""
    element = kind.scalar
    return np.dtype(np.uint64) if isinstance(element, tl.pointer_type) else _of_scalar(element)


_unwrap = core._unwrap_if_constexpr
_describe_block = tl.block_type.__init__
_blocks: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
"""Attributes shared by blocks of a type and shape; Triton would make them for every intermediate result."""
_NOTHING_TO_UNWRAP = frozenset(
    {int, float, bool, str, type(None), tl.tensor, tl.dtype, tl.block_type, tl.pointer_type, TritonSemantic}
)


def _unwrapped(value: Any) -> Any:
    """Triton's, which asks each value whether it is a collection first."""
    kind = type(value)
    if kind is tl.constexpr:
        return value.value
    return value if kind in _NOTHING_TO_UNWRAP else _unwrap(value)


def _unwrapped_shape(shape: Any) -> list[int]:
    return [_unwrapped(size) for size in (_unwrapped(shape) if type(shape) is tl.constexpr else shape)]


def _make_block_type(block: tl.block_type, element_type: tl.dtype, shape: Any) -> None:
    sizes = _unwrapped_shape(shape)
    key = element_type.name, tuple(sizes)
    if key not in _blocks:
        _describe_block(block, element_type, sizes)
        of_tensor = core.tuple([tl.constexpr(size) for size in sizes]), tl.constexpr(block.numel)
        _blocks[key] = vars(block) | {"of_tensor": of_tensor, "sizes": tuple(sizes)}
    vars(block).update(_blocks[key], element_ty=element_type)


_OF_SCALAR = core.tuple([]), tl.constexpr(1)


def _make_tensor(tensor: tl.tensor, handle: Any, kind: tl.dtype) -> None:
    tensor.handle, tensor.type, tensor.dtype = handle, kind, kind.scalar
    tensor.shape, tensor.numel = getattr(kind, "of_tensor", _OF_SCALAR)


_check_operands = TritonSemantic.binary_op_type_checking_impl
_broadcast_values = TritonSemantic.broadcast_impl_value
_INTS = frozenset({"int32", "int64", "uint32"})
_NUMBERS = _INTS | {"fp32"}
"""Types that no operation promotes if both operands have them."""


def _is_constant_of(value: Any, kind: tl.dtype) -> bool:
    """Whether a number becomes a constant of this type."""
    if type(value) is int and kind.name in _INTS:
        return bool(kind.get_int_min_value() <= value <= kind.get_int_max_value())
    return type(value) in (int, float) and kind.name == "fp32"


def _operands(semantic: TritonSemantic, lhs: Any, rhs: Any, *arguments: Any, **options: Any) -> Any:
    """Triton's; operands of one type, or one and a number, need no promotion."""
    left, right = getattr(lhs, "dtype", None), getattr(rhs, "dtype", None)
    if left is not None and left.name in _NUMBERS:
        if left is right:
            return _broadcast(semantic, lhs, rhs)
        if _is_constant_of(rhs, left):
            return _broadcast(semantic, lhs, semantic.scalar_constant(rhs, left))
    elif right is not None and right.name in _NUMBERS and _is_constant_of(lhs, right):
        return _broadcast(semantic, semantic.scalar_constant(lhs, right), rhs)
    return _check_operands(semantic, lhs, rhs, *arguments, **options)


def _broadcast(semantic: TritonSemantic, lhs: tl.tensor, rhs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Triton's, which compares sizes that are constants of the language."""
    left, right = getattr(lhs.type, "sizes", ()), getattr(rhs.type, "sizes", ())
    if left == right:
        return lhs, rhs
    if not left or not right:
        return _expanded(lhs, right or left), _expanded(rhs, right or left)
    sizes = tuple(b if a == 1 else a for a, b in zip(left, right, strict=False))
    if len(left) != len(right) or any(b not in (1, size) for b, size in zip(right, sizes, strict=True)):
        found: tuple[tl.tensor, tl.tensor] = _broadcast_values(semantic, lhs, rhs)
        return found
    return _expanded(lhs, sizes), _expanded(rhs, sizes)


def _expanded(value: tl.tensor, sizes: tuple[int, ...]) -> tl.tensor:
    if getattr(value.type, "sizes", ()) == sizes:
        return value
    kind = value.type.scalar
    return tl.tensor(TensorHandle(np.broadcast_to(value.handle.data, sizes), kind), tl.block_type(kind, sizes))


_one_by_one = {ReduceOps: ReduceOps.generic_reduce, ScanOps: ScanOps.generic_scan}


def _running(operation: ReduceOps | ScanOps, values: Sequence[Any]) -> list[NDArray[Any]] | None:
    """Running combinations of the values by a function of `reduce_kernels`; None for other functions."""
    combine: Callable[..., Any] = operation.combine_fn.fn
    if combine.__module__ != "interpreted_ballast.model.hybrid.shared_kernels.reduce_kernels" or operation.axis is None:
        return None
    accumulate = _RUNNING[combine.__name__].accumulate
    return [accumulate(value.handle.data, operation.axis, value.handle.data.dtype) for value in values]


def _reduce_all(operation: ReduceOps, values: Sequence[Any]) -> list[Any]:
    running = _running(operation, values)
    if running is None or operation.keep_dims:
        return list(_one_by_one[ReduceOps](operation, values))
    pairs = zip(values, running, strict=True)
    return [operation.to_tensor(sums.take(-1, operation.axis), value.dtype) for value, sums in pairs]


def _scan_all(operation: ScanOps, values: Sequence[Any]) -> list[Any]:
    running = _running(operation, values)
    if running is None:
        return list(_one_by_one[ScanOps](operation, values))
    return [operation.to_tensor(sums, value.dtype) for value, sums in zip(values, running, strict=True)]


def _inline_asm(
    builder: object, asm: str, constraints: str, values: Sequence[TensorHandle], types: object, is_pure: bool, pack: int
) -> Any:
    """PTX's prmt.b32 of words, lop3.b32 of words and two constants, and `SPLIT_CODES`, of any shape."""
    if asm == SPLIT_CODES.value:
        return SimpleNamespace(get_result=lambda index: TensorHandle(_codes(values[0].data, index), tl.float16))
    words = [np.asarray(value.data).astype(np.int64) & 0xFFFFFFFF for value in values]
    if asm == "prmt.b32 $0, $1, $2, $3;":
        word = _permuted(*words)
    else:
        constants = re.fullmatch(r"lop3\.b32 \$0, \$1, (0x\w+), (0x\w+), (0x\w+);", asm)
        assert constants is not None, f"the interpreter does not know {asm!r}"
        word = _looked_up(words[0], *(int(constant, 16) for constant in constants.groups()))
    result = TensorHandle(word.astype(np.uint32).view(np.int32), values[0].dtype)
    return SimpleNamespace(get_result=lambda index: result)


def _codes(words: NDArray[np.int16], index: int) -> NDArray[np.float16]:
    """The codes of e4m3 at even (index 0) or odd places in half precision, times 2^-8."""
    code = words.astype(np.int32) >> (8 * index) & 0xFF
    return ((code & 0x80) << 8 | (code & 0x7F) << 7).astype(np.uint16).view(np.float16)


def _permuted(first: Words, second: Words, places: Words) -> Words:
    found = second << 32 | first
    word = np.zeros_like(found)
    for byte in range(4):
        place = places >> (4 * byte) & 15
        chosen = found >> (8 * (place & 7)) & 0xFF
        chosen = np.where(place & 8, (chosen >> 7) * 0xFF, chosen)
        word |= chosen << (8 * byte)
    return word


def _looked_up(first: Words, second: int, third: int, table: int) -> Words:
    """Each bit by its place in the table: 4 · first + 2 · second + third."""
    places = [(second >> bit & 1) * 2 + (third >> bit & 1) for bit in range(32)]
    if_clear, if_set = (sum((table >> (at + place) & 1) << bit for bit, place in enumerate(places)) for at in (0, 4))
    return first & if_set | ~first & if_clear
