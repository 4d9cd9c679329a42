"""The operator's permissions. The rules in manifests/operator are made from them, and the doctor checks each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ballast_operator.names import CACHE_PLURAL, GROUP, PLURAL

READ = ("get", "list", "watch")
OWN = (*READ, "create", "patch", "delete")


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on resources of one API group."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]

    def to_api(self) -> dict[str, Any]:
        """The rule as a Role holds it."""
        return {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}


WATCHED_RULES = (
    Rule(GROUP, (PLURAL,), READ),
    Rule(GROUP, (f"{PLURAL}/status",), ("patch",)),
    # Clusters with OwnerReferencesPermissionEnforcement require this for an owner reference that blocks deletion.
    Rule(GROUP, (f"{PLURAL}/finalizers",), ("update",)),
    # Patched for the finalizer that stays until the cached files have been removed.
    Rule(GROUP, (CACHE_PLURAL,), (*READ, "patch")),
    Rule(GROUP, (f"{CACHE_PLURAL}/status",), ("patch",)),
    Rule("", ("pods", "services", "configmaps"), OWN),
    Rule("discovery.k8s.io", ("endpointslices",), ("list", "watch")),
    Rule("", ("events",), ("get", "create", "patch")),
    Rule("policy", ("poddisruptionbudgets",), OWN),
    Rule("networking.k8s.io", ("networkpolicies",), OWN),
    Rule("monitoring.coreos.com", ("podmonitors",), OWN),
    # Jobs that pull models, and the claims that they pull onto, which own them.
    Rule("batch", ("jobs",), ("get", "list", "create", "patch", "delete")),
    Rule("", ("persistentvolumeclaims",), ("get",)),
    # The history of specs, for an undo.
    Rule("apps", ("controllerrevisions",), ("list", "create", "patch", "delete")),
    # Whether the claims of a pod exist, before it replaces one that serves.
    Rule("resource.k8s.io", ("resourceclaims", "resourceclaimtemplates"), ("get",)),
    Rule("inference.networking.k8s.io", ("inferencepools",), OWN),
    Rule("gateway.networking.k8s.io", ("httproutes",), OWN),
)
"""Needed in every watched namespace."""

CLUSTER_RULES = (
    Rule("", ("nodes",), ("get", "list")),
    Rule("topology.node.k8s.io", ("noderesourcetopologies",), ("list",)),
    # The other installs that watch the same services, and whether they are running.
    Rule("coordination.k8s.io", ("leases",), ("get", "list")),
)
"""For objects that have no namespace, or may be in any."""

HOME_RULES = (Rule("coordination.k8s.io", ("leases",), ("get", "create", "update")),)
"""Needed in the operator's own namespace."""


def each_permission(rules: tuple[Rule, ...]) -> Iterator[tuple[str, str, str]]:
    """Group, resource and verb of every single permission."""
    for rule in rules:
        for resource in rule.resources:
            for verb in rule.verbs:
                yield rule.group, resource, verb
