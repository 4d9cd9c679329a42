"""Every error that Ballast raises on purpose, sorted by who has to act.

Errors name the thing, the value and the way out. The exit codes are part of the command line's contract:
2 bad configuration, 3 model unusable, 4 not enough memory, 70 our own fault.
"""

from __future__ import annotations

from pathlib import Path


class BallastError(Exception):
    """Base of all expected errors. An error that leaves the process does so with its class's exit code."""

    exit_code = 70


class ConfigError(BallastError):
    """A setting that cannot work. Raised before anything is loaded."""

    exit_code = 2

    def __init__(self, key: str, value: object, way_out: str) -> None:
        super().__init__(f"{key}={value}: {way_out}")
        self.key, self.value, self.way_out = key, value, way_out


class ModelError(BallastError):
    """A model file that cannot be served: unknown type, missing tensor, wrong shape, truncated data."""

    exit_code = 3

    def __init__(self, file: Path | str, problem: str, tensor: str | None = None) -> None:
        super().__init__(f"{file}: {problem}" if tensor is None else f"{file}: tensor {tensor}: {problem}")
        self.file, self.tensor, self.problem = file, tensor, problem


class OutOfMemoryError(BallastError):
    """The plan needs more memory than the machine, or the container's limit, offers."""

    exit_code = 4


class RequestError(BallastError):
    """A request that is wrong in itself. `param` is the dotted path of the offending field."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status


class CapacityError(BallastError):
    """No room now; the same request may succeed after `retry_after_s` seconds. 429: queue full; 503: not ready."""

    def __init__(self, message: str, *, retry_after_s: int, status: int = 429) -> None:
        super().__init__(message)
        self.message, self.retry_after_s, self.status = message, retry_after_s, status


class EngineDeadError(BallastError):
    """The engine stopped on a fault of its own; every request it held gets this."""

    @classmethod
    def because_of(cls, failure: BaseException) -> EngineDeadError:
        """What `failure` of the engine is to those who asked it for something."""
        if isinstance(failure, cls):
            return failure
        told = str(failure) if isinstance(failure, BallastError) else first_line(failure)
        return cls(f"the engine stopped on an internal error: {told}")


def first_line(error: BaseException) -> str:
    """An error that nobody expected, on one line: CUDA's go on with advice for programmers."""
    line, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {line}"
