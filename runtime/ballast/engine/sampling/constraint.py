"""The engine's interface to a grammar: which tokens may come next."""

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

        They include the end token where the text may end. Called on a helper thread while the model computes, at most
        once per token. Raises RequestError if the grammar has become too complex to continue.
        """

    def accept(self, token_id: int) -> None:
        """Advance by one allowed token."""


class Constraint(Protocol):
    """A compiled grammar."""

    def start(self) -> ConstraintState:
        """The state before the first generated token. Cheap."""


def broken_grammar(error: BaseException) -> RequestError:
    """The error for a request whose grammar raised an unexpected `error`. Other requests continue: grammars share no
    state."""
    return RequestError(f"the grammar failed: {first_line(error)}", status=500, code="grammar_broken")
