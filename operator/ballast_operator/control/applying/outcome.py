"""The failed writes of a pass: collected while it writes, and turned into conditions and retries afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field

from ballast_operator.cluster.api import ApiError, NamespaceEndsError
from ballast_operator.cluster.kinds import CONFIG_MAP, NETWORK_POLICY, Kind

REFUSED = (400, 403, 413, 422)
"""Statuses with which a rule, a quota or a permission rejects the object."""

LASTING = (*REFUSED, 500)
"""Statuses that may last: an admission webhook that is down is an internal error (500)."""

BEFORE_PODS = (CONFIG_MAP, NETWORK_POLICY)
"""Kinds that must exist before a pod: without them it would run with other rules, or accept unwanted connections."""


@dataclass(slots=True)
class Outcome:
    """The failed writes of a pass. The lists of strings hold messages for the status."""

    conflicts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    delays: list[str] = field(default_factory=list)
    """Pending work that does not affect readiness."""
    errors: list[ApiError] = field(default_factory=list)
    """Temporary failures, for which the queue retries."""
    holds_pods: bool = False
    """A child that must exist before pods is missing."""

    def failed(self, what: str, error: ApiError, *, optional: bool = False) -> None:
        """Record a failed write: for the queue if it may be temporary, as a message for the status if it may last.

        `optional`: the service can be ready without it. Raises NamespaceEndsError on: no other write of the pass
        would last.
        """
        if isinstance(error, NamespaceEndsError):
            raise error
        if error.status not in REFUSED:
            self.errors.append(error)
        if error.status in LASTING:
            failures = self.delays if optional or error.status not in REFUSED else self.refusals
            failures.append(f"{error.refused_by} rejects {what}: {error.message}")

    def child_failed(self, kind: Kind, name: str, error: ApiError) -> None:
        """Record a child that could not be read or applied."""
        self.failed(f"{kind.name} {name}", error, optional=kind.optional)
        self.holds_pods |= kind in BEFORE_PODS
