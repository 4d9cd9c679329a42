"""Logs the names of ignored request fields, at most once per minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ballast.wire.ignored_fields import IgnoredFields

log = logging.getLogger(__name__)

INTERVAL_S = 60.0


class IgnoredFieldsLog:
    """Collects names between two log lines, with the same limit as for one request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = IgnoredFields()
        self._num_requests = 0
        self._next = 0.0

    def note(self, ignored: IgnoredFields) -> None:
        """Add the ignored fields of a request that has ended."""
        for name in ignored.names:
            self._since.add(name)
        self._num_requests += 1
        if self._clock() >= self._next:
            log.warning("fields ignored", extra={"fields": str(self._since), "requests": self._num_requests})
            self._since, self._num_requests = IgnoredFields(), 0
            self._next = self._clock() + INTERVAL_S
