"""Checks that the watches deliver: a watch must deliver each version that a LIST shows within GRACE_S."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ballast_operator.control.state import version_of

log = logging.getLogger(__name__)

GRACE_S = 30.0
"""Maximum lag of a watch behind a LIST."""


class Freshness:
    """Compares the versions that watches delivered with those that lists show."""

    def __init__(self) -> None:
        self._watched: dict[str, str] = {}
        self._missing: dict[str, tuple[str, float]] = {}
        self._absent: set[str] = set()
        self._stale_since: float | None = None

    def watched(self, body: Mapping[str, Any], *, gone: bool) -> None:
        """Record an object that a watch delivered."""
        uid, version = version_of(body)
        if gone:
            self._watched.pop(uid, None)
        else:
            self._watched[uid] = version

    def begin(self) -> None:
        """Forget everything, before the watches start."""
        self._watched.clear()
        self._missing.clear()
        self._absent = set()
        self._stale_since = None

    def compare(self, listed: Iterable[Mapping[str, Any]], now: float) -> None:
        """Record the content of a LIST at `now`.

        The watches have missed a version that they did not deliver within GRACE_S, unless a list showed a newer one
        meanwhile.
        """
        versions = dict(version_of(body) for body in listed)
        # A missed deletion does not count: the list itself repairs it. An object that one list lacks may be newer than
        # the list; one that two lists lack is gone.
        absent = self._watched.keys() - versions.keys()
        for uid in absent & self._absent:
            del self._watched[uid]
        self._absent = absent
        behind = {uid: version for uid, version in versions.items() if self._watched.get(uid) != version}
        missed = False
        for uid, (version, since) in list(self._missing.items()):
            if behind.get(uid) != version:
                del self._missing[uid]
            elif now - since > GRACE_S:
                missed = True
                log.warning(
                    "no watch delivered this object",
                    extra={"uid": uid, "version": version, "has": self._watched.get(uid)},
                )
        for uid, version in behind.items():
            self._missing.setdefault(uid, (version, now))
        if not missed:
            self._stale_since = None
        elif self._stale_since is None:
            self._stale_since = now

    def stale_s(self, now: float) -> float:
        """Seconds for which the watches have been missing changes; 0 while they deliver."""
        return 0.0 if self._stale_since is None else now - self._stale_since
