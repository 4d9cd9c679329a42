"""Options of `ballast serve` about GPUs, in engine.extraArgs: they must fit resources.gpus."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from ballast_operator.api.base import cel

MAX_GPUS = 8
"""The GPUs of one pod."""
CHOOSES = "cuda:"
"""Part of an argument that names GPUs. If there is one, the server checks the other options against it."""

OTHER_GPUS = "extraArgs must not set --device to a GPU that the pod lacks: resources.gpus is %d, counted from cuda:0"
OTHER_LISTS = (
    "extraArgs must set --device_split to a value for each GPU, and --vram_limit to one or as many: resources.gpus "
    "is %d"
)

_ARGS, _GPUS = "self.engine.extraArgs", "self.resources.gpus"


def gpu_option_rules() -> tuple[dict[str, Any], ...]:
    """The rules in CEL, for the whole spec. Without GPUs, the server itself rejects such options."""
    # Bounded cost: the API server rejects rules that could visit each name of each argument.
    lacks = " && ".join(f"({_GPUS} > {n} || !w.contains('{CHOOSES}{n}'))" for n in range(1, MAX_GPUS))
    device = f"{_ARGS}.all(w, !w.contains('{CHOOSES}') || (!w.matches('{CHOOSES}([89]|[0-9][0-9])') && {lacks}))"
    split = _cel("device_split", lambda v: f"({v} == 'auto' || {v}.split(',').size() == {_GPUS})")
    limit = _cel("vram_limit", lambda v: f"{v}.split(',').size() in [1, {_GPUS}]")
    chooses = f"{_ARGS}.exists(w, w.contains('{CHOOSES}'))"
    return _rule(device, OTHER_GPUS), _rule(f"{chooses} || ({split} && {limit})", OTHER_LISTS)


def check_gpu_options(gpus: int, words: Sequence[str]) -> None:
    """The same rules for these extraArgs. Raises ValueError."""
    if not gpus:
        return
    if any(int(index) >= gpus for word in words for index in re.findall(rf"{CHOOSES}([0-9]+)", word)):
        raise ValueError(OTHER_GPUS % gpus)
    splits = all(value == "auto" or len(value.split(",")) == gpus for value in _values(words, "device_split"))
    limits = all(len(value.split(",")) in (1, gpus) for value in _values(words, "vram_limit"))
    if not any(CHOOSES in word for word in words) and not (splits and limits):
        raise ValueError(OTHER_LISTS % gpus)


def _values(words: Sequence[str], option: str) -> Iterator[str]:
    """Each value that is joined to the option by "=", and the last one that follows it as a word."""
    for flag in _flags(option):
        yield from (word.partition("=")[2] for word in words if word.startswith(f"{flag}="))
        yield from [value for word, value in pairwise(words) if word == flag][-1:]


def _cel(option: str, accepts: Callable[[str], str]) -> str:
    """The same values in CEL: whether each is accepted, which is an expression about a string."""
    parts = []
    for flag in _flags(option):
        following = f"{_ARGS}.lastIndexOf('{flag}') + 1"
        joined = f"{_ARGS}.all(w, !w.startsWith('{flag}=') || {accepts(f'w.substring({len(flag) + 1})')})"
        apart = f"(!({following} in [0, {_ARGS}.size()]) ? {accepts(f'{_ARGS}[{following}]')} : true)"
        parts += [joined, apart]
    return " && ".join(parts)


def _flags(option: str) -> tuple[str, ...]:
    """The option as it may be written."""
    return tuple({f"--{option}": None, f"--{option.replace('_', '-')}": None})


def _rule(rule: str, message: str) -> dict[str, Any]:
    general = message.replace("%d", "another number")
    return cel(f"{_GPUS} == 0 || ({rule})", general, f"'{message}'.format([{_GPUS}])", ".engine.extraArgs")
