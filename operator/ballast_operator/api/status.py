"""What the operator reports."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from ballast_operator.api.base import ApiType

ConditionStatus = Literal["True", "False", "Unknown"]

MAX_MESSAGE = 32768
MAX_DEVICE = 64


class Condition(ApiType):
    """One statement about the service."""

    type: Annotated[str, StringConstraints(max_length=316)] = Field(description="What is stated, such as Ready.")
    status: ConditionStatus = Field(description="Whether it holds.")
    observed_generation: int = Field(default=0, ge=0, description="Generation of the spec that it was found for.")
    last_transition_time: Annotated[str, StringConstraints(max_length=32)] = Field(
        description="When the status last changed.", json_schema_extra={"format": "date-time"}
    )
    reason: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        description="Why, as one word for programs."
    )
    message: Annotated[str, StringConstraints(max_length=MAX_MESSAGE)] = Field(
        default="", description="Why, as a sentence for people."
    )


class PodPlacement(ApiType):
    """Where one pod really runs, as its process reports it."""

    pod: str = Field(max_length=253, description="The pod.")
    node: str = Field(max_length=253, description="The node that it runs on.")
    cpus: str = Field(max_length=4096, description='CPUs that the process may use, such as "32-63".')
    memory_nodes: str = Field(max_length=1024, description='NUMA nodes that its memory may come from, such as "1".')
    gpu_numa_node: int | None = Field(
        default=None,
        validation_alias="gpuNUMANode",
        serialization_alias="gpuNUMANode",
        description="NUMA node of the GPU; absent when there is none or it is not known.",
    )
    local_percent: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Share of the weights that lie where they are read; absent while unknown.",
    )


class Effective(ApiType):
    """What the running engine made of the settings."""

    max_new_tokens: int | None = Field(default=None, ge=1, description="Most tokens that one request may generate.")
    kv_cache_tokens: int = Field(ge=0, description="KV tokens that all requests of one pod share.")
    guaranteed_concurrency: int = Field(
        ge=0,
        description="Requests of one pod that can run together without preemption, however long their replies are.",
    )
    planned_memory: Annotated[str, StringConstraints(max_length=32)] | None = Field(
        default=None,
        description="Memory that the engine planned to need of resources.memory, as `ballast plan` sums it up.",
    )
    planned_gpu_memory: Annotated[str, StringConstraints(max_length=32)] | None = Field(
        default=None, description="The same of the GPU's memory; absent without one."
    )
    guaranteed_prompt_tokens: int = Field(ge=0, description="Longest prompt of each of them for which that holds.")


class Device(ApiType):
    """Where the engines compute."""

    asked: str = Field(max_length=64, description="What the spec asks for: cpu, cuda or auto.")
    used: str | None = Field(
        default=None, max_length=1024, description="What the running engines report, more than one while they differ."
    )


class RolloutFailure(ApiType):
    """Why the pods of a spec did not become ready."""

    spec_hash: str = Field(max_length=64, description="Hash of the spec, as in the annotation spec-hash of its pods.")
    reason: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        description="Why, as one word for programs."
    )
    message: Annotated[str, StringConstraints(max_length=MAX_MESSAGE)] = Field(
        default="", description="Why, as a sentence for people."
    )
    time: Annotated[str, StringConstraints(max_length=32)] = Field(
        description="When it was first reported.", json_schema_extra={"format": "date-time"}
    )


class InferenceServiceStatus(ApiType):
    """What is true of the service now."""

    observed_generation: int = Field(default=0, ge=0, description="Generation of the spec that this status is about.")
    replicas: int = Field(default=0, ge=0, description="Pods that exist and have not ended.")
    updated_replicas: int = Field(default=0, ge=0, description="Pods that are as the newest spec asks.")
    ready_replicas: int = Field(default=0, ge=0, description="Pods that answer.")
    images: list[Annotated[str, StringConstraints(max_length=1024)]] | None = Field(
        default=None, max_length=256, description="Images that the engines run; more than one while they differ."
    )
    image: str | None = Field(
        default=None, max_length=65536, description="The same, comma-separated, for `kubectl get -o wide`."
    )
    selector: str | None = Field(
        default=None, max_length=1024, description="Label selector of the pods, for autoscalers."
    )
    url: str | None = Field(default=None, max_length=1024, description="Base URL of the OpenAI API inside the cluster.")
    external_url: str | None = Field(
        default=None,
        max_length=1024,
        validation_alias="externalURL",
        serialization_alias="externalURL",
        description="Base URL of the OpenAI API at the load balancer; absent without an endpoint.service of that "
        "type, and until it has an address.",
    )
    nodes: str | None = Field(default=None, max_length=4096, description="Nodes of the pods, comma-separated.")
    effective: Effective | None = Field(default=None, description="What the running engine made of the settings.")
    device: Device | None = Field(default=None, description="Where the engines compute.")
    placement: list[PodPlacement] | None = Field(
        default=None,
        max_length=256,
        description="Where each pod really runs, as its process reports it.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["pod"]},
    )
    spec_hash: str | None = Field(
        default=None, max_length=64, description="Hash of the newest spec that pods are started from."
    )
    last_failure: RolloutFailure | None = Field(
        default=None, description="The last spec that failed; it stays when a later one serves."
    )
    conditions: list[Condition] | None = Field(
        default=None,
        max_length=16,
        description="Ready, Available, Scheduled, ModelLoaded, NUMAPinned, EndpointReady and Progressing; ModelPulled "
        "for a model of a hub; Stalled while a service that is not ready makes no progress; SoleOperator while several "
        "operators look after the service.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
