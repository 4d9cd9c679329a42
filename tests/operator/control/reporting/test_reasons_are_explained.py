"""Every reason of a condition is explained in docs/kubernetes/troubleshooting.md."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[4]
REPORTING = ROOT / "operator/ballast_operator/control/reporting"
PAGE = (ROOT / "docs/kubernetes/troubleshooting.md").read_text()
HOLDS = {
    "Serving",
    "Pulled",
    "PodsScheduled",
    "Loaded",
    "CPUsAndMemoryAligned",
    "Reachable",
    "UpToDate",
    "MinimumReplicasAvailable",
    "Filled",
    "Full",
}
"""Reasons of conditions in their normal state."""
PROGRESS = {"Blocked", "Draining", "WaitingToRetry", "StartingPods"}
"""Reasons used only by Progressing; their messages are sufficient."""


FINDINGS = ("findings", "progress_findings", "numa_findings", "exit_reasons", "pull_findings")
CACHES = ("cache_copies", "cache_status")
STATES_OF_COPIES = {"Present", "Removing", "Failed", "Waiting"}


def reasons() -> set[str]:
    """Strings with the form of a reason, in the modules that create findings."""
    words = set()
    for module in (*FINDINGS, *CACHES):
        for node in ast.walk(ast.parse((REPORTING / f"{module}.py").read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
    states = {"True", "False", "Unknown", "Guaranteed", "OOMKilled", "PodInitializing", "Require", "Off", "SingleNode"}
    pulls = {word for word in words if "Image" in word and word != "ImagePullFailed"}
    pulls |= {"CreateContainerConfigError", "Evicted"}  # observed reasons, which are mapped to our own
    return (
        {word for word in words if word.isalnum() and word[0].isupper() and word != word.upper()}
        - states
        - pulls
        - STATES_OF_COPIES
    )


def test_every_reason_is_explained():
    found = reasons()
    assert len(found) > 30
    assert {word for word in found - HOLDS - PROGRESS if f"`{word}`" not in PAGE} == set()
