"""The API server's audit log: every call of every client, independent of what clients report themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class Call:
    """One finished request."""

    user: str
    verb: str
    resource: str
    """Including the subresource, for example pods/status."""
    namespace: str
    name: str
    code: int
    dry_run: bool = False

    @property
    def is_write(self) -> bool:
        return self.verb in WRITES


class AuditLog:
    """Reads on from the end of the last read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def new_calls(self, keep: Callable[[Call], bool] = lambda _: True) -> list[Call]:
        """Calls logged since this reader was created or last called."""
        with self._path.open("rb") as log:
            log.seek(self._offset)
            whole = log.read()
        whole = whole[: whole.rfind(b"\n") + 1]
        self._offset += len(whole)
        calls = (_call(json.loads(line)) for line in whole.splitlines())
        return [call for call in calls if keep(call)]

    def new_writes(self, user: str | None = None) -> list[Call]:
        """Writes by all users or by one; requests for tokens and access reviews do not count."""
        return self.new_calls(
            lambda call: call.is_write and (user is None or call.user == user) and not call.resource.endswith("reviews")
        )


def _call(event: dict[str, Any]) -> Call:
    target = event.get("objectRef", {})
    resource = target.get("resource", event["requestURI"])
    if target.get("subresource"):
        resource += "/" + target["subresource"]
    code = event.get("responseStatus", {}).get("code", 0)
    where = target.get("namespace", ""), target.get("name", "")
    return Call(event["user"]["username"], event["verb"], resource, *where, code, "dryRun=" in event["requestURI"])
