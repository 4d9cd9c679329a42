"""Options of `ballast serve` about GPUs, in engine.extraArgs: they must fit resources.gpus."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ballast_operator.api.base import cel

_JOINED = "('\\n' + self.engine.extraArgs.join('\\n\\n') + '\\n')"
_IS = r"(=|\n\n)"
"""Between an option and its value: in one word, or in two."""
_CHOSEN = rf"\n--device{_IS}cuda:"
_CHOSEN_HERE = rf"\n--device{_IS}cuda:[0-%d](,cuda:[0-%d])*\n"
"""%d: the number of the last GPU, which has one digit."""
_LISTS = r"\n--(device[-_]split|vram[-_]limit)(=|\n)"
_LISTS_OF_ALL = (
    rf"\n--(device[-_]split{_IS}(auto|[^,\n]+(,[^,\n]+){{%d}})|vram[-_]limit{_IS}[^,\n]+((,[^,\n]+){{%d}})?)\n"
)
"""%d: the number of GPUs after the first."""

OTHER_GPUS = "extraArgs must not set --device to a GPU that the pod lacks: resources.gpus is %d, counted from cuda:0"
OTHER_LISTS = (
    "extraArgs must set --device_split to a value for each GPU, and --vram_limit to one or as many: "
    "resources.gpus is %d"
)


def gpu_option_rules() -> tuple[dict[str, Any], ...]:
    """The rules in CEL, for the whole spec. Without GPUs, the server itself rejects such options."""
    return (
        _rule(_fits(_CHOSEN, _CHOSEN_HERE), OTHER_GPUS),
        _rule(f"{_count(_CHOSEN)} > 0 || {_fits(_LISTS, _LISTS_OF_ALL)}", OTHER_LISTS),
    )


def check_gpu_options(gpus: int, words: Sequence[str]) -> None:
    """The same rules for these extraArgs. Raises ValueError."""
    text = "\n" + "\n\n".join(words) + "\n"

    def fits(given: str, allowed: str) -> bool:
        return len(re.findall(given, text)) == len(re.findall(allowed.replace("%d", str(gpus - 1)), text))

    if gpus and not fits(_CHOSEN, _CHOSEN_HERE):
        raise ValueError(OTHER_GPUS % gpus)
    if gpus and not re.search(_CHOSEN, text) and not fits(_LISTS, _LISTS_OF_ALL):
        raise ValueError(OTHER_LISTS % gpus)


def _rule(rule: str, message: str) -> dict[str, Any]:
    general = message.replace("%d", "another number")
    filled = f"'{message}'.format([self.resources.gpus])"
    return cel(f"self.resources.gpus == 0 || {rule}", general, filled, ".engine.extraArgs")


def _fits(given: str, allowed: str) -> str:
    """Whether each occurrence of the first pattern is also one of the second, which the number of GPUs is put into."""
    numbers = ", ".join(["self.resources.gpus - 1"] * allowed.count("%d"))
    return f"{_count(given)} == {_JOINED}.findAll(r'{allowed}'.format([{numbers}])).size()"


def _count(pattern: str) -> str:
    return f"{_JOINED}.findAll(r'{pattern}').size()"
