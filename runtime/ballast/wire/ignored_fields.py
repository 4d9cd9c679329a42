"""The fields of one request that had no effect because the server does not know them, or is set up not to heed them."""

from __future__ import annotations

import re

from ballast.errors import RequestError

MAX_NAMED = 16
"""Names that are kept; further ones are only counted."""
MAX_NAME_CHARS = 128
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_INDEX = re.compile(r"\.\d+(?=\.)")


class IgnoredFields:
    """Names of ignored fields, up to a limit, and their number. The names are safe in a header and in a log."""

    def __init__(self, *, refuse_unknown: bool = False) -> None:
        self.refuse_unknown = refuse_unknown
        self.names: list[str] = []
        """The first of them, in the order of the body; of the items of one list, the first that has the field."""
        self.count = 0
        """All of them; beyond MAX_NAMED names, once an item of a list."""
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
        """Note what the server does not know. Raises RequestError with `objection` where that is to be refused."""
        if self.refuse_unknown:
            raise RequestError(f"{path}: {objection}", param=path)
        self.add(path)

    def __bool__(self) -> bool:
        """Whether anything was ignored."""
        return self.count > 0

    def __str__(self) -> str:
        """The names, and how many there are besides."""
        more = [f"{self.count - len(self.names)} more"] if self.count > len(self.names) else []
        return ", ".join((*self.names, *more))
