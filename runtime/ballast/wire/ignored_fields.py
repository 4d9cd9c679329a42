"""The fields of one request that had no effect because they are unknown or disabled by the server's settings."""

from __future__ import annotations

import re

from ballast.errors import RequestError

MAX_NAMED = 16
"""Maximum number of names to keep; further fields are only counted."""
MAX_NAME_CHARS = 128
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_INDEX = re.compile(r"\.\d+(?=\.)")


class IgnoredFields:
    """The names of ignored fields, up to a limit, and their number. The names are safe for headers and logs."""

    def __init__(self, *, refuse_unknown: bool = False) -> None:
        self.refuse_unknown = refuse_unknown
        self.names: list[str] = []
        """The first names in the order of the body; for a list's items, only the first item with the field."""
        self.count = 0
        """The number of all ignored fields; after MAX_NAMED names, list items count individually."""
        self._seen: set[str] = set()

    def add(self, path: str) -> None:
        """Note the field with this dotted path."""
        if len(self.names) == MAX_NAMED:
            self.count += 1
            return
        name = _UNSAFE.sub("?", path[:MAX_NAME_CHARS])
        general = _INDEX.sub(".*", name)
        if general not in self._seen:
            self._seen.add(general)
            self.names.append(name)
            self.count += 1

    def unknown(self, path: str, objection: str = "this server does not know this field; leave it out") -> None:
        """Note an unknown field. Raises RequestError with `objection` if the server refuses unknown fields."""
        if self.refuse_unknown:
            raise RequestError(f"{path}: {objection}", param=path)
        self.add(path)

    def __bool__(self) -> bool:
        """Whether anything was ignored."""
        return self.count > 0

    def __str__(self) -> str:
        """The names and the number of further fields."""
        more = [f"{self.count - len(self.names)} more"] if self.count > len(self.names) else []
        return ", ".join((*self.names, *more))
