"""Divides a step into parts that devices compute at the same time, if they hold all experts: while one device computes
a part, the device before it computes the next one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ballast.model.hybrid.steps.step import Step, StepSlice


@dataclass(frozen=True, slots=True)
class StepPart:
    """Tokens begin … end - 1 of a step, as a step that follows those of the tokens before."""

    begin: int
    end: int
    step: Step


def parts_of(step: Step, most_tokens: int) -> list[StepPart]:
    """The step's slices, in groups of at most `most_tokens` tokens; the whole step if it has no slices."""
    if not step.slices:
        return [StepPart(0, len(step.positions), step)]
    windows = None if step.windows is None else step.windows.slices
    return [
        StepPart(step.slices[first].begin, step.slices[end - 1].end, _part(step, windows, first, end))
        for first, end in _groups(step.slices, most_tokens)
    ]


def _groups(slices: Sequence[StepSlice], most_tokens: int) -> Iterator[tuple[int, int]]:
    """The first slice of each group, and the first one behind it."""
    bounds = [0]
    for index, own in enumerate(slices):
        if own.end - slices[bounds[-1]].begin > most_tokens and index > bounds[-1]:
            bounds.append(index)
    return itertools.pairwise([*bounds, len(slices)])


def _part(step: Step, windows: Sequence[StepSlice] | None, first: int, end: int) -> Step:
    own = step.slices[first:end]
    bounds = slice(own[0].begin, own[-1].end)
    whole = replace(step.rows(bounds.start, bounds.stop), slices=_from_zero(own))
    if windows is not None and step.windows is not None:
        of_windows = step.windows.rows(bounds.start, bounds.stop)
        whole = replace(whole, windows=replace(of_windows, slices=_from_zero(windows[first:end])))
    return replace(
        whole,
        sampled=torch.cat([part.step.sampled + (part.begin - bounds.start) for part in own]),
        ngrams=None if step.ngrams is None else step.ngrams[bounds],
        token_ids=None if step.token_ids is None else step.token_ids[bounds].clone(),
    )


def _from_zero(slices: Sequence[StepSlice]) -> tuple[StepSlice, ...]:
    first = slices[0].begin
    return tuple(replace(own, begin=own.begin - first, end=own.end - first) for own in slices)
