"""Whether the watches deliver: what a LIST shows must have come through a watch a while later."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ballast_operator.control.memory import version_of

log = logging.getLogger(__name__)

GRACE_S = 30.0
"""What a watch may lag behind a LIST."""


class Freshness:
    """Compares what the watches brought with what lists show."""

    def __init__(self) -> None:
        self._watched: dict[str, str] = {}
        self._owed: dict[str, tuple[str, float]] = {}
        self._absent: set[str] = set()
        self._stale_since: float | None = None

    def watched(self, body: Mapping[str, Any], *, gone: bool) -> None:
        """A watch brought this object."""
        uid, version = version_of(body)
        if gone:
            self._watched.pop(uid, None)
        else:
            self._watched[uid] = version

    def begin(self) -> None:
        """The watches are about to begin; nothing is owed yet."""
        self._watched.clear()
        self._owed.clear()
        self._absent = set()
        self._stale_since = None

    def compare(self, listed: Iterable[Mapping[str, Any]], now: float) -> None:
        """Take what a LIST shows at `now`. An object whose listed version is neither watched nor replaced by a newer
        one within GRACE_S is owed for good: the watch has missed it."""
        versions = dict(version_of(body) for body in listed)
        # Deletions are not held against a watch: the list itself heals them. What is missing once may be newer than the
        # list; what is missing twice is gone.
        absent = self._watched.keys() - versions.keys()
        for uid in absent & self._absent:
            del self._watched[uid]
        self._absent = absent
        behind = {uid: version for uid, version in versions.items() if self._watched.get(uid) != version}
        missed = False
        for uid, (version, since) in list(self._owed.items()):
            if behind.get(uid) != version:
                del self._owed[uid]
            elif now - since > GRACE_S:
                missed = True
                log.warning(
                    "no watch brought this", extra={"uid": uid, "version": version, "has": self._watched.get(uid)}
                )
        for uid, version in behind.items():
            self._owed.setdefault(uid, (version, now))
        if not missed:
            self._stale_since = None
        elif self._stale_since is None:
            self._stale_since = now

    def stale_s(self, now: float) -> float:
        """For how long the watches have been missing something; 0 while all is well."""
        return 0.0 if self._stale_since is None else now - self._stale_since
