"""An indexer's keys where neighbouring tokens share one: what their kernels read and write."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """A layer's shared keys and the states of incomplete pools, for pools of P tokens with keys of K numbers."""

    keys: torch.Tensor  # [slots / P, K], in the cache's type
    states: torch.Tensor  # float32 [state slots, P - 1, 2, K], keys and gates, or without gates [state slots, P - 1, K]
    """Slot 0 is not used."""


@dataclass(frozen=True, slots=True)
class PooledTokens:
    """What a step's tokens add to pools."""

    keys: torch.Tensor  # float32 [T, K], normed
    gates: torch.Tensor  # float32 [T, K], which weight them
    offset: torch.Tensor  # float32 [P, K], is added to the gates, by place in a pool


@dataclass(frozen=True, slots=True)
class BlockTokens:
    """The keys that a step's tokens add to blocks of positions, which are pools. A block's key is the mean of its
    tokens' keys, normed, and rotated by the position of its first token."""

    keys: torch.Tensor  # float32 [T, K], as products give them
    norm: torch.Tensor  # float32 [K]
