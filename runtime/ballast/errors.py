"""The errors that Ballast raises on purpose, grouped by who must fix them.

Each message says what is wrong, the value, and what to do. The exit codes are part of the command line's contract:
2 bad configuration, 3 model unusable, 4 not enough memory, 70 internal error.
"""

from __future__ import annotations

import math
import reprlib
from pathlib import Path

RETRY_AFTER_S = 5
"""Default of Retry-After, in seconds, if no measurement is available."""

_MAX_CHARS = 400
"""Most characters of a value in a message. A value from a hostile file may have millions."""


class BallastError(Exception):
    """Base of all expected errors. If one ends the process, the class determines the exit code."""

    exit_code = 70


class ConfigError(BallastError):
    """An invalid setting. Raised before anything is loaded."""

    exit_code = 2

    def __init__(self, key: str, value: object, advice: str) -> None:
        super().__init__(f"{key}={shown(value, _MAX_CHARS)}: {advice}")
        self.key, self.value, self.advice = key, value, advice


class ModelError(BallastError):
    """A model file that cannot be served: unknown type, missing tensor, wrong shape, truncated data."""

    exit_code = 3

    def __init__(self, file: Path | str, problem: str, tensor: str | None = None) -> None:
        super().__init__(f"{file}: {problem}" if tensor is None else f"{file}: tensor {tensor}: {problem}")
        self.file, self.tensor, self.problem = file, tensor, problem


class OutOfMemoryError(BallastError):
    """The plan needs more memory than the machine has, or than the container's limit allows."""

    exit_code = 4


class RequestError(BallastError):
    """An invalid request. `param` is the dotted path of the offending field."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status


class ContextLengthError(RequestError):
    """A request that is longer than the model's context."""

    def __init__(self, limit: int, excess: str, *, param: str, advice: str = "Shorten the prompt.") -> None:
        """`limit` is in tokens; `excess` is a clause such as "your request needs 9 tokens"."""
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, {excess}. {advice}",
            param=param,
            code="context_length_exceeded",
        )


class CapacityError(BallastError):
    """No capacity now; the same request may succeed after `retry_after_s` seconds.

    Status 429: the server is overloaded. 503: it does not serve requests. `code` names the limit that was reached; the
    default is queue_full for 429 and not_ready for 503.
    """

    def __init__(
        self, message: str, *, retry_after_s: float = RETRY_AFTER_S, status: int = 429, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.retry_after_s, self.status = message, retry_after_s, status
        self.code = code or ("queue_full" if status == 429 else "not_ready")

    @classmethod
    def busy(cls, reason: str, *, retry_after_s: float = RETRY_AFTER_S, code: str | None = None) -> CapacityError:
        """Status 429; the message tells the client when to try again."""
        return cls(f"{reason}; try again in {math.ceil(retry_after_s)} s", retry_after_s=retry_after_s, code=code)

    @classmethod
    def shutting_down(cls) -> CapacityError:
        """Status 503, for requests that a stopping server cannot finish."""
        return cls("the server is shutting down", status=503, code="shutting_down")


class EngineDeadError(BallastError):
    """The engine stopped on an internal error; all requests that it held get this error."""

    @classmethod
    def because_of(cls, failure: BaseException) -> EngineDeadError:
        """The error for requests to an engine that `failure` has killed."""
        if isinstance(failure, cls):
            return failure
        reason = str(failure) if isinstance(failure, BallastError) else first_line(failure)
        return cls(f"the engine stopped on an internal error: {reason}")


def shown(value: object, most_chars: int = 80) -> str:
    """A value for a message: on one line, without control characters, and truncated."""
    text = str(value) if isinstance(value, str | Path) else reprlib.repr(value)
    if not text.isprintable():
        text = text.encode("unicode_escape").decode()
    return text if len(text) <= most_chars else f"{text[:most_chars]}…"


def how_to_install(extra: str | None = None) -> str:
    """The end of a message about a missing package: what installs it in a clone and with the wheel."""
    again = "install the wheel again" if extra is None else f"install the wheel with its extra: WHEEL[{extra}]"
    return f"run `make setup` in the clone, or {again}"


def first_line(error: BaseException) -> str:
    """An unexpected error on one line. CUDA's messages continue with advice for programmers."""
    line, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {line}"
