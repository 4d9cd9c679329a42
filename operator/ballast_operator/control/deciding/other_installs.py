"""Which installs of the operator write to a service, and which of them acts on it. Pure.

Each install has a labelled Lease that names the namespaces it watches, and writes a service's status under a field
manager of its own: the namespace and the name of that Lease. The others see it by both; the Lease is there before
anything is written. The one whose Lease is older acts; the others leave the service alone, and all of them say so.
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
    """What an install found out about the others that write to a service."""

    acts: bool = True
    """Whether this install acts on the service."""
    message: str | None = None
    """The sentence about the others; None where there is none."""
    gone: tuple[str, ...] = ()
    """Field managers of installs that are no more, earlier versions of this one included."""


def status_managers(body: Mapping[str, Any]) -> frozenset[str]:
    """The field managers that have applied a part of the object's status."""
    entries = body["metadata"].get("managedFields") or []
    return frozenset(
        entry["manager"]
        for entry in entries
        if entry.get("subresource") == "status" and entry.get("operation") == "Apply"
    )


def other_installs(body: Mapping[str, Any], own: Ref) -> tuple[list[Ref], list[str]]:
    """The Leases of the other installs that write to the service, and managers of versions that had no name."""
    managers = status_managers(body) - {str(own)}
    found = [Ref(*name.split("/")) for name in managers if _INSTALL.fullmatch(name)]
    return sorted(found), sorted(managers & {FIELD_MANAGER})


def rivalry(own: Ref, created: Mapping[Ref, str], gone: Sequence[str]) -> Rivalry:
    """Who acts. `created`: when each install's Lease was made, this one's included, of those that are there."""
    if not created.keys() - {own}:
        return Rivalry(gone=tuple(gone))
    first = min(created, key=lambda ref: (created[ref], ref))
    message = (
        f"the operators {' and '.join(map(str, sorted(created)))} (namespace and Lease) look after this service: "
        f"{first}, which was there first, acts on it, and no other does; uninstall the others, or give each namespaces "
        "of its own"
    )
    return Rivalry(own == first, message, tuple(gone))
