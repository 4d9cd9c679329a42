"""Checked access to the keys of a GGUF file: a value is of the type and in the range that is asked for, or refused."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

from ballast.errors import ModelError, shown
from ballast.families.architecture import Architecture
from ballast.weights.gguf import GgufModel

LARGEST = 2**31 - 1
"""Bound of whole numbers. The kernels count in 32 bits."""


class Keys:
    """The keys of one file, named without the architecture's prefix."""

    def __init__(self, gguf: GgufModel, architecture: Architecture) -> None:
        self.gguf = gguf
        self.architecture = architecture

    def full(self, key: str) -> str:
        """The key with its prefix."""
        return f"{self.architecture.name}.{key}"

    def refuse(self, problem: str, tensor: str | None = None) -> ModelError:
        """The error that this file cannot be served."""
        return ModelError(self.gguf.path, problem, tensor)

    def wrong(self, key: str, expected: str) -> ModelError:
        """The error that a key is missing or has a senseless value."""
        value = self.get(key)
        if value is None:
            return self.refuse(f"{self.full(key)} is missing; expected {expected}")
        return self.refuse(f"{self.full(key)}={shown(value)}; expected {expected}")

    def has_tensor(self, name: str) -> bool:
        return name in self.gguf.tensors

    def get(self, key: str) -> Any:
        """A key's value, unchecked; None when absent."""
        return self.gguf.metadata.get(self.full(key))

    def first(self, *keys: str) -> str:
        """The first of `keys` that the file has; the last one if it has none."""
        return next((key for key in keys if self.get(key) is not None), keys[-1])

    def whole(self, key: str, default: int | None = None, minimum: int = 1, most: int = LARGEST) -> int:
        """A whole number from `minimum` to `most`."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not is_whole(value, minimum) or value > most:
            raise self.wrong(key, f"a whole number, at least {minimum} and at most {most}")
        return value

    def number(self, key: str, above: float = 0.0, most: float = math.inf) -> float:
        """A finite number that is greater than `above` and at most `most`."""
        value = self.get(key)
        if not is_number(value) or not above < value <= most:
            upper = "" if most == math.inf else f" and at most {most:g}"
            raise self.wrong(key, f"a number above {above:g}{upper}")
        return float(value)

    def each(self, key: str, num_layers: int, minimum: int = 1) -> tuple[int, ...]:
        """A whole number of each layer, which files list, or one for all. A list may have further entries. With a
        `minimum` of 0, it stands for layers without what the key counts."""
        value = self.get(key)
        values = value if isinstance(value, list) else [value] * num_layers
        if len(values) < num_layers or not all(is_whole(entry, minimum) for entry in values[:num_layers]):
            number, rest = (
                (f"a whole number, at least {minimum},", "") if minimum else ("a whole number", ", 0 for those without")
            )
            raise self.wrong(key, f"{number} for each of {num_layers} layers{rest}")
        return tuple(values[:num_layers])

    def uniform(self, key: str, layers: range) -> int:
        """A whole number that newer files may list per layer; it must be the same for all of `layers`."""
        value = self.get(key)
        if not isinstance(value, list):
            return self.whole(key)
        values = set(value[layers.start : layers.stop])
        if len(value) < layers.stop or len(values) != 1 or not is_whole(value[layers.start], 1):
            raise self.wrong(key, f"one and the same width for layers {layers.start}…{layers.stop - 1}")
        return int(values.pop())


def is_whole(value: object, minimum: int) -> TypeGuard[int]:
    """Whether a value is a whole number from `minimum` to LARGEST."""
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= LARGEST


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
