"""Chooses the kernel of each dense product at start: the kernel of exact codes (`int_gemm`) if it is correct and
faster.

The choice for a number of tokens does not change while a process runs, so that captured steps and uncaptured steps give
the same results.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ballast.errors import EngineDeadError, first_line
from ballast.host.startup.measurements import Measurements
from ballast.model.hybrid.agreement import difference
from ballast.model.hybrid.faults.device_errors import DEVICE_ERRORS
from ballast.model.hybrid.faults.kernel_check import ParallelCompile
from ballast.model.hybrid.graphs.capture import captured
from ballast.model.hybrid.panels.panel_linear import TUNED_TOKENS, PanelLinear, Shape
from ballast.model.switched_off import SwitchedOff

log = logging.getLogger(__name__)

Measure = Callable[[Sequence[Callable[[], object]]], float]
"""Measures the seconds that the calls take, one after the other."""

_MAX_SIMILAR = 8
"""Maximum number of layers whose matrices are multiplied in rotation: together they are too large for the caches."""
_MIN_GAIN = 1.03
_MAX_DIFFERENCE = 2.0**-10
"""Maximum difference as a fraction of the largest result. The kernels themselves differ by 2⁻¹⁵ of a sum's largest
possible value."""


def autotune(
    linears: Sequence[PanelLinear],
    most_tokens: int,
    device: torch.device,
    measure: Measure,
    parallel_compile: ParallelCompile,
    off: SwitchedOff,
    measurements: Measurements,
    name: str = "dense_products",
) -> None:
    """Try products of up to `most_tokens` tokens, once per shape, and give each linear layer its faster kernel. If
    `measurements` has the choice of an earlier start under `name`, only the chosen kernels of exact codes are checked.

    If the kernels of exact codes do not compile or are wrong, none is used, and `off` gets the reason. Launches inside
    the context that `parallel_compile` returns only compile.

    Raises EngineDeadError if the other kernels fail, and the errors that CUDA itself reports."""
    alike: dict[Shape, list[PanelLinear]] = defaultdict(list)
    for linear in linears:
        if linear.has_int_gemm:
            alike[linear.shape].append(linear)
    counts = _counts(most_tokens)
    products = [_Product(group[:_MAX_SIMILAR], tokens, device) for group in alike.values() for tokens in counts]
    cases = [str(product) for product in products]

    def chosen_cases() -> list[str]:
        _compile(products, parallel_compile)
        return [case for case, product in zip(cases, products, strict=True) if product.is_faster(measure)]

    def kept_cases(value: Any) -> list[str]:
        if not isinstance(value, list) or not all(case in cases for case in value):
            raise ValueError(f"{value!r} are not among the candidate products")
        kept = [product for product, case in zip(products, cases, strict=True) if case in value]
        _compile(kept, parallel_compile)
        for product in kept:
            product.check()
        return value

    try:
        by_codes = measurements.take(name, cases, chosen_cases, list, kept_cases)
    except _NoIntGemmError as error:
        off.add("exact_codes", str(error))
        return
    for shape, group in alike.items():
        chosen = frozenset(tokens for tokens in counts if _case(shape, tokens) in by_codes)
        for linear in group:
            linear.int_gemm_tokens = chosen
    log.info("dense products tried", extra={"cases": len(cases), "by_exact_codes": len(by_codes)})


def launch_products(linear: PanelLinear, most_tokens: int, device: torch.device) -> None:
    """Launch the products of a layer that `autotune` would try, inside a context in which launches only compile."""
    if linear.has_int_gemm:
        for tokens in _counts(most_tokens):
            _Product([linear], tokens, device).both()


def replay_seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Seconds of the fastest of several replays of a CUDA graph that contains the calls. The kernels of the calls must
    have run before."""
    with captured() as graph:
        for call in calls:
            call()
    times = []
    for _ in range(4):
        begin, end = torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times)


def _counts(most_tokens: int) -> list[int]:
    """The numbers in TUNED_TOKENS that products of up to `most_tokens` tokens use."""
    return [tokens for last, tokens in zip((0, *TUNED_TOKENS), TUNED_TOKENS, strict=False) if last < most_tokens]


def _case(shape: Shape, num_tokens: int) -> str:
    kind, num_heads, rows, cols = shape
    return f"products of {kind.name} [{num_heads}, {rows}, {cols}] with {num_tokens} tokens"


class _NoIntGemmError(Exception):
    """The kernels of exact codes cannot be compiled, or are wrong."""


@dataclass(frozen=True, slots=True)
class _Product:
    """Linear layers of one shape with a given number of tokens."""

    linears: Sequence[PanelLinear]
    num_tokens: int
    device: torch.device

    def both(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The first layer's result without `int_gemm`, and with it."""
        x = self._given()
        with self._failing_as(EngineDeadError):
            plain = self.linears[0].multiply(x, by_int_gemm=False)
        with self._failing_as(_NoIntGemmError):
            return plain, self.linears[0].multiply(x, by_int_gemm=True)

    def check(self) -> None:
        """Raises _NoIntGemmError if `int_gemm` fails or is wrong."""
        plain, coded = self.both()
        by = difference(coded.cpu().numpy(), plain.cpu().numpy())
        if not by <= _MAX_DIFFERENCE:
            raise _NoIntGemmError(f"{self} differ by {by:.2g}")

    def is_faster(self, measure: Measure) -> bool:
        """Whether `int_gemm` is faster. Raises _NoIntGemmError if it fails or is wrong."""
        self.check()
        x = self._given()
        with self._failing_as(_NoIntGemmError):
            seconds = [measure(self._calls(x, by_int_gemm=by_int_gemm)) for by_int_gemm in (False, True)]
        return seconds[1] * _MIN_GAIN <= seconds[0]

    def __str__(self) -> str:
        return _case(self.linears[0].shape, self.num_tokens)

    @contextmanager
    def _failing_as(self, error_type: type[Exception]) -> Iterator[None]:
        """A context that converts errors inside to an error that names the case, except errors that CUDA itself
        reports."""
        try:
            yield
        except DEVICE_ERRORS:
            raise
        except Exception as error:  # compilers raise errors of any type
            raise error_type(f"{self} fail: {first_line(error)}") from error

    def _given(self) -> torch.Tensor:
        _, num_heads, _, cols = self.linears[0].shape
        generator = torch.Generator(self.device).manual_seed(self.num_tokens)
        return torch.randn(self.num_tokens, num_heads, cols, generator=generator, device=self.device)

    def _calls(self, x: torch.Tensor, *, by_int_gemm: bool) -> list[Callable[[], torch.Tensor]]:
        return [partial(linear.multiply, x, by_int_gemm=by_int_gemm) for linear in self.linears]


def _compile(products: Sequence[_Product], parallel_compile: ParallelCompile) -> None:
    with parallel_compile():
        for product in products:
            product.both()
