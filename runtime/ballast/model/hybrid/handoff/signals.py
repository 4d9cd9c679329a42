"""Words of host memory that the device sets and waits for, in the order of its queue."""

from __future__ import annotations

from typing import Protocol

import torch


class Signals(Protocol):
    """Sets and awaits words, which are zero or one. If the device has a queue, calls return immediately, and the
    operations run in the queue's order."""

    def raise_word(self, words: torch.Tensor, index: int) -> None:
        """Set a word to one."""

    def await_word(self, words: torch.Tensor, index: int) -> None:
        """Wait until a word is one, and set it to zero."""

    def check(self, device: torch.device) -> None:
        """Raise the error of a failed device."""
