"""The kinds of objects that the operator deals with."""

from __future__ import annotations

from dataclasses import dataclass

from ballast_operator.names import API_VERSION, CACHE_KIND, CACHE_PLURAL, KIND, PLURAL


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object in the API."""

    api_version: str
    name: str
    plural: str
    optional: bool = False
    """Clusters may lack it."""

    @property
    def group(self) -> str:
        """Its API group, empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """Its version inside the group."""
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL's path of one object, or of the list of them."""
        parts = ["/apis" if self.group else "/api", self.api_version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part is not None]
        return "/".join(parts)


INFERENCE_SERVICE = Kind(API_VERSION, KIND, PLURAL)
MODEL_CACHE = Kind(API_VERSION, CACHE_KIND, CACHE_PLURAL, optional=True)
"""Optional: an operator may be newer than the cluster's definitions."""
POD = Kind("v1", "Pod", "pods")
SERVICE = Kind("v1", "Service", "services")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
NODE = Kind("v1", "Node", "nodes")
PDB = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
POD_MONITOR = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors", optional=True)
INFERENCE_POOL = Kind("inference.networking.k8s.io/v1", "InferencePool", "inferencepools", optional=True)
HTTP_ROUTE = Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes", optional=True)
ENDPOINT_SLICE = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
JOB = Kind("batch/v1", "Job", "jobs")
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
REVISION = Kind("apps/v1", "ControllerRevision", "controllerrevisions")
RESOURCE_CLAIM = Kind("resource.k8s.io/v1", "ResourceClaim", "resourceclaims", optional=True)
RESOURCE_CLAIM_TEMPLATE = Kind("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates", optional=True)
EVENT = Kind("v1", "Event", "events")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
NODE_TOPOLOGY = Kind("topology.node.k8s.io/v1alpha2", "NodeResourceTopology", "noderesourcetopologies", optional=True)

CHILD_KINDS = (CONFIG_MAP, SERVICE, PDB, NETWORK_POLICY, POD_MONITOR, INFERENCE_POOL, HTTP_ROUTE)
"""The kinds that one service owns in addition to its pods."""
OPTIONAL_KINDS = tuple(kind for kind in (*CHILD_KINDS, NODE_TOPOLOGY, MODEL_CACHE) if kind.optional)
"""The kinds that the operator uses where the cluster has them."""


def kind_of(body: dict[str, object]) -> Kind:
    """The kind of a child that the operator built."""
    return next(kind for kind in CHILD_KINDS if kind.name == body["kind"])
