"""The names under which a model is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ballast.errors import RequestError


@dataclass(frozen=True, slots=True)
class ModelNames:
    """The model's names, and whether requests may use others."""

    names: Sequence[str]
    """At least one. Replies to requests that name no model have the first."""
    is_strict: bool = False

    def for_reply(self, requested: str | None) -> str:
        """The name for the reply. In strict mode, raises RequestError (404) for a name that the model does not have."""
        if requested is None:
            return self.names[0]
        if self.is_strict and requested not in self.names:
            raise self.no_such_model(requested)
        return requested

    def no_such_model(self, name: str) -> RequestError:
        """The error for a name that the model does not have."""
        return RequestError(
            f"The model {name!r} does not exist; this server has {', '.join(self.names)}",
            param="model",
            code="model_not_found",
            status=404,
        )
