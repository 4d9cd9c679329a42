"""The condition ModelPulled: the state of a download or of a cached model, and the fix if it fails. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ballast_operator.api.model_cache import ModelCache
from ballast_operator.api.sources.cached_source import CachedSource
from ballast_operator.api.sources.pulled_model import PulledSource
from ballast_operator.control.deciding.pull import Pull, Trouble
from ballast_operator.control.deciding.waiting_reasons import PULL_FAILURES
from ballast_operator.control.reporting.conditions import Finding

FIXES = {
    "HubUnreachable": "allow outbound connections from this namespace, or set another endpoint in the source, or "
    "HTTPS_PROXY in spec.env",
    "TokenRefused": "put credentials that may read the model into the Secret of the source (tokenSecretRef, "
    "credentialsSecretRef or pullSecretRef)",
    "ModelNotFound": "correct the names in the source: repository, bucket, prefix or reference, quant, files, revision",
    "VolumeFull": "enlarge the volume, or delete files that are no longer needed",
    "VolumeNotWritable": "make it writable for user 10001; a read-only claim does not work",
    "WrongBytes": "it is downloaded again; if this repeats, the mirror is wrong",
    "PulledElsewhere": "it continues when that one has ended",
    "Evicted": "it restarts and resumes; free the resource that the node lacks",
    "OutOfMemory": "it restarts and resumes",
    "Unschedulable": "it runs on the nodes of the engines: check spec.scheduling, and the claim's node",
    "CreateContainerConfigError": "create the Secret of the source, with that key",
    "ClaimMissing": "create the PersistentVolumeClaim",
}
REASONS = {
    **{word: word for word in FIXES},
    "Evicted": "PullEvicted",
    "OutOfMemory": "PullOutOfMemory",
    "Unschedulable": "PullUnschedulable",
    "CreateContainerConfigError": "TokenMissing",
    **dict.fromkeys(PULL_FAILURES, "ImagePullFailed"),
}
"""Observed reason → reason of the condition. All others become PullFailed."""
NO_STORAGE_REASONS = ("NoNodes", "ClaimMissing")
"""Reasons of a cache without a place, so that it downloads nothing."""


def find_pull(source: PulledSource, job: str, pull: Pull) -> Finding:
    """The finding. `job`: the Job's name."""
    where = f"claim {source.pvc.claim_name}" if source.pvc is not None else "the node's folder"
    if pull.done:
        return Finding("True", "Pulled", f"{pull.report or source.name}: on {where}, by Job {job}")
    if pull.trouble is not None and not pull.running:
        return Finding("False", reason_of(pull.trouble), f"Job {job}: {described(pull.trouble)}")
    before = "" if pull.trouble is None else f", after {described(pull.trouble)}"
    if not pull.running:
        return Finding("False", "PullStarting", f"{source.name}: Job {job} is being started")
    return Finding("False", "Pulling", f"{source.name}: Job {job} downloads it to {where}{how_far(pull)}{before}")


def find_cached(
    source: CachedSource, cache: ModelCache, places: Sequence[tuple[str, str, str]], ready: Mapping[str, Any]
) -> Finding:
    """The finding for a model of a ModelCache. `places`: name, state and message of each place for which the cache
    reports the model. `ready`: the cache's condition; empty without one."""
    where = f"ModelCache {source.name}"
    model = cache.model(source.model)
    if model is None:
        listed = ", ".join(found.name for found in cache.spec.models) or "none"
        return Finding("False", "NotCached", f"{where} has no model {source.model}; its models: {listed}")
    if cache.deleting:
        return Finding("False", "CacheMissing", f"{where} is being deleted: use another source")
    if there := [name for name, state, _ in places if state == "Present"]:
        return Finding("True", "Pulled", f"{model.source.model.name}: in {where} on {', '.join(there)}")
    for reason, states in (("CacheFailed", ("Failed",)), ("CacheFull", ("NoRoom",))):
        for name, state, message in places:
            if state in states:
                return Finding("False", reason, f"{where}, {source.model} on {name}: {message}")
    if not places and ready.get("reason") in NO_STORAGE_REASONS:
        return Finding("False", "CacheFailed", f"{where}: {ready['reason']}: {ready.get('message', '')}")
    return Finding("False", "CacheFilling", f"{where}: {source.model} is on no node yet")


def how_far(pull: Pull) -> str:
    """The progress in steps of ten percent, so that the status is not written for every percent."""
    return "" if pull.progress is None else f", {int(pull.progress * 10) * 10} % done"


def reason_of(trouble: Trouble) -> str:
    """The reason of a condition."""
    return REASONS.get(trouble.reason, "PullFailed")


def described(trouble: Trouble) -> str:
    """The problem and its fix."""
    fix = FIXES.get(trouble.reason)
    return f"{trouble.message or trouble.reason}{f' ({fix})' if fix else ''}"
