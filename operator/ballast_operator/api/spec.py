"""The spec of an InferenceService. Its descriptions, defaults, bounds and rules become those of the CRD."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator

from ballast_operator.api.base import ApiType, Labels, ObjectName, cel, exactly_one, rules
from ballast_operator.api.endpoint import Endpoint
from ballast_operator.api.engine import Engine
from ballast_operator.api.gpu_options import MAX_GPUS, check_gpu_options, gpu_option_rules
from ballast_operator.api.model import PULLED_SOURCES, Model
from ballast_operator.api.pod.container import EnvFrom, EnvVar, PartName, Sidecar, VolumeMount, by_key, no_two
from ballast_operator.api.pod.probes import Probes
from ballast_operator.api.pod.scheduling import Scheduling
from ballast_operator.api.pod.security import SecurityContext
from ballast_operator.api.pod.volume import Volume
from ballast_operator.api.rollout import RolloutPolicy
from ballast_operator.folders import OWN_VOLUMES, collides
from ballast_operator.names import GROUP, OWN_VARIABLES
from ballast_operator.quantity import parse_bytes

FALLBACK_OF_ONE = "cpuFallback must not be set with several GPUs: --device auto uses one GPU or the CPU"
EXACTLY_ONE_CLAIM = "exactly one of resourceClaimName and resourceClaimTemplateName must be set"
UNKNOWN_GPU_CLAIM = "gpuClaim must name one of resources.claims, and gpus must not be 0"
EXACTLY_ONE_CACHE = "exactly one of claimName and hostPath must be set"
EXACTLY_ONE_PLACE = "exactly one of memory and pvc must be set"
OPTIONS_PREFIX = "BALLAST_"
ALLOWED_OPTION = "BALLAST_CPU_ISA"
OWN_ENVIRONMENT = (
    f"env must not set {', '.join(OWN_VARIABLES)}, which the operator sets, or options of the server "
    f"({OPTIONS_PREFIX}…), which belong in engine.extraArgs"
)
OWN_FOLDERS = f"volumeMounts must not overlap the operator's folders {', '.join(OWN_VOLUMES.values())}"
UNKNOWN_VOLUME = "volumeMounts must name volumes of spec.volumes"
OPERATORS_KEYS = f"keys that begin with {GROUP}/ are the operator's"
HOSTNAME = "kubernetes.io/hostname"
FOLDER_OF_A_NODE = (
    f"hostPath of model.source.{', '.join(PULLED_SOURCES)} is on one node: scheduling.nodeSelector must have {HOSTNAME}"
)


class NameRef(ApiType):
    """An object of the same namespace."""

    name: ObjectName = Field(description="Name of the object, in the namespace of the InferenceService.")


class DeviceClaim(ApiType):
    """A claim of devices. Exactly one field is set in addition to name and request."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(exactly_one("resourceClaimName", "resourceClaimTemplateName"), EXACTLY_ONE_CLAIM),
        )
    )

    name: PartName = Field(description="Name of the claim inside the pod.")
    request: PartName | None = Field(
        default=None, description="Request of the claim that the engine gets. Default: all requests."
    )
    resource_claim_name: ObjectName | None = Field(
        default=None, description="An existing ResourceClaim; all replicas share it."
    )
    resource_claim_template_name: ObjectName | None = Field(
        default=None, description="A ResourceClaimTemplate, from which each pod gets its own claim."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> DeviceClaim:
        if (self.resource_claim_name is None) == (self.resource_claim_template_name is None):
            raise ValueError(f"{self.name}: {EXACTLY_ONE_CLAIM}")
        return self


class Resources(ApiType):
    """Resources of one pod. Requests equal limits, so that the kubelet can assign exclusive CPUs."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.gpuClaim) || (self.gpus > 0 && self.claims.exists(c, c.name == self.gpuClaim))",
                UNKNOWN_GPU_CLAIM,
                field_path=".gpuClaim",
            ),
            cel("!self.cpuFallback || self.gpus <= 1", FALLBACK_OF_ONE, field_path=".cpuFallback"),
        )
    )

    cpus: int = Field(
        ge=1, le=4096, description="Whole CPUs. The kubelet assigns exclusive CPUs only for whole numbers."
    )
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
        le=MAX_GPUS,
        description="GPUs of one pod. Several divide the layers of the model (--device cuda). 0: compute on the CPU.",
    )
    cpu_fallback: bool = Field(
        default=False,
        description="If true, an engine that cannot use its GPU computes on the CPU, many times slower (--device "
        "auto). Only with one GPU. Default: the engine exits, and the service is not Ready (--device cuda).",
    )
    gpu_resource_name: Annotated[
        str,
        StringConstraints(
            max_length=317, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
        ),
    ] = Field(default="nvidia.com/gpu", description="Resource name of the device plugin for GPUs.")
    hugepages1_gi: int = Field(
        default=0, alias="hugepages1Gi", ge=0, le=65536, description="Huge pages of 1 GiB, in addition to the memory."
    )
    claims: list[DeviceClaim] = Field(
        default_factory=list,
        max_length=8,
        description="Claims of devices (dynamic resource allocation) for the engine, instead of devices of a device "
        "plugin or in addition to them.",
        json_schema_extra=by_key("name"),
    )
    gpu_claim: PartName | None = Field(
        default=None,
        description="Name of the entry of claims that provides the GPUs, as many as gpus. The pod then requests none "
        "from a device plugin.",
    )

    @property
    def gpus_text(self) -> str:
        """The GPUs for messages, such as "2 nvidia.com/gpu"."""
        if self.gpu_claim is None:
            return f"{self.gpus} {self.gpu_resource_name}"
        return f"{self.gpus} GPU{'s' if self.gpus > 1 else ''} of the claim {self.gpu_claim}"

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

    @model_validator(mode="after")
    def _fallback_of_one_gpu(self) -> Resources:
        if self.cpu_fallback and self.gpus > 1:
            raise ValueError(f"gpus ({self.gpus}): {FALLBACK_OF_ONE}")
        return self

    @field_validator("memory")
    @classmethod
    def _memory_is_a_quantity(cls, text: str) -> str:
        if not 64 * 2**20 <= parse_bytes(text) <= 2**50:
            raise ValueError(f"memory ({text}) must be a quantity from 64Mi to 1Pi, such as 440Gi")
        return text


class Numa(ApiType):
    """NUMA nodes of threads and memory, and the effect on readiness."""

    policy: Literal["SingleNode", "AllNodes"] = Field(
        default="SingleNode",
        description="SingleNode: CPUs, memory and GPUs of one NUMA node; with CPUs of several, the engine keeps "
        "threads and weights on one that has a core for each thread (--numa single). AllNodes: CPUs and GPUs of "
        "several nodes, experts divided among them (--numa auto); the kubelet's single-numa-node policy rejects such "
        "a pod.",
    )
    enforcement: Literal["Require", "Prefer", "Off"] = Field(
        default="Prefer",
        description="Require: the service is not Ready until the running process reports that it is pinned. Prefer: "
        "only the condition NUMAPinned reports it. Off: no check.",
    )


class KernelCache(ApiType):
    """The volume for compiled GPU kernels, so that the next pod compiles none. Exactly one field is set."""

    model_config = ConfigDict(json_schema_extra=rules(cel(exactly_one("claimName", "hostPath"), EXACTLY_ONE_CACHE)))

    claim_name: ObjectName | None = Field(
        default=None,
        description="PersistentVolumeClaim for the kernels that pods compile when they start; 1 GiB is enough. Pods "
        "execute its content, so only pods of this namespace may use it. Replicas on several nodes need "
        "ReadWriteMany.",
    )
    host_path: Annotated[str, StringConstraints(max_length=4096, pattern=r"^/[^:]*$")] | None = Field(
        default=None,
        description="Absolute directory on the node for the same purpose. It must exist and be writable for the "
        "engine's user. The operator rejects it outside its allowed directories (--allowed-host-path).",
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
        description="PersistentVolumeClaim for packed weights, as large as the model's files. Pods compute with its "
        "content, so only pods of this namespace may use it. Replicas on several nodes need ReadWriteMany."
    )


class PackedWeights(ApiType):
    """The volume for packed weights. Exactly one field is set."""

    model_config = ConfigDict(json_schema_extra=rules(cel(exactly_one("memory", "pvc"), EXACTLY_ONE_PLACE)))

    memory: MemoryVolume | None = Field(
        default=None,
        description="The pod's memory: {}. A container that restarts in the same pod maps the weights; a new pod packs "
        "them again. They count as resources.memory, as they do without this field.",
    )
    pvc: PackedPvc | None = Field(
        default=None,
        description="A PersistentVolumeClaim. A new pod reads the weights into memory, which helps if that is faster "
        "than packing.",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> PackedWeights:
        if (self.memory is None) == (self.pvc is None):
            raise ValueError(EXACTLY_ONE_PLACE)
        return self


class KvDisk(ApiType):
    """The volume for evicted KV blocks of conversations."""

    claim_name: ObjectName = Field(
        description="PersistentVolumeClaim on a fast disk. Half of its free space is used, unless extraArgs have "
        "--kv_disk_bytes. It contains conversations, so only pods of this namespace may use it. One pod uses it at a "
        "time; other pods of the service serve without it."
    )


class PodMetadata(ApiType):
    """Labels and annotations of the pods, in addition to the operator's own."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                f"self.labels.all(k, !k.startsWith('{GROUP}/')) && self.annotations.all(k, !k.startsWith('{GROUP}/'))",
                OPERATORS_KEYS,
            )
        )
    )

    labels: Labels = Field(
        default_factory=dict, description='Labels of the pods, such as sidecar.istio.io/inject: "false".'
    )
    annotations: Annotated[dict[str, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=64)] = Field(
        default_factory=dict, description="Annotations of the pods."
    )

    @model_validator(mode="after")
    def _leaves_the_operators_keys(self) -> PodMetadata:
        for key in (*self.labels, *self.annotations):
            if key.startswith(f"{GROUP}/"):
                raise ValueError(f"{OPERATORS_KEYS}, and {key} is one")
        return self


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
            *gpu_option_rules(),
        )
    )

    image: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = Field(
        default=None,
        description="Image of the runtime. Default: the operator's image for pods with GPUs, or that for pods without. "
        "Running pods keep their image.",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When the runtime's image is pulled."
    )
    image_pull_secrets: list[NameRef] = Field(
        default_factory=list, max_length=16, description="Secrets of the image's registry, by name."
    )
    model: Model = Field(description="The served model.")
    engine: Engine = Field(default_factory=Engine, description="Settings of the engine.")
    resources: Resources = Field(description="Resources of one pod.")
    numa: Numa = Field(default_factory=Numa, description="NUMA nodes of threads and memory.")
    replicas: int = Field(
        default=1, ge=0, le=256, description="Number of pods, each with the whole model; 0 stops the service."
    )
    endpoint: Endpoint = Field(default_factory=Endpoint, description="Access to the service.")
    rollout: RolloutPolicy = Field(
        default_factory=RolloutPolicy, description="How pods of an earlier spec are replaced."
    )
    scheduling: Scheduling = Field(default_factory=Scheduling, description="Which nodes the pods may run on.")
    kernel_cache: KernelCache | None = Field(
        default=None,
        description="Volume for compiled GPU kernels. Without it, they are deleted with the pod, and each new pod "
        "compiles them when it starts.",
    )
    packed_weights: PackedWeights | None = Field(
        default=None,
        description="Stores the weights as they are packed for the CPU, so that the next start packs nothing "
        "(--packed_dir). Without it, each start packs again.",
    )
    kv_disk: KvDisk | None = Field(
        default=None,
        description="Stores evicted KV blocks on disk, so that a conversation that continues is read instead of "
        "computed (--kv_disk_dir). Without it, conversations are kept only in the pod's memory.",
    )
    pod_metadata: PodMetadata = Field(
        default_factory=PodMetadata, description="Additional labels and annotations of the pods."
    )
    service_account_name: ObjectName | None = Field(
        default=None,
        description="Service account of the pods, for identities of clouds and OpenShift's constraints. Its token is "
        "not mounted. Default: the namespace's.",
    )
    security_context: SecurityContext = Field(
        default_factory=SecurityContext,
        description="User and groups of the processes, if the cluster requires others than the default.",
    )
    probes: Probes = Field(default_factory=Probes, description="Intervals and timeouts of the kubelet's probes.")
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=64,
        description="Variables of the engine. Variables of the operator and options of the server are rejected.",
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
        description="Secrets and ConfigMaps whose keys become variables of the engine. They do not change variables "
        "of the operator.",
    )
    volumes: list[Volume] = Field(
        default_factory=list,
        max_length=32,
        description="Additional volumes, as in a pod's spec.",
        json_schema_extra=by_key("name"),
    )
    volume_mounts: list[VolumeMount] = Field(
        default_factory=list,
        max_length=32,
        description="Mounts of volumes of spec.volumes in the engine.",
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
                raise ValueError(f"{mount.mount_path}: {UNKNOWN_VOLUME}, but {mount.name} is not one of them")
        return self

    @model_validator(mode="after")
    def _options_fit_the_gpus(self) -> InferenceServiceSpec:
        check_gpu_options(self.resources.gpus, self.engine.extra_args)
        return self

    @model_validator(mode="after")
    def _a_folder_is_of_a_node(self) -> InferenceServiceSpec:
        source = self.model.source.pulled
        if source is not None and source.host_path is not None and HOSTNAME not in self.scheduling.node_selector:
            raise ValueError(FOLDER_OF_A_NODE)
        return self
