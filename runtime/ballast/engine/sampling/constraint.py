"""What the engine needs from a grammar: which tokens may come next."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ballast.errors import RequestError, first_line

Mask = NDArray[np.uint8] | None
"""A bit for each token of the vocabulary that may come next: bit i % 8 of byte i / 8 for token i. None allows every
token."""


class ConstraintState(Protocol):
    """The position of one sequence in its grammar."""

    def allowed(self) -> Mask:
        """The tokens that may come next.

        The end token is among them where the text may end. Called on a helper thread while the model computes, at most
        once per token. Raises RequestError when the grammar has become too complex to continue.
        """

    def accept(self, token_id: int) -> None:
        """Advance by one allowed token."""


class Constraint(Protocol):
    """A compiled grammar."""

    def start(self) -> ConstraintState:
        """The state before the first generated token. Cheap."""


def broken_grammar(error: BaseException) -> RequestError:
    """The error for a request whose grammar has raised an unexpected `error`. Other requests go on: no state of a
    grammar is shared."""
    return RequestError(f"the grammar broke: {first_line(error)}", status=500, code="grammar_broken")
