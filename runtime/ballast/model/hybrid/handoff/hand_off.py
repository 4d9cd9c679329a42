"""Transfers activations from a device to the CPU experts, and results back. A backend provides it to `HostExperts`."""

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
    """Whether the device can access only page-locked host memory."""
