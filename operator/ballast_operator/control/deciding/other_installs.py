"""Finds the installs of the operator that write to a service, and the one that acts on it. Pure.

Each install has a labelled Lease that lists the namespaces it watches, and writes a service's status under its own
field manager: the namespace and the name of that Lease. Other installs recognise it by both; the Lease exists before
anything is written. The install with the oldest Lease acts. The others do not act, and all of them report it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ballast_operator.names import FIELD_MANAGER, NAMESPACE_PATTERN, Ref

_INSTALL = re.compile(f"{NAMESPACE_PATTERN[1:-1]}/[a-z0-9][-a-z0-9.]*")


@dataclass(frozen=True, slots=True)
class Rivalry:
    """The result of looking for other installs that write to a service."""

    acts: bool = True
    """Whether this install acts on the service."""
    message: str | None = None
    """The message about the others; None if there are none."""
    gone: tuple[str, ...] = ()
    """Field managers of installs that no longer exist, including earlier versions of this one."""


def status_managers(body: Mapping[str, Any]) -> frozenset[str]:
    """The field managers that have applied a part of the object's status."""
    entries = body["metadata"].get("managedFields") or []
    return frozenset(
        entry["manager"]
        for entry in entries
        if entry.get("subresource") == "status" and entry.get("operation") == "Apply"
    )


def other_installs(body: Mapping[str, Any], own: Ref) -> tuple[list[Ref], list[str]]:
    """The Leases of other installs that write to the service, and field managers of versions without a name."""
    managers = status_managers(body) - {str(own)}
    found = [Ref(*name.split("/")) for name in managers if _INSTALL.fullmatch(name)]
    return sorted(found), sorted(managers & {FIELD_MANAGER})


def rivalry(own: Ref, created: Mapping[Ref, str], gone: Sequence[str]) -> Rivalry:
    """Decides which install acts. `created`: the creation time of each existing Lease, including this install's."""
    if not created.keys() - {own}:
        return Rivalry(gone=tuple(gone))
    first = min(created, key=lambda ref: (created[ref], ref))
    message = (
        f"the operators {' and '.join(map(str, sorted(created)))} (namespace and Lease) watch this service: "
        f"only {first}, the oldest, acts on it; uninstall the others, or give each its own namespaces"
    )
    return Rivalry(own == first, message, tuple(gone))
