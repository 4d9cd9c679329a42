"""What the engine needs of a grammar: before each token, which tokens may come."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class ConstraintState(Protocol):
    """Where one sequence is in its grammar."""

    def allowed(self) -> NDArray[np.bool_] | None:
        """[vocabulary] the tokens that may come next, the end token among them where the text may end; None: any.

        Called on a helper thread while the model computes, at most once for each token. Raises RequestError when the
        grammar has become too complex to go on.
        """

    def accept(self, token_id: int) -> None:
        """Go on by one allowed token."""


class Constraint(Protocol):
    """A compiled grammar."""

    def start(self) -> ConstraintState:
        """At the first generated token. Cheap."""
