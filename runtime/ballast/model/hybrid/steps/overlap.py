"""Divides a step into parts that devices compute at the same time, if they hold all experts: while one device computes
a part, the device before it computes the next one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ballast.model.hybrid.steps.step import Step, StepSlice


@dataclass(frozen=True, slots=True)
class StepPart:
    """Tokens begin … end - 1 of a step, as a step that follows those of the tokens before."""

    begin: int
    end: int
    step: Step


def parts_of(step: Step, sampled: NDArray[np.int64], num_tokens: int) -> list[StepPart]:
    """The step in as many parts of about `num_tokens` tokens as it has tokens for; a part consists of slices. `sampled`
    [S]: the host's copy of `step.sampled`, ascending. The step's device must be active. Never waits for it."""
    if not step.slices:
        return [StepPart(0, len(step.positions), step)]
    windows = None if step.windows is None else step.windows.slices
    parts = []
    for first, end in _groups([own.end for own in step.slices], num_tokens):
        part = _part(step, windows, first, end)
        bounds = step.slices[first].begin, step.slices[end - 1].end
        own = step.sampled[slice(*np.searchsorted(sampled, bounds).tolist())] - bounds[0]
        parts.append(StepPart(*bounds, replace(part, sampled=own)))
    return parts


def _groups(ends: Sequence[int], num_tokens: int) -> Iterator[tuple[int, int]]:
    """The first slice of each part, and the first one behind it. `ends`: the slices' last tokens, plus one."""
    num_parts = max(1, ends[-1] // num_tokens)
    wanted = [ends[-1] * part // num_parts for part in range(1, num_parts)]
    nearest = {1 + min(range(len(ends)), key=lambda index: abs(ends[index] - end)) for end in wanted}
    return itertools.pairwise([0, *sorted(nearest - {len(ends)}), len(ends)])


def _part(step: Step, windows: Sequence[StepSlice] | None, first: int, end: int) -> Step:
    """Slices first … end - 1 of a step, without the tokens that are sampled."""
    own = step.slices[first:end]
    bounds = slice(own[0].begin, own[-1].end)
    part = replace(step.rows(bounds.start, bounds.stop), slices=_from_zero(own))
    if windows is not None and step.windows is not None:
        of_windows = step.windows.rows(bounds.start, bounds.stop)
        part = replace(part, windows=replace(of_windows, slices=_from_zero(windows[first:end])))
    return replace(
        part,
        ngrams=None if step.ngrams is None else step.ngrams[bounds],
        token_ids=None if step.token_ids is None else step.token_ids[bounds].clone(),
    )


def _from_zero(slices: Sequence[StepSlice]) -> tuple[StepSlice, ...]:
    first = slices[0].begin
    return tuple(replace(own, begin=own.begin - first, end=own.end - first) for own in slices)
