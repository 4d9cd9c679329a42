"""Additional volumes of a pod, in the form of a pod's spec."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator

from ballast_operator.api.base import ApiType, ObjectName, cel, exactly_one, rules
from ballast_operator.api.pod.container import PartName
from ballast_operator.folders import OWN_VOLUMES
from ballast_operator.quantity import parse_bytes

SOURCES = ("persistentVolumeClaim", "configMap", "secret", "emptyDir", "hostPath", "csi")
EXACTLY_ONE_SOURCE = f"exactly one source of the volume must be set: {', '.join(SOURCES)}"
OWN_NAMES = f"{', '.join(OWN_VOLUMES)} are names of the operator's own volumes"
SIZE_FORMAT = "sizeLimit must be a quantity such as 1Gi"


class ClaimVolume(ApiType):
    """A PersistentVolumeClaim."""

    claim_name: ObjectName = Field(description="Name of the PersistentVolumeClaim.")
    read_only: bool = Field(default=False, description="Whether the pod may only read it.")


class ConfigMapVolume(ApiType):
    """A ConfigMap, each key a file."""

    name: ObjectName = Field(description="Name of the ConfigMap.")
    optional: bool = Field(default=False, description="Whether the pod starts without it.")


class SecretVolume(ApiType):
    """A Secret, each key a file."""

    secret_name: ObjectName = Field(description="Name of the Secret.")
    optional: bool = Field(default=False, description="Whether the pod starts without it.")


class EmptyDirVolume(ApiType):
    """An empty folder that is deleted with the pod."""

    medium: Literal["Memory"] | None = Field(default=None, description="Memory. Default: the node's disk.")
    size_limit: Annotated[str, StringConstraints(min_length=1, max_length=32)] = Field(
        description="Maximum size, as a quantity such as 1Gi. A pod that writes more is evicted.",
        json_schema_extra=rules(cel("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))", SIZE_FORMAT)),
    )

    @field_validator("size_limit")
    @classmethod
    def _a_quantity(cls, text: str) -> str:
        if parse_bytes(text) <= 0:
            raise ValueError(f"{SIZE_FORMAT}, not {text}")
        return text


class HostPathVolume(ApiType):
    """A file or folder of the node."""

    path: Annotated[str, StringConstraints(max_length=4096, pattern=r"^/[^:]*$")] = Field(
        description="Absolute path on the node. Namespaces that enforce the baseline or restricted pod security "
        "standard reject it."
    )
    type: Literal["Directory", "File", "Socket", "CharDevice"] = Field(
        default="Directory", description="Type of the existing file; with another type the pod does not start."
    )


class CsiVolume(ApiType):
    """A volume that a driver creates for the pod, such as secrets of a vault."""

    driver: ObjectName = Field(description="Name of the driver, such as secrets-store.csi.k8s.io.")
    read_only: bool = Field(default=False, description="Whether the pod may only read it.")
    volume_attributes: Annotated[
        dict[str, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=32)
    ] = Field(default_factory=dict, description="Parameters for the driver.")


class Volume(ApiType):
    """One additional volume. Exactly one field is set in addition to its name."""

    model_config = ConfigDict(json_schema_extra=rules(cel(exactly_one(*SOURCES), EXACTLY_ONE_SOURCE)))

    name: PartName = Field(
        description="Name that volumeMounts use.",
        json_schema_extra=rules(cel(f"!(self in {list(OWN_VOLUMES)})", OWN_NAMES)),
    )
    persistent_volume_claim: ClaimVolume | None = Field(default=None, description="A PersistentVolumeClaim.")
    config_map: ConfigMapVolume | None = Field(default=None, description="A ConfigMap, each key a file.")
    secret: SecretVolume | None = Field(default=None, description="A Secret, each key a file.")
    empty_dir: EmptyDirVolume | None = Field(default=None, description="An empty folder, deleted with the pod.")
    host_path: HostPathVolume | None = Field(default=None, description="A file or folder of the node.")
    csi: CsiVolume | None = Field(default=None, description="A volume that a driver creates for the pod.")

    @field_validator("name")
    @classmethod
    def _not_ours(cls, name: str) -> str:
        if name in OWN_VOLUMES:
            raise ValueError(OWN_NAMES)
        return name

    @model_validator(mode="after")
    def _exactly_one(self) -> Volume:
        if len(self.to_api()) != 2:
            raise ValueError(f"{self.name}: {EXACTLY_ONE_SOURCE}")
        return self
