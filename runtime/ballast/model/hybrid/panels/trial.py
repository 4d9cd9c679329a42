"""Which way dense products go, tried at start: by exact codes where that is faster here, and right.

A step of any number of tokens goes one way all the time a process runs, so results of a step that is captured are those
of one that is not.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from ballast.errors import EngineDeadError, first_line
from ballast.model.hybrid.captures import captured
from ballast.model.hybrid.panels.linear import TRIED_TOKENS, PanelLinear, Shape

log = logging.getLogger(__name__)

Measure = Callable[[Sequence[Callable[[], object]]], float]
"""Seconds that some calls take, one after the other."""

_MOST_ALIKE = 8
"""Layers whose matrices are multiplied in turn, so that caches do not hold them all."""
_LEAST_GAIN = 1.03
_MOST_DIFFERENCE = 2.0**-10
"""Of the largest result; the ways differ by 2⁻¹⁵ of a sum's largest possible value."""


def choose_ways(
    linears: Sequence[PanelLinear],
    most_tokens: int,
    device: torch.device,
    measure: Measure,
    rehearsal: Callable[[], AbstractContextManager[None]],
) -> None:
    """Try products of up to `most_tokens` tokens, once for each shape, and let each linear layer go the faster way. All
    as without codes, and one warning, where exact codes cannot be compiled or are wrong. Raises EngineDeadError where
    the way without them cannot be gone, and what CUDA itself reports. In the context that `rehearsal` gives, launches
    only compile."""
    alike: dict[Shape, list[PanelLinear]] = defaultdict(list)
    for linear in linears:
        if linear.has_codes:
            alike[linear.shape].append(linear)
    counts = [tokens for last, tokens in zip((0, *TRIED_TOKENS), TRIED_TOKENS, strict=False) if last < most_tokens]
    trials = [_Trial(group[:_MOST_ALIKE], tokens, device) for group in alike.values() for tokens in counts]
    try:
        with rehearsal():
            for trial in trials:
                trial.both()
        pays = {(trial.linears[0].shape, trial.num_tokens): trial.pays(measure) for trial in trials}
    except _NoCodesError as error:
        log.warning("no dense product goes by exact codes", extra={"reason": str(error)})
        return
    for shape, group in alike.items():
        chosen = frozenset(tokens for tokens in counts if pays[shape, tokens])
        for linear in group:
            linear.coded_tokens = chosen
    log.info("dense products tried", extra={"cases": len(pays), "by_exact_codes": sum(pays.values())})


def replay_seconds(calls: Sequence[Callable[[], object]]) -> float:
    """The fastest of some replays of a CUDA graph that holds the calls; their kernels have run before."""
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


class _NoCodesError(Exception):
    """Exact codes cannot be compiled, or are wrong."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """Of linear layers of one shape."""

    linears: Sequence[PanelLinear]
    num_tokens: int
    device: torch.device

    def both(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What the first layer gives without codes, and by them."""
        x = self._given()
        with self._failing_as(EngineDeadError):
            plain = self.linears[0].multiply(x, by_codes=False)
        with self._failing_as(_NoCodesError):
            return plain, self.linears[0].multiply(x, by_codes=True)

    def pays(self, measure: Measure) -> bool:
        """Whether codes are faster."""
        plain, coded = self.both()
        difference = float((coded - plain).abs().max() / plain.abs().max())
        if not difference <= _MOST_DIFFERENCE:
            raise _NoCodesError(f"{self} differ by {difference:.2g}")
        x = self._given()
        with self._failing_as(_NoCodesError):
            seconds = [measure(self._calls(x, by_codes=by_codes)) for by_codes in (False, True)]
        return seconds[1] * _LEAST_GAIN <= seconds[0]

    def __str__(self) -> str:
        kind, num_heads, rows, cols = self.linears[0].shape
        return f"products of {kind.name} [{num_heads}, {rows}, {cols}] with {self.num_tokens} tokens"

    @contextmanager
    def _failing_as(self, told: type[Exception]) -> Iterator[None]:
        """Of what fails within, an error that names the case; what CUDA itself reports is raised as it is."""
        try:
            yield
        except (torch.AcceleratorError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # compilers raise whatever they like
            raise told(f"{self} fail: {first_line(error)}") from error

    def _given(self) -> torch.Tensor:
        _, num_heads, _, cols = self.linears[0].shape
        generator = torch.Generator().manual_seed(self.num_tokens)
        return torch.randn(self.num_tokens, num_heads, cols, generator=generator).to(self.device)

    def _calls(self, x: torch.Tensor, *, by_codes: bool) -> list[Callable[[], torch.Tensor]]:
        return [partial(linear.multiply, x, by_codes=by_codes) for linear in self.linears]
