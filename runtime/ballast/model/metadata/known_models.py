"""Finds a file's model among those that families know by their dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ballast.families.family import Dimensions, KnownModel, Value
from ballast.families.registry import KNOWN_MODELS
from ballast.model.metadata.keys import Keys, is_number


def matching_models(dimensions: Dimensions, keys: Keys) -> tuple[KnownModel, ...]:
    """The known models that have these dimensions and that no key of the file contradicts."""
    return tuple(
        model
        for model in KNOWN_MODELS
        if _same(model.dimensions, dimensions)
        and all(_agrees(value, keys.get(key)) for key, value in model.values.items())
    )


def common_value(models: Iterable[KnownModel], key: str) -> Value | None:
    """The value of a key that all `models` share; None if they differ, or one has no value."""
    values = {model.values.get(key) for model in models}
    return values.pop() if len(values) == 1 else None


def names(models: Sequence[KnownModel]) -> str:
    """The models' names, for messages."""
    return " or ".join(model.name for model in models)


def _same(known: Dimensions, found: Dimensions) -> bool:
    """Equal, but for the width of dense layers where a file has none."""
    return (known if found.ffn_dim else known._replace(ffn_dim=0)) == found


def _agrees(known: Value, found: object) -> bool:
    """Whether a file's value, if it has one, is the known one up to the file's rounding to float32."""
    if found is None:
        return True
    if isinstance(known, bool) or not is_number(found):
        return found is known
    return math.isclose(found, known, rel_tol=1e-5)
