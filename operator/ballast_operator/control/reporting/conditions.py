"""The status's conditions. A condition's time changes only when its status does. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ballast_operator.api.status import MAX_MESSAGE, Condition, ConditionStatus

READY = "Ready"
AVAILABLE = "Available"
MODEL_PULLED = "ModelPulled"
"""Present only for a model that is downloaded."""
SCHEDULED = "Scheduled"
MODEL_LOADED = "ModelLoaded"
NUMA_PINNED = "NUMAPinned"
ENDPOINT_READY = "EndpointReady"
PROGRESSING = "Progressing"
STALLED = "Stalled"
"""Present, and then true, only while the service is not ready and makes no progress. kstatus treats it as a failure."""
SOLE_OPERATOR = "SoleOperator"
"""Present, and then false, only while several installs of the operator watch the service."""
SIDECAR_NOT_STARTED = "SidecarNotStarted"
"""Reason of ModelLoaded: a container that starts before the engine does not start."""

TRANSIENT = frozenset(
    (
        *(
            "PodMissing",
            "WaitingForScheduler",
            "ContainerCreating",
            "NotAnswering",
            "Loading",
            "NotReady",
            "RollingOut",
        ),
        *("PodsNotReady", "EndpointsMissing", "ServiceUnreachable", "AddressPending"),
        *("Pulling", "PullStarting", "CacheFilling", "Filling"),
        "CheckingImage",
        *("ScaledToZero", "NotRunning", "NotProbed", "NotLookedAt"),
    )
)
"""Reasons that occur in every start, change and stop. They are no fault unless they last."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The status, reason and message of one condition."""

    status: ConditionStatus
    reason: str
    message: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether the condition is false for a reason that does not occur in every start."""
        return self.status == "False" and self.reason not in TRANSIENT

    @property
    def holds(self) -> bool:
        """Whether the condition is true."""
        return self.status == "True"


def merge(
    findings: Mapping[str, Finding], before: Sequence[Mapping[str, Any]], generation: int, now: datetime
) -> list[Condition]:
    """The findings as conditions. Conditions whose status did not change keep their time."""
    known = {condition["type"]: condition for condition in before}
    return [
        Condition(
            type=name,
            status=finding.status,
            observed_generation=generation,
            last_transition_time=_since(known.get(name), finding.status) or timestamp(now),
            reason=finding.reason,
            message=finding.message[:MAX_MESSAGE],
        )
        for name, finding in findings.items()
    ]


def timestamp(now: datetime) -> str:
    """A time in the API's format."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def worst(findings: Iterable[Finding], otherwise: Finding) -> Finding:
    """The first that is False, else the first that is Unknown, else `otherwise`."""
    found = list(findings)
    for status in ("False", "Unknown"):
        for finding in found:
            if finding.status == status:
                return finding
    return otherwise


def _since(before: Mapping[str, Any] | None, status: ConditionStatus) -> str | None:
    if before is None or before.get("status") != status:
        return None
    return before.get("lastTransitionTime")
