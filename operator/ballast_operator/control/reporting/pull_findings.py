"""The condition ModelPulled: what became of a pull, and the way out where it gets nowhere. Pure."""

from __future__ import annotations

from ballast_operator.api.sources.pulled_model import PulledSource
from ballast_operator.control.deciding.pull import Pull, Trouble
from ballast_operator.control.deciding.waiting_reasons import PULL_FAILURES
from ballast_operator.control.reporting.conditions import Finding

WAYS_OUT = {
    "HubUnreachable": "let pods of this namespace out to it, or name another endpoint in the source, or a proxy by "
    "HTTPS_PROXY in spec.env",
    "TokenRefused": "put credentials that may read the model into the Secret that the source names (tokenSecretRef, "
    "credentialsSecretRef or pullSecretRef)",
    "ModelNotFound": "correct the names in the source: repository, bucket, prefix or reference, quant, files, revision",
    "VolumeFull": "enlarge the volume, or take from it what is no longer needed",
    "VolumeNotWritable": "let user 10001 write to it; a claim that is read-only will not do",
    "WrongBytes": "it is pulled anew; if it stays so, the mirror is wrong",
    "PulledElsewhere": "it goes on when that one has ended",
    "Evicted": "it is started again and goes on where it was; free the node of what it lacks",
    "OutOfMemory": "it is started again and goes on where it was",
    "Unschedulable": "its nodes are those of the engines: look at spec.scheduling, and at the claim's own node",
    "CreateContainerConfigError": "make the Secret that the source names, with that key",
    "ClaimMissing": "make the PersistentVolumeClaim",
}
REASONS = {
    **{word: word for word in WAYS_OUT},
    "Evicted": "PullEvicted",
    "OutOfMemory": "PullOutOfMemory",
    "Unschedulable": "PullUnschedulable",
    "CreateContainerConfigError": "TokenMissing",
    **dict.fromkeys(PULL_FAILURES, "ImagePullFailed"),
}
"""What is seen → the condition's reason. Whatever else is seen is PullFailed."""


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
    return Finding("False", "Pulling", f"{source.name}: Job {job} pulls it onto {where}{how_far(pull)}{before}")


def how_far(pull: Pull) -> str:
    """The share that is there, in steps of ten percent, so that the status is not written for every percent."""
    return "" if pull.progress is None else f", {int(pull.progress * 10) * 10} % are there"


def reason_of(trouble: Trouble) -> str:
    """The reason of a condition."""
    return REASONS.get(trouble.reason, "PullFailed")


def described(trouble: Trouble) -> str:
    """What was seen, and the way out."""
    way_out = WAYS_OUT.get(trouble.reason)
    return f"{trouble.message or trouble.reason}{f' ({way_out})' if way_out else ''}"
