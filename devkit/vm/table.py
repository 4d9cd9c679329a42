"""Results of the guest tests: one record line per case, and a table at the end."""

from __future__ import annotations

import os
from pathlib import Path

from devkit.bench_record import bench_record

RECORDS = "BALLAST_NUMA_RECORDS"
"""Variable with the file to which records are appended; without it, none are written."""


class Table:
    """Cases in the order of observation."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, dict[str, object]]] = []

    def add(self, case: str, **seen: object) -> None:
        self._rows.append((case, seen))

    def show(self) -> None:
        """Print the rows; append them to the records if a file is set."""
        for case, seen in self._rows:
            print(f"\n{case}", *(f"  {name:28} {found}" for name, found in seen.items()), sep="\n")
        if path := os.environ.get(RECORDS):
            with Path(path).open("a") as file:
                file.writelines(bench_record("numa/vm", case, **seen) + "\n" for case, seen in self._rows)
