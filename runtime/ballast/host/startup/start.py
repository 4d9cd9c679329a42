"""The records of a start: the seconds of its phases, its measurements, and the kernels that were missing."""

from __future__ import annotations

from dataclasses import dataclass, field

from ballast.host.startup.measurements import Measurements
from ballast.host.startup.start_times import StartTimes


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a model. By default, measurements are not kept."""

    measurements: Measurements = field(default_factory=Measurements)
    times: StartTimes = field(default_factory=StartTimes)
    missing: list[str] = field(default_factory=list)
    """Kernels that were still compiling, and features that were switched off, when the model was loaded. A later start
    may have them and then computes faster."""
