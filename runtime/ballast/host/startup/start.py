"""What a start records: the seconds of its phases, and its measurements."""

from __future__ import annotations

from dataclasses import dataclass, field

from ballast.host.startup.measurements import Measurements
from ballast.host.startup.start_times import StartTimes


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a model. By default no measurements are kept."""

    measurements: Measurements = field(default_factory=Measurements)
    times: StartTimes = field(default_factory=StartTimes)
