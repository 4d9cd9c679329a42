"""The status of an InferenceService."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from ballast_operator.api.base import ApiType

ConditionStatus = Literal["True", "False", "Unknown"]

MAX_MESSAGE = 32768
MAX_DEVICE = 128
MAX_GPUS_SHOWN = 64


class Condition(ApiType):
    """One statement about the service."""

    type: Annotated[str, StringConstraints(max_length=316)] = Field(description="Name of the condition, such as Ready.")
    status: ConditionStatus = Field(description="Whether the condition is met.")
    observed_generation: int = Field(
        default=0, ge=0, description="Generation of the spec that the condition describes."
    )
    last_transition_time: Annotated[str, StringConstraints(max_length=32)] = Field(
        description="Time of the last change of the status.", json_schema_extra={"format": "date-time"}
    )
    reason: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        description="Reason as one word, for programs."
    )
    message: Annotated[str, StringConstraints(max_length=MAX_MESSAGE)] = Field(
        default="", description="Human-readable explanation."
    )


class GpuPlacement(ApiType):
    """One GPU of a pod."""

    name: Annotated[str, StringConstraints(max_length=MAX_DEVICE)] = Field(description="Such as cuda:0.")
    product: Annotated[str, StringConstraints(max_length=MAX_DEVICE)] | None = Field(
        default=None, description="Such as NVIDIA H200; absent if unknown."
    )
    numa_node: int | None = Field(
        default=None,
        validation_alias="numaNode",
        serialization_alias="numaNode",
        description="Its NUMA node; absent if unknown.",
    )


class PodPlacement(ApiType):
    """CPUs and memory of one pod, as its process reports them."""

    pod: str = Field(max_length=253, description="Name of the pod.")
    node: str = Field(max_length=253, description="Node that it runs on.")
    cpus: str = Field(max_length=4096, description='CPUs that the process may use, such as "32-63".')
    memory_nodes: str = Field(max_length=1024, description='NUMA nodes that its memory may come from, such as "1".')
    gpu_numa_node: int | None = Field(
        default=None,
        validation_alias="gpuNUMANode",
        serialization_alias="gpuNUMANode",
        description="NUMA node of all GPUs; absent if it is unknown or there is none.",
    )
    gpus: list[GpuPlacement] | None = Field(
        default=None,
        max_length=MAX_GPUS_SHOWN,
        description="GPUs that the engine uses, in the order of their layers.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    local_percent: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Percentage of the weights that are on the node of the threads that read them; absent while "
        "unknown.",
    )


class Effective(ApiType):
    """The settings that the running engine uses."""

    max_new_tokens: int | None = Field(default=None, ge=1, description="Maximum tokens that one request may generate.")
    kv_cache_tokens: int = Field(ge=0, description="KV tokens that all requests of one pod share.")
    guaranteed_concurrency: int = Field(
        ge=0,
        description="Requests of one pod that can run together without preemption, for any length of their replies.",
    )
    planned_memory: Annotated[str, StringConstraints(max_length=32)] | None = Field(
        default=None,
        description="Part of resources.memory that the engine plans to use, as in `ballast plan`.",
    )
    planned_gpu_memory: Annotated[str, StringConstraints(max_length=32)] | None = Field(
        default=None, description="Memory of all GPUs that the engine plans to use; absent without a GPU."
    )
    guaranteed_prompt_tokens: int = Field(ge=0, description="Maximum prompt length of each of these requests.")


class Device(ApiType):
    """The devices that the engines compute on."""

    asked: str = Field(max_length=MAX_DEVICE, description="Device that the spec requests: cpu, cuda or auto.")
    used: str | None = Field(
        default=None,
        max_length=1024,
        description="Devices that the running engines report, such as cuda:0,cuda:1; semicolons separate those of "
        "engines that differ.",
    )


class RolloutFailure(ApiType):
    """The reason why the pods of a spec did not become ready."""

    spec_hash: str = Field(max_length=64, description="Hash of the spec, as in the annotation spec-hash of its pods.")
    reason: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        description="Reason as one word, for programs."
    )
    message: Annotated[str, StringConstraints(max_length=MAX_MESSAGE)] = Field(
        default="", description="Human-readable explanation."
    )
    time: Annotated[str, StringConstraints(max_length=32)] = Field(
        description="Time of the first report.", json_schema_extra={"format": "date-time"}
    )


class InferenceServiceStatus(ApiType):
    """The state of the service now."""

    observed_generation: int = Field(default=0, ge=0, description="Generation of the spec that this status describes.")
    replicas: int = Field(default=0, ge=0, description="Pods that exist and have not ended.")
    updated_replicas: int = Field(default=0, ge=0, description="Pods of the newest spec.")
    ready_replicas: int = Field(default=0, ge=0, description="Pods that answer requests.")
    images: list[Annotated[str, StringConstraints(max_length=1024)]] | None = Field(
        default=None, max_length=256, description="Images of the engines; more than one while they differ."
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
        description="Base URL of the OpenAI API at the load balancer; absent for other types of endpoint.service, and "
        "until it has an address.",
    )
    nodes: str | None = Field(default=None, max_length=4096, description="Nodes of the pods, comma-separated.")
    effective: Effective | None = Field(default=None, description="Settings that the running engine uses.")
    device: Device | None = Field(default=None, description="Devices that the engines compute on.")
    placement: list[PodPlacement] | None = Field(
        default=None,
        max_length=256,
        description="CPUs and memory of each pod, as its process reports them.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["pod"]},
    )
    spec_hash: str | None = Field(
        default=None, max_length=64, description="Hash of the newest spec that pods are started from."
    )
    last_failure: RolloutFailure | None = Field(
        default=None, description="The last spec that failed. It stays here when a later spec serves."
    )
    conditions: list[Condition] | None = Field(
        default=None,
        max_length=16,
        description="Ready, Available, Scheduled, ModelLoaded, NUMAPinned, EndpointReady and Progressing; ModelPulled "
        "for a model that is downloaded; Stalled while a service that is not ready makes no progress; SoleOperator "
        "while several operators watch the service.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
