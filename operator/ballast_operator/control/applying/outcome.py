"""What kept a pass from writing: collected while it writes, and turned into conditions and retries afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field

from ballast_operator.cluster.api import ApiError, NamespaceEndsError
from ballast_operator.cluster.kinds import CONFIG_MAP, NETWORK_POLICY, Kind

REFUSED = (400, 403, 413, 422)
"""Statuses by which a rule, a quota or a permission refuses the object as it is."""

LASTING = (*REFUSED, 500)
"""Statuses that may come for ever: an admission webhook that is down is an internal error (500)."""

BEFORE_PODS = (CONFIG_MAP, NETWORK_POLICY)
"""Kinds that must be there before a pod: without them it would run by other rules, or be open to unwanted callers."""


@dataclass(slots=True)
class Outcome:
    """What kept a pass from writing. The lists of strings hold sentences for the status."""

    conflicts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    delays: list[str] = field(default_factory=list)
    """What is not done yet and does not keep the service from being ready."""
    errors: list[ApiError] = field(default_factory=list)
    """Failures that may pass, for which the queue retries."""
    holds_pods: bool = False
    """A child that must be there before pods is missing."""

    def failed(self, what: str, error: ApiError, *, optional: bool = False) -> None:
        """Record a failed write: for the queue where it may pass, as a sentence for the status where it may last.

        `optional`: the service can be ready without it. Raises NamespaceEndsError on: no other write of the pass
        would last.
        """
        if isinstance(error, NamespaceEndsError):
            raise error
        if error.status not in REFUSED:
            self.errors.append(error)
        if error.status in LASTING:
            failures = self.delays if optional or error.status not in REFUSED else self.refusals
            failures.append(f"{error.refused_by} refuses {what}: {error.message}")

    def child_failed(self, kind: Kind, name: str, error: ApiError) -> None:
        """Record a child that could not be read or applied."""
        self.failed(f"{kind.name} {name}", error, optional=kind.optional)
        self.holds_pods |= kind in BEFORE_PODS
