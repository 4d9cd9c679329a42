"""The state of each model in each place after a pass over a ModelCache. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ballast_operator.api.model_cache_status import ModelState
from ballast_operator.control.deciding.cache_copies import Copy
from ballast_operator.control.deciding.cache_plan import PlacePlan
from ballast_operator.control.deciding.pull import Pull
from ballast_operator.control.reporting.pull_findings import described, how_far, reason_of


@dataclass(frozen=True, slots=True)
class CopyReport:
    """One model in one place."""

    model: str
    folder: str
    wanted: bool
    """Whether the spec requests it here."""
    users: tuple[str, ...] = ()
    """Services that use it."""
    mounted: bool = False
    """Whether a pod here uses it."""
    state: ModelState = "Waiting"
    reason: str = ""
    """The reason of Ready, if this copy keeps the cache from being ready."""
    message: str = ""

    @property
    def in_use(self) -> bool:
        """Whether it may not be evicted."""
        return bool(self.users) or self.mounted

    @property
    def lacks_room(self) -> bool:
        """Whether a service waits for room that other models occupy."""
        return self.wanted and self.in_use and self.state == "NoRoom"


@dataclass(frozen=True, slots=True)
class PlaceReport:
    """One place."""

    name: str
    used_bytes: int
    copies: Sequence[CopyReport] = ()


def report_absent(found: CopyReport, plan: PlacePlan, refusal: str | None) -> CopyReport:
    """The report of a model that has no Job here yet. `refusal`: the reason why the API server rejects its pod."""
    if refusal is not None:
        message = f"the API server rejects the pod that downloads it: {refusal}"
        return replace(found, state="Failed", reason="PullRefused", message=message)
    if found.folder in plan.no_room:
        return replace(found, state="NoRoom", message="models that are in use or were here before fill the capacity")
    if found.folder in plan.wait:
        return replace(found, message="it is downloaded after other models have been removed")
    return replace(found, message="its Job is being created")


def report_copy(found: CopyReport, copy: Copy, plan: PlacePlan, pull: Pull) -> CopyReport:
    """The report of a model that has Jobs here. `pull`: the state of its download."""
    if copy.leaving or found.folder in plan.remove:
        trouble = copy.removed.trouble
        return replace(found, state="Removing", message="" if trouble is None else trouble.message)
    if pull.done:
        return replace(found, state="Present")
    assert copy.job is not None
    job = f"Job {copy.job['metadata']['name']}"
    if pull.trouble is not None and not pull.running:
        message = f"{job}: {described(pull.trouble)}"
        return replace(found, state="Failed", reason=reason_of(pull.trouble), message=message)
    if pull.running:
        return replace(found, state="Pulling", message=f"{job} downloads it{how_far(pull)}")
    return replace(found, message=f"{job} is being started")
