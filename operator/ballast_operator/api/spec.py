"""What a user asks for. Descriptions, defaults, bounds and rules here become the CRD's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator

from ballast_operator.api.base import ApiType, Labels, ObjectName, cel, exactly_one, rules
from ballast_operator.api.endpoint import Endpoint
from ballast_operator.api.engine import Engine
from ballast_operator.api.model import PULLED_SOURCES, Model
from ballast_operator.api.pod.container import EnvFrom, EnvVar, PartName, Sidecar, VolumeMount, by_key, no_two
from ballast_operator.api.pod.probes import Probes
from ballast_operator.api.pod.scheduling import Scheduling
from ballast_operator.api.pod.security import SecurityContext
from ballast_operator.api.pod.volume import Volume
from ballast_operator.api.rollout import RolloutPolicy
from ballast_operator.folders import OWN_VOLUMES, collides
from ballast_operator.names import OWN_VARIABLES
from ballast_operator.quantity import parse_bytes

USED_GPUS = 1
TOO_MANY_GPUS = f"an engine uses {USED_GPUS} GPU: ask for {USED_GPUS}, and for more replicas where one is too slow"
EXACTLY_ONE_CLAIM = "exactly one of resourceClaimName and resourceClaimTemplateName must be set"
UNKNOWN_GPU_CLAIM = "gpuClaim must name one of resources.claims, and gpus must not be 0"
EXACTLY_ONE_CACHE = "exactly one of claimName and hostPath must be set"
EXACTLY_ONE_PLACE = "exactly one of memory and pvc must be set"
OPTIONS_PREFIX = "BALLAST_"
ALLOWED_OPTION = "BALLAST_CPU_ISA"
OWN_ENVIRONMENT = (
    f"env must not set {', '.join(OWN_VARIABLES)}, which are the operator's, nor options of the server "
    f"({OPTIONS_PREFIX}…), which engine.extraArgs sets"
)
OWN_FOLDERS = f"volumeMounts must keep clear of the operator's folders {', '.join(OWN_VOLUMES.values())}"
UNKNOWN_VOLUME = "volumeMounts must name volumes of spec.volumes"
HOSTNAME = "kubernetes.io/hostname"
FOLDER_OF_A_NODE = (
    f"hostPath of model.source.{', '.join(PULLED_SOURCES)} is of one node: scheduling.nodeSelector must have {HOSTNAME}"
)


class NameRef(ApiType):
    """An object of the same namespace."""

    name: ObjectName = Field(description="Name of the object, in the namespace of the InferenceService.")


class DeviceClaim(ApiType):
    """A claim of devices. Beside name and request, exactly one field is set."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(exactly_one("resourceClaimName", "resourceClaimTemplateName"), EXACTLY_ONE_CLAIM),
        )
    )

    name: PartName = Field(description="Name of the claim inside the pod.")
    request: PartName | None = Field(
        default=None, description="Which request of the claim the engine gets. Default: all of them."
    )
    resource_claim_name: ObjectName | None = Field(
        default=None, description="A ResourceClaim that is there; all replicas share it."
    )
    resource_claim_template_name: ObjectName | None = Field(
        default=None, description="A ResourceClaimTemplate, from which each pod gets a claim of its own."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> DeviceClaim:
        if (self.resource_claim_name is None) == (self.resource_claim_template_name is None):
            raise ValueError(f"{self.name}: {EXACTLY_ONE_CLAIM}")
        return self


class Resources(ApiType):
    """What one pod gets: requests equal limits, so that the kubelet can give it CPUs of its own."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.gpuClaim) || (self.gpus > 0 && self.claims.exists(c, c.name == self.gpuClaim))",
                UNKNOWN_GPU_CLAIM,
                field_path=".gpuClaim",
            )
        )
    )

    cpus: int = Field(ge=1, le=4096, description="Whole CPUs. The kubelet gives exclusive CPUs for whole numbers only.")
    memory: Annotated[str, StringConstraints(min_length=1, max_length=32)] = Field(
        description="Memory of the pod, as a quantity such as 440Gi: the model's experts, the KV cache's host part "
        "and about 3 GiB for the program.",
        json_schema_extra=rules(
            cel(
                "isQuantity(self) && quantity(self).compareTo(quantity('64Mi')) >= 0 && "
                "quantity(self).compareTo(quantity('1Pi')) <= 0",
                "memory must be a quantity from 64Mi to 1Pi, such as 440Gi",
            )
        ),
    )
    gpus: int = Field(
        default=1,
        ge=0,
        le=64,
        description="GPUs of one pod: 1, as an engine uses no more; 0 computes on the CPU alone.",
        json_schema_extra=rules(cel(f"self <= {USED_GPUS}", TOO_MANY_GPUS)),
    )
    cpu_fallback: bool = Field(
        default=False,
        description="Whether an engine that cannot use its GPU computes on the CPU (--device auto), many times slower. "
        "Default: it ends, and the service is not Ready (--device cuda).",
    )
    gpu_resource_name: Annotated[
        str,
        StringConstraints(
            max_length=317, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
        ),
    ] = Field(default="nvidia.com/gpu", description="Name under which the device plugin offers GPUs.")
    hugepages1_gi: int = Field(
        default=0, alias="hugepages1Gi", ge=0, le=65536, description="Huge pages of 1 GiB, in addition to the memory."
    )
    claims: list[DeviceClaim] = Field(
        default_factory=list,
        max_length=8,
        description="Claims of devices (dynamic resource allocation) that the engine gets, instead of those of a "
        "device plugin or in addition to them.",
        json_schema_extra=by_key("name"),
    )
    gpu_claim: PartName | None = Field(
        default=None,
        description="Which of claims brings the GPU, by its name there. No device plugin is asked for one then.",
    )

    @field_validator("claims")
    @classmethod
    def _names_differ(cls, claims: list[DeviceClaim]) -> list[DeviceClaim]:
        no_two(claims, "name")
        return claims

    @model_validator(mode="after")
    def _gpu_claim_is_there(self) -> Resources:
        if self.gpu_claim is not None and (not self.gpus or self.gpu_claim not in {it.name for it in self.claims}):
            raise ValueError(f"gpuClaim ({self.gpu_claim}): {UNKNOWN_GPU_CLAIM}")
        return self

    @field_validator("gpus")
    @classmethod
    def _no_more_gpus_than_are_used(cls, gpus: int) -> int:
        if gpus > USED_GPUS:
            raise ValueError(f"gpus ({gpus}): {TOO_MANY_GPUS}")
        return gpus

    @field_validator("memory")
    @classmethod
    def _memory_is_a_quantity(cls, text: str) -> str:
        if not 64 * 2**20 <= parse_bytes(text) <= 2**50:
            raise ValueError(f"memory ({text}) must be a quantity from 64Mi to 1Pi, such as 440Gi")
        return text


class Numa(ApiType):
    """Where threads and memory are to be, and what follows when they are not."""

    policy: Literal["SingleNode", "AllNodes"] = Field(
        default="SingleNode",
        description="SingleNode: CPUs, memory and GPU of one NUMA node; the engine keeps threads and weights on one "
        "where the pod's CPUs are of several and one has a core for each thread (--numa single). AllNodes: CPUs of "
        "several, experts split among them (--numa auto); the kubelet's single-numa-node policy refuses such a pod.",
    )
    enforcement: Literal["Require", "Prefer", "Off"] = Field(
        default="Prefer",
        description="Require: not Ready until the running process reports itself pinned. Prefer: the NUMAPinned "
        "condition tells. Off: it is not looked at.",
    )


class KernelCache(ApiType):
    """Where compiled kernels of a GPU are kept, so that the next pod compiles none. Exactly one field is set."""

    model_config = ConfigDict(json_schema_extra=rules(cel(exactly_one("claimName", "hostPath"), EXACTLY_ONE_CACHE)))

    claim_name: ObjectName | None = Field(
        default=None,
        description="PersistentVolumeClaim for the kernels that pods compile when they start, 1 GiB of it. What lies "
        "in it is executed: it is for pods of this namespace alone. Replicas on several nodes need ReadWriteMany.",
    )
    host_path: Annotated[str, StringConstraints(max_length=4096, pattern=r"^/[^:]*$")] | None = Field(
        default=None,
        description="Absolute directory on the node, for the same. It is there already, and the engine's user may "
        "write to it. The operator refuses it outside the directories that it was given (--allowed-host-path).",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> KernelCache:
        if (self.claim_name is None) == (self.host_path is None):
            raise ValueError(EXACTLY_ONE_CACHE)
        return self


class MemoryVolume(ApiType):
    """A volume in the pod's memory."""


class PackedPvc(ApiType):
    """A PersistentVolumeClaim."""

    claim_name: ObjectName = Field(
        description="PersistentVolumeClaim for packed weights, as large as the model's files. Its content is "
        "computed with: it is for pods of this namespace alone. Replicas on several nodes need ReadWriteMany."
    )


class PackedWeights(ApiType):
    """Where packed weights are kept. Exactly one field is set."""

    model_config = ConfigDict(json_schema_extra=rules(cel(exactly_one("memory", "pvc"), EXACTLY_ONE_PLACE)))

    memory: MemoryVolume | None = Field(
        default=None,
        description="The pod's memory: {}. A container that starts again in the same pod maps them; a new pod packs "
        "anew. They are a part of resources.memory, which has them without this field as well.",
    )
    pvc: PackedPvc | None = Field(
        default=None,
        description="A PersistentVolumeClaim. A new pod reads them into memory, which pays where that is faster than "
        "packing.",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> PackedWeights:
        if (self.memory is None) == (self.pvc is None):
            raise ValueError(EXACTLY_ONE_PLACE)
        return self


class KvDisk(ApiType):
    """Where conversations are kept."""

    claim_name: ObjectName = Field(
        description="PersistentVolumeClaim on a fast disk; half of what is free there is taken unless extraArgs have "
        "--kv_disk_bytes. It holds what was said: it is for pods of this namespace alone. One pod uses it at a time, "
        "others of the service serve without."
    )


class PodMetadata(ApiType):
    """What the pods carry beside the operator's own labels."""

    labels: Labels = Field(
        default_factory=dict, description='Labels of the pods, such as sidecar.istio.io/inject: "false".'
    )
    annotations: Annotated[dict[str, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=64)] = Field(
        default_factory=dict, description="Annotations of the pods."
    )


class InferenceServiceSpec(ApiType):
    """One model behind one endpoint."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel("self.volumeMounts.all(m, self.volumes.exists(v, v.name == m.name))", UNKNOWN_VOLUME),
            *(
                cel(
                    f"!has(self.model.source.{source}) || !has(self.model.source.{source}.hostPath) || "
                    f"'{HOSTNAME}' in self.scheduling.nodeSelector",
                    FOLDER_OF_A_NODE,
                )
                for source in PULLED_SOURCES
            ),
            cel(
                "self.sidecars.all(s, !has(s.volumeMounts) || "
                "s.volumeMounts.all(m, self.volumes.exists(v, v.name == m.name)))",
                f"sidecars[].{UNKNOWN_VOLUME}",
            ),
        )
    )

    image: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = Field(
        default=None,
        description="Image of the runtime. Default: the operator's for pods with GPUs, or without; pods that already "
        "run keep the one they have.",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When the runtime's image is pulled."
    )
    image_pull_secrets: list[NameRef] = Field(
        default_factory=list, max_length=16, description="Secrets of the image's registry, by name."
    )
    model: Model = Field(description="Which model is served.")
    engine: Engine = Field(default_factory=Engine, description="How the engine computes.")
    resources: Resources = Field(description="What one pod gets.")
    numa: Numa = Field(default_factory=Numa, description="Where threads and memory are to be.")
    replicas: int = Field(default=1, ge=0, le=256, description="Pods, each with the whole model; 0 stops the service.")
    endpoint: Endpoint = Field(default_factory=Endpoint, description="How the service is reached.")
    rollout: RolloutPolicy = Field(
        default_factory=RolloutPolicy, description="How pods of an earlier spec are replaced."
    )
    scheduling: Scheduling = Field(default_factory=Scheduling, description="Which nodes the pods may run on.")
    kernel_cache: KernelCache | None = Field(
        default=None,
        description="Volume for compiled kernels of a GPU. Without it they are kept as long as the pod, and each new "
        "pod compiles them when it starts.",
    )
    packed_weights: PackedWeights | None = Field(
        default=None,
        description="Keeps the weights as they are packed for the CPU, so that the next start packs nothing "
        "(--packed_dir). Without it, each start packs again.",
    )
    kv_disk: KvDisk | None = Field(
        default=None,
        description="Keeps what the KV cache gives up, so that conversations that come back are read instead of "
        "computed (--kv_disk_dir). Without it, none are kept beyond the pod's memory.",
    )
    pod_metadata: PodMetadata = Field(
        default_factory=PodMetadata, description="Further labels and annotations of the pods."
    )
    service_account_name: ObjectName | None = Field(
        default=None,
        description="Service account of the pods, as clouds' identities and OpenShift's constraints ask for. Its token "
        "is not mounted. Default: the namespace's.",
    )
    security_context: SecurityContext = Field(
        default_factory=SecurityContext,
        description="User and groups of the processes, where the cluster asks for others.",
    )
    probes: Probes = Field(
        default_factory=Probes, description="How often and how patiently the kubelet asks the engine."
    )
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=64,
        description="Variables of the engine. The operator's own and options of the server are refused.",
        json_schema_extra=by_key(
            "name",
            **rules(
                cel(
                    f"self.all(e, !(e.name in {list(OWN_VARIABLES)}) && "
                    f"(e.name == '{ALLOWED_OPTION}' || !e.name.startsWith('{OPTIONS_PREFIX}')))",
                    OWN_ENVIRONMENT,
                )
            ),
        ),
    )
    env_from: list[EnvFrom] = Field(
        default_factory=list,
        max_length=16,
        description="Secrets and ConfigMaps whose keys become variables of the engine. Those of the operator stay "
        "what they are.",
    )
    volumes: list[Volume] = Field(
        default_factory=list,
        max_length=32,
        description="Further volumes, as in a pod's spec.",
        json_schema_extra=by_key("name"),
    )
    volume_mounts: list[VolumeMount] = Field(
        default_factory=list,
        max_length=32,
        description="Where the engine sees volumes of spec.volumes.",
        json_schema_extra=by_key(
            "mountPath",
            **rules(
                cel(
                    f"self.all(m, !{list(OWN_VOLUMES.values())}.exists(own, m.mountPath == own || "
                    "m.mountPath.startsWith(own + '/') || own.startsWith(m.mountPath + '/')))",
                    OWN_FOLDERS,
                )
            ),
        ),
    )
    sidecars: list[Sidecar] = Field(
        default_factory=list,
        max_length=8,
        description="Containers next to the engine. They start before it and end after it.",
        json_schema_extra=by_key("name"),
    )

    @field_validator("env")
    @classmethod
    def _not_the_operators_variables(cls, env: list[EnvVar]) -> list[EnvVar]:
        no_two(env, "name")
        for name in (variable.name for variable in env):
            if name in OWN_VARIABLES or (name.startswith(OPTIONS_PREFIX) and name != ALLOWED_OPTION):
                raise ValueError(f"{name}: {OWN_ENVIRONMENT}")
        return env

    @field_validator("volumes", "sidecars")
    @classmethod
    def _names_differ(cls, items: list[Any]) -> list[Any]:
        no_two(items, "name")
        return items

    @field_validator("volume_mounts")
    @classmethod
    def _clear_of_the_operators_folders(cls, mounts: list[VolumeMount]) -> list[VolumeMount]:
        no_two(mounts, "mount_path")
        for mount in mounts:
            if (own := collides(mount.mount_path)) is not None:
                raise ValueError(f"{mount.mount_path} collides with {own}: {OWN_FOLDERS}")
        return mounts

    @model_validator(mode="after")
    def _mounted_volumes_are_there(self) -> InferenceServiceSpec:
        known = {volume.name for volume in self.volumes}
        for mount in (*self.volume_mounts, *(mount for sidecar in self.sidecars for mount in sidecar.volume_mounts)):
            if mount.name not in known:
                raise ValueError(f"{mount.mount_path}: {UNKNOWN_VOLUME}, and {mount.name} is none of them")
        return self

    @model_validator(mode="after")
    def _a_folder_is_of_a_node(self) -> InferenceServiceSpec:
        source = self.model.source.pulled
        if source is not None and source.host_path is not None and HOSTNAME not in self.scheduling.node_selector:
            raise ValueError(FOLDER_OF_A_NODE)
        return self
