"""Keeps the measurements of a start for later starts of the same model on the same machine.

One JSON file per set of facts that the measurements depend on. A file is replaced as a whole, so several servers may
share the folder. If a file cannot be used, the start measures again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from ballast.errors import first_line

log = logging.getLogger(__name__)

MeasurementMode = Literal["kept", "new", "off"]
"""reuse: use and keep measurements; the others measure again, and keep the results or leave the files unchanged."""

FORMAT = 1
MAX_BYTES = 1 << 20
"""Maximum size of a file."""
MAX_SECONDS = 1e6
MAX_FILES = 64
"""Maximum number of files in a folder; the oldest are deleted."""

T = TypeVar("T")


class Measurements:
    """The measurements of one start. `folder` None: none are kept."""

    def __init__(
        self, folder: Path | None = None, facts: Mapping[str, Any] | None = None, *, reuse: bool = True
    ) -> None:
        """`facts`: everything that all measurements depend on, as JSON. `reuse`: whether to use earlier
        measurements."""
        self._facts = _as_json(facts or {})
        self._file = None if folder is None else folder / f"{_digest(self._facts)}.json"
        self._entries: dict[str, Any] = {}
        self.reused: list[str] = []
        """Names of the measurements that this start read from the file."""
        if self._file is not None and reuse:
            self._entries = self._read(self._file)

    def take(
        self, name: str, inputs: Any, measure: Callable[[], T], dump: Callable[[T], Any], load: Callable[[Any], T]
    ) -> T:
        """The kept measurement `name` if it was made with the same `inputs`, else the result of `measure`, which is
        kept. `dump` turns it into JSON. `load` turns JSON back and raises ValueError, TypeError, KeyError or
        IndexError for a value that no measurement can give."""
        inputs = _as_json(inputs)
        entry = self._entries.get(name)
        if isinstance(entry, dict) and entry.get("inputs") == inputs:
            try:
                value = load(entry["value"])
            except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
                self._ignore(f"{name}: {type(error).__name__}: {first_line(error)}")
            else:
                self.reused.append(name)
                return value
        value = measure()
        if self._file is not None:
            self._entries[name] = {"inputs": inputs, "value": _as_json(dump(value))}
            self._write(self._file)
        return value

    def _read(self, file: Path) -> dict[str, Any]:
        try:
            kept = json.loads(_content(file))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            self._ignore(first_line(error))
            return {}
        if not isinstance(kept, dict) or kept.get("format") != FORMAT:
            self._ignore(f"its format is not {FORMAT}")
        elif kept.get("facts") != self._facts or not isinstance(kept.get("measured"), dict):
            self._ignore("its facts do not match its name")
        else:
            return dict(kept["measured"])
        return {}

    def _ignore(self, why: str) -> None:
        extra = {"file": str(self._file), "why": why, "instead": "measured again"}
        log.warning("kept measurements cannot be used", extra=extra)

    def _write(self, file: Path) -> None:
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            content = {"format": FORMAT, "facts": self._facts, "measured": self._entries}
            with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".partial", delete=False) as out:
                partial = Path(out.name)
                try:
                    json.dump(content, out)
                    out.flush()
                    partial.replace(file)
                except BaseException:
                    partial.unlink()
                    raise
            _remove_old(file.parent)
        except OSError as error:
            log.warning("measurements are not kept", extra={"file": str(file), "why": error.strerror or str(error)})
            self._file = None  # the warning is logged once per start


def kept_seconds(value: Any) -> float:
    """Seconds from a file. Raises ValueError for values that a clock cannot return."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        raise ValueError(f"{value!r} is not a number of seconds")
    return float(value)


def kept_counts(values: Sequence[Any], most: int) -> list[int]:
    """Ascending numbers from a file, from 1 to `most`. Raises ValueError for others and for none."""
    if not values or any(type(value) is not int for value in values):
        raise ValueError(f"{values!r} is not a list of numbers")
    if values[0] < 1 or values[-1] > most or any(low >= high for low, high in itertools.pairwise(values)):
        raise ValueError(f"{values!r} is not ascending within 1 to {most}")
    return list(values)


def _content(file: Path) -> bytes:
    """The bytes of a regular file. Raises OSError and ValueError."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        content = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    return content


def _remove_old(folder: Path) -> None:
    """Remove all but the newest files. Another server may do the same."""
    changed: dict[Path, float] = {}
    for file in folder.iterdir():
        with suppress(FileNotFoundError):
            changed[file] = file.lstat().st_mtime
    for file in sorted(changed, key=changed.__getitem__, reverse=True)[MAX_FILES:]:
        with suppress(OSError):
            file.unlink()


def _as_json(value: Any) -> Any:
    """The value after a round trip through JSON. Raises ValueError for NaN and infinity."""
    return json.loads(json.dumps(value, allow_nan=False))


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps([FORMAT, facts], sort_keys=True).encode()).hexdigest()[:32]
