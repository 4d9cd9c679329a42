"""How a device hands activations to the CPU's experts, and gets their results: what a backend gives `HostExperts`."""

from __future__ import annotations

from dataclasses import dataclass

from ballast.model.hybrid.handoff.signals import Signals
from ballast.model.hybrid.handoff.transport import Fetch, Send


@dataclass(frozen=True, slots=True)
class HandOff:
    """The operations of one device."""

    signals: Signals
    send: Send
    fetch: Fetch
    pins: bool
    """Whether the device reaches only host memory that is page-locked."""
