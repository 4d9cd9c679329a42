"""Transfers activations from devices to the CPU experts, and results back. A backend provides it to `HostExperts`."""

from __future__ import annotations

from dataclasses import dataclass

from ballast.model.hybrid.handoff.signals import Signals
from ballast.model.hybrid.handoff.transport import Fetch, Send


@dataclass(frozen=True, slots=True)
class HandOff:
    """The operations of one kind of device. They run on the current device, in the order of its current stream."""

    signals: Signals
    send: Send
    fetch: Fetch
    pins: bool
    """Whether the device can access only page-locked host memory."""
