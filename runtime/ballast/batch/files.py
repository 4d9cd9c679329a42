"""The two files of a batch: requests, which are checked before the model is loaded, and replies, which are
append-only."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from ballast.batch.lines import OWN_BEGIN, BatchRequest, LineError, read_held, read_request
from ballast.documents.small_file import DocumentError, without_mark
from ballast.errors import ConfigError, shown

MAX_LINE_BYTES = 64 << 20
_MAX_PROBLEMS = 5


def read_requests(file: Path) -> Iterator[BatchRequest]:
    """The requests of a file, in order. Raises ConfigError for the first invalid line."""
    for number, line in _lines(file):
        try:
            yield read_request(line)
        except LineError as error:
            raise ConfigError("requests", file, f"line {number}: {error}") from None


def check_requests(file: Path) -> frozenset[str]:
    """The custom_ids of a file of requests. Raises ConfigError, which names the first invalid lines."""
    seen: dict[str, int] = {}
    problems = []
    for number, line in _lines(file):
        try:
            name = read_request(line).custom_id
            if name in seen:
                raise LineError(f"custom_id {shown(name)} is also used in line {seen[name]}; each must be unique")
            seen[name] = number
        except LineError as error:
            problems.append(f"line {number}: {error}")
            if len(problems) == _MAX_PROBLEMS:
                break
    if problems:
        raise ConfigError("requests", file, "; ".join(problems))
    if not seen:
        raise ConfigError("requests", file, "has no request")
    return frozenset(seen)


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    try:
        with file.open("rb") as stream:
            number = 0
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise ConfigError("requests", file, f"line {number} is longer than {MAX_LINE_BYTES} bytes")
                if number == 1:
                    line = without_mark(line)
                if line.strip():
                    yield number, line
    except DocumentError as error:
        raise ConfigError("requests", file, str(error)) from None
    except OSError as error:
        raise ConfigError("requests", file, f"cannot be read: {error.strerror}") from None


class Replies:
    """A file of replies, which only one process at a time may extend. Closed by leaving its context.

    If a crash left an incomplete last line, that line is removed and its request is answered again.
    """

    def __init__(self, file: Path) -> None:
        """Open or create `file`. Raises ConfigError if it has other content."""
        self._file = file
        try:
            self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise ConfigError("replies", file, f"cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held = self._read()
            """custom_id → whether the request failed."""
        except BlockingIOError:
            os.close(self._fd)
            raise ConfigError(
                "replies", file, "another `ballast batch` is writing it; wait until that one ends"
            ) from None
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def add(self, custom_id: str, line: bytes) -> None:
        """Append the line of a reply. Raises ConfigError if the file cannot be written."""
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            raise ConfigError(
                "replies", self._file, f"cannot be written: {error.strerror}; run the same command again to continue"
            ) from None
        self.held[custom_id] = read_held(line)[1]

    def _read(self) -> dict[str, bool]:
        held: dict[str, bool] = {}
        end = 0
        with self._file.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.endswith(b"\n") and (line[: len(OWN_BEGIN)] == OWN_BEGIN[: len(line)]):
                    os.ftruncate(self._fd, end)
                    break
                try:
                    custom_id, failed = read_held(line)
                except LineError as error:
                    problem = f"line {number} is not a reply of a batch ({error}); choose another file"
                    raise ConfigError("replies", self._file, problem) from None
                held[custom_id] = failed
                end += len(line)
        return held
