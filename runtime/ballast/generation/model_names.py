"""The names under which a model is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ballast.errors import RequestError


@dataclass(frozen=True, slots=True)
class ModelNames:
    """The model's names, and whether requests may use others."""

    names: Sequence[str]
    """At least one. The first is used in replies to requests without a model name."""
    is_strict: bool = False

    def for_reply(self, requested: str | None) -> str:
        """The name for the reply. In strict mode, raises RequestError (404) for an unknown name."""
        if requested is None:
            return self.names[0]
        if self.is_strict and requested not in self.names:
            raise self.no_such_model(requested)
        return requested

    def no_such_model(self, name: str) -> RequestError:
        """The error for an unknown name."""
        return RequestError(
            f"The model {name!r} does not exist; this server serves {', '.join(self.names)}",
            param="model",
            code="model_not_found",
            status=404,
        )
