"""Selects each token's experts on the device: the protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from ballast.model.layers.feed_forward import RoutingSpec


class Choose(Protocol):
    """logits float32 [T, E] → ids int32 [T, k], weights float32 [T, k], in descending order of the biased score; ties
    go to the lower id. Where a table gives the experts of a token's id, in the order of the table: `token_ids` int32
    [T]."""

    def __call__(
        self, logits: torch.Tensor, token_ids: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


MakeRouter = Callable[[RoutingSpec, torch.Tensor | None, torch.Tensor | None], Choose]
"""Makes the selection for one layer from its rule, its bias, and its table int32 [vocabulary, k], if it has one."""
