"""Reads benchmarks/results: the newest record of a case."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"

Record = Mapping[str, Any]


class NoRecordError(Exception):
    """A page asks for a figure that no record holds."""


def newest(file: str, case: str, where: Mapping[str, object]) -> Record:
    """The last measured record of `case` in `file` whose figures include `where`.

    Raises NoRecordError if there is none."""
    found = [record for record in _records(file) if record["case"] == case and where.items() <= record.items()]
    if not found:
        raise NoRecordError(f"benchmarks/results/{file} has no record of {case!r} with {dict(where)}")
    return max(found, key=lambda record: str(record["time"]))


def middle(figure: object) -> float:
    """A figure as one number: the median of repeated measurements."""
    if isinstance(figure, list):
        return float(median(figure))
    if not isinstance(figure, (int, float)):
        raise NoRecordError(f"{figure!r} is not a number")
    return float(figure)


def machine(record: Record) -> str:
    """The hardware of a record, in words."""
    cores = f"{record['cores']} cores of {_chip(str(record.get('cpu', 'an unnamed CPU')), str(record.get('isa', '')))}"
    if "gpu" in record:
        number = "two" if len(record.get("devices", "1")) > 1 else "one"
        return f"{number} {record['gpu']} and {cores}"
    return f"a GPU and {cores}" if str(record.get("device", "")).startswith("cuda") else cores


def _chip(model: str, isa: str) -> str:
    """A processor's short name. Virtual machines hide the generation, but AMX identifies it."""
    name = " ".join(model.replace("(R)", "").replace("Processor", "").split())
    return f"{name} with AMX" if isa == "amx" else name


@cache
def _records(file: str) -> tuple[Record, ...]:
    lines = (RESULTS / file).read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line) for line in lines if line)
