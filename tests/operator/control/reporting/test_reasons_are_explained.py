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
"""Reasons of conditions that are as they should be."""
PROGRESS = {"Blocked", "Draining", "WaitingToRetry", "StartingPods"}
"""Reasons of Progressing alone, whose messages say everything."""


FINDINGS = ("findings", "progress_findings", "numa_findings", "exit_reasons", "pull_findings")
CACHES = ("cache_copies", "cache_status")
STATES_OF_COPIES = {"Present", "Removing", "Failed", "Waiting"}


def reasons() -> set[str]:
    """Strings in the modules that make findings which have the form of a reason."""
    words = set()
    for module in (*FINDINGS, *CACHES):
        for node in ast.walk(ast.parse((REPORTING / f"{module}.py").read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
    states = {"True", "False", "Unknown", "Guaranteed", "OOMKilled", "PodInitializing", "Require", "Off", "SingleNode"}
    pulls = {word for word in words if "Image" in word and word != "ImagePullFailed"}
    pulls |= {"CreateContainerConfigError", "Evicted"}  # what is seen, which becomes a reason of ours
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
