"""Routed experts that compute nothing, for warm-up steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ballast.model.hybrid.handoff.transport import Fetch, Mailbox, Send


class IdleExperts:
    """Replaces `HostExperts`: activations are copied to host memory and back as in any step, and every layer's result
    is zero. The device does not wait for the CPU, so a kernel may take any time to compile."""

    bytes_read = 0

    def __init__(self, mailbox: Mailbox, send: Send, fetch: Fetch) -> None:
        self._mailbox = mailbox
        self._send = send
        self._fetch = fetch
        self._num_tokens = 0
        self._sender = mailbox.inputs.device

    def begin(self, num_tokens: int) -> None:
        """See `HostExperts.begin`."""
        self._mailbox.results[:num_tokens].zero_()

    def submit(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        """See `HostExperts.submit`."""
        self._num_tokens, self._sender = len(x), x.device
        self._send(self._mailbox, x, ids, weights)

    def pieces(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Iterator[None]:
        """See `HostExperts.pieces`."""
        self.submit(layer, x, ids, weights)
        yield

    def result(self, layer: int) -> torch.Tensor:
        """float32 [T, D] on the device."""
        return self._fetch(self._mailbox, self._num_tokens, self._sender)

    def is_done(self, timeout_s: float) -> bool:
        """Always true: there is nothing to wait for."""
        return True

    def finish(self, alive: Callable[[], None]) -> None:
        """Does nothing: there is nothing to wait for."""
