"""The part of the spec for access to the service."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from ballast_operator.api.base import ApiType, ConfigKey, Labels, ObjectName, cel, rules
from ballast_operator.names import ADMIN_PORT

NOT_THE_ADMIN_PORT = f"port {ADMIN_PORT} is the admin port"


class Auth(ApiType):
    """The API keys of the endpoint."""

    class KeysRef(ApiType):
        """A Secret with API keys."""

        name: ObjectName = Field(description="Name of the Secret, in the namespace of the InferenceService.")
        key: ConfigKey = Field(default="keys", description="Key of the Secret whose value has one API key per line.")

    secret_ref: KeysRef = Field(
        description="Secret with the API keys. It is mounted into the pods and never read by the operator. A "
        "change takes effect without a restart."
    )


class Peer(ApiType):
    """Pods that may connect. With both selectors, pods must match in namespaces that match."""

    pod_labels: Labels | None = Field(
        default=None, description="Labels of the pods. Default: all pods of the namespace."
    )
    namespace_labels: Labels | None = Field(
        default=None, description="Labels of the namespaces. Default: the InferenceService's own namespace."
    )


class NetworkRules(ApiType):
    """The pods that may connect to the pods of the service, and the collectors that these may connect to. All other
    connections are blocked."""

    clients: list[Peer] = Field(
        default_factory=list,
        max_length=32,
        description="Pods that may use the API. Default: those of the same namespace.",
    )
    monitoring: list[Peer] = Field(
        default_factory=list,
        max_length=32,
        description="Pods that may read metrics on the admin port. Default: if the operator creates a PodMonitor, the "
        "scrapers of the operator's options, by default Prometheus' pods in any namespace. The endpoint picker of "
        "inferencePool is always admitted.",
    )
    collectors: list[Peer] = Field(
        default_factory=list,
        max_length=32,
        description="Pods that the engine may send traces to (--otlp_endpoint), on any port; DNS is then allowed too. "
        "Default: the pods may open no connections.",
    )


class ServiceOptions(ApiType):
    """The settings of the Service in addition to its port."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP",
        description="ClusterIP: reachable inside the cluster and through gateways. The others are reachable from "
        "outside, so set API keys.",
    )
    annotations: Annotated[dict[str, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=64)] = Field(
        default_factory=dict,
        description="Annotations of the Service. Clouds use them to choose the kind of load balancer.",
    )

    @property
    def has_load_balancer(self) -> bool:
        """Whether the cluster assigns the Service an address for clients outside."""
        return self.type == "LoadBalancer"


class Pool(ApiType):
    """An InferencePool of the Gateway API inference extension over the pods."""

    picker_name: ObjectName = Field(
        description="Name of the endpoint picker's Service, in the namespace of the InferenceService."
    )
    picker_labels: Labels = Field(
        default_factory=dict,
        description="Labels of the endpoint picker's pods, which networkPolicy admits to the admin port. Default: all "
        "pods of the namespace.",
    )
    picker_port: int = Field(default=9002, ge=1, le=65535, description="Port of the endpoint picker.")


class Gateway(ApiType):
    """A Gateway of the Gateway API."""

    name: ObjectName = Field(description="Name of the Gateway.")
    namespace: ObjectName | None = Field(
        default=None, description="Namespace of the Gateway. Default: the InferenceService's."
    )
    section_name: ObjectName | None = Field(
        default=None, description="One listener of the Gateway. Default: all listeners."
    )


class Canary(ApiType):
    """Another InferenceService that gets a share of the requests."""

    service: ObjectName = Field(
        description="Name of the other InferenceService, in the same namespace and with the same endpoint.port."
    )
    percent: int = Field(
        default=0, ge=0, le=100, description="Percentage of the requests that it gets. 0 stops it, 100 promotes it."
    )


class Route(ApiType):
    """An HTTPRoute of the Gateway API to the Service."""

    gateways: list[Gateway] = Field(min_length=1, max_length=16, description="Gateways that the route belongs to.")
    hostnames: list[Annotated[str, StringConstraints(min_length=1, max_length=253)]] = Field(
        default_factory=list,
        max_length=16,
        description="Host names of the route. Default: those of the gateways.",
    )
    canary: Canary | None = Field(
        default=None,
        description="Sends a share of the requests to another InferenceService, for example with a new model.",
    )


class Endpoint(ApiType):
    """Access to the service."""

    port: int = Field(
        default=10002,
        ge=1024,
        le=65535,
        description=f"Port of the Service and of the pods. {ADMIN_PORT} is the admin port.",
        json_schema_extra=rules(cel(f"self != {ADMIN_PORT}", NOT_THE_ADMIN_PORT)),
    )
    auth: Auth | None = Field(
        default=None, description="API keys. Without them, every client that can connect is served."
    )
    network_policy: NetworkRules | None = Field(
        default=None,
        description="Creates a NetworkPolicy for the pods. {} admits pods of the same namespace to the API, and the "
        "readers of the PodMonitor and the InferencePool to the admin port.",
    )

    service: ServiceOptions = Field(default_factory=ServiceOptions, description="Type and annotations of the Service.")
    inference_pool: Pool | None = Field(
        default=None,
        description="Creates an InferencePool with the service's name over its pods, for a gateway that chooses a pod "
        "for each request. Needs the CRDs of the Gateway API inference extension.",
    )
    route: Route | None = Field(
        default=None,
        description="Creates an HTTPRoute with the service's name to its Service. Needs the CRDs of the Gateway API.",
    )

    @field_validator("port")
    @classmethod
    def _not_the_admin_port(cls, port: int) -> int:
        if port == ADMIN_PORT:
            raise ValueError(NOT_THE_ADMIN_PORT)
        return port
