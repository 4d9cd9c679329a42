"""Variables and volume mounts of containers, and sidecars."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator

from ballast_operator.api.base import ApiType, ConfigKey, ObjectName, RelativePath, cel, exactly_one, rules
from ballast_operator.names import ENGINE_CONTAINER
from ballast_operator.quantity import parse_bytes, parse_count

NOT_BOTH_VALUES = "at most one of value and valueFrom may be set"
EXACTLY_ONE_VALUE = "exactly one of secretKeyRef, configMapKeyRef and fieldRef must be set"
EXACTLY_ONE_OBJECT = "exactly one of secretRef and configMapRef must be set"
NOT_THE_ENGINE = f"{ENGINE_CONTAINER} is the name of the engine's own container"
A_CPU_QUANTITY = "cpu must be a quantity from 1m to 1024, such as 100m"
A_MEMORY_QUANTITY = "memory must be a quantity from 1Mi to 1Ti, such as 128Mi"

EnvName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
PartName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
MountPath = Annotated[
    str, StringConstraints(min_length=2, max_length=1024, pattern=r"^(/\.?[A-Za-z0-9_@+-][A-Za-z0-9_.@+-]*)+$")
]
Quantity = Annotated[str, StringConstraints(min_length=1, max_length=32)]
Word = Annotated[str, StringConstraints(max_length=4096)]


def by_key(*keys: str, **more: Any) -> dict[str, Any]:
    """Marks a list whose items have these fields as key: the API server rejects two items with the same key."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys), **more}


def no_two(items: list[Any], field: str) -> None:
    """Raises ValueError if two items have the same value in this field."""
    values = [getattr(item, field) for item in items]
    if twice := sorted({value for value in values if values.count(value) > 1}):
        raise ValueError(f"{twice[0]} is listed twice")


class KeyRef(ApiType):
    """One key of a Secret or ConfigMap."""

    name: ObjectName = Field(description="Name of the object, in the namespace of the InferenceService.")
    key: ConfigKey = Field(description="Key whose value is used.")
    optional: bool = Field(default=False, description="Whether the pod starts without the object or the key.")


class FieldRef(ApiType):
    """A field of the pod."""

    field_path: Annotated[str, StringConstraints(min_length=1, max_length=512)] = Field(
        description="Path of the field, such as status.podIP or metadata.namespace."
    )


class EnvSource(ApiType):
    """The source of a value. Exactly one field is set."""

    model_config = ConfigDict(
        json_schema_extra=rules(cel(exactly_one("secretKeyRef", "configMapKeyRef", "fieldRef"), EXACTLY_ONE_VALUE))
    )

    secret_key_ref: KeyRef | None = Field(default=None, description="A key of a Secret.")
    config_map_key_ref: KeyRef | None = Field(default=None, description="A key of a ConfigMap.")
    field_ref: FieldRef | None = Field(default=None, description="A field of the pod.")

    @model_validator(mode="after")
    def _exactly_one(self) -> EnvSource:
        if [self.secret_key_ref, self.config_map_key_ref, self.field_ref].count(None) != 2:
            raise ValueError(EXACTLY_ONE_VALUE)
        return self


class EnvVar(ApiType):
    """One variable."""

    model_config = ConfigDict(
        json_schema_extra=rules(cel("!(has(self.value) && has(self.valueFrom))", NOT_BOTH_VALUES))
    )

    name: EnvName = Field(description="Name of the variable.")
    value: Annotated[str, StringConstraints(max_length=32768)] | None = Field(
        default=None, description="Value of the variable. Default: empty."
    )
    value_from: EnvSource | None = Field(default=None, description="Source of the value.")

    @model_validator(mode="after")
    def _not_both(self) -> EnvVar:
        if self.value is not None and self.value_from is not None:
            raise ValueError(f"{self.name}: {NOT_BOTH_VALUES}")
        return self


class ObjectRef(ApiType):
    """A whole Secret or ConfigMap."""

    name: ObjectName = Field(description="Name of the object, in the namespace of the InferenceService.")
    optional: bool = Field(default=False, description="Whether the pod starts without it.")


class EnvFrom(ApiType):
    """The keys of an object as variables. Exactly one of secretRef and configMapRef is set."""

    model_config = ConfigDict(
        json_schema_extra=rules(cel(exactly_one("secretRef", "configMapRef"), EXACTLY_ONE_OBJECT))
    )

    prefix: EnvName | None = Field(default=None, description="Prefix of every name.")
    secret_ref: ObjectRef | None = Field(default=None, description="A Secret.")
    config_map_ref: ObjectRef | None = Field(default=None, description="A ConfigMap.")

    @model_validator(mode="after")
    def _exactly_one(self) -> EnvFrom:
        if (self.secret_ref is None) == (self.config_map_ref is None):
            raise ValueError(EXACTLY_ONE_OBJECT)
        return self


class VolumeMount(ApiType):
    """The path of a volume of the spec in a container."""

    name: PartName = Field(description="Name of one of spec.volumes.")
    mount_path: MountPath = Field(description="Absolute path in the container.")
    sub_path: RelativePath | None = Field(
        default=None, description="Path inside the volume. Default: the whole volume."
    )
    read_only: bool = Field(default=False, description="Whether the container may only read it.")


class Sidecar(ApiType):
    """A container next to the engine. It starts before the engine and ends after it. The pod stays Guaranteed."""

    name: PartName = Field(
        description="Name of the container.",
        json_schema_extra=rules(cel(f"self != '{ENGINE_CONTAINER}'", NOT_THE_ENGINE)),
    )
    image: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        description="Image of the container."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When the image is pulled."
    )
    command: list[Word] = Field(default_factory=list, max_length=64, description="Default: the image's entry point.")
    args: list[Word] = Field(default_factory=list, max_length=64, description="Arguments. Default: the image's own.")
    env: list[EnvVar] = Field(
        default_factory=list, max_length=64, description="Variables.", json_schema_extra=by_key("name")
    )
    env_from: list[EnvFrom] = Field(
        default_factory=list, max_length=16, description="Secrets and ConfigMaps whose keys become variables."
    )
    cpu: Quantity = Field(
        description="CPU of the container, in addition to resources.cpus, as a quantity such as 100m; both request "
        "and limit.",
        json_schema_extra=rules(
            cel(
                "isQuantity(self) && quantity(self).compareTo(quantity('1m')) >= 0 && "
                "quantity(self).compareTo(quantity('1024')) <= 0",
                A_CPU_QUANTITY,
            )
        ),
    )
    memory: Quantity = Field(
        description="Memory of the container, in addition to resources.memory, as a quantity such as 128Mi; both "
        "request and limit.",
        json_schema_extra=rules(
            cel(
                "isQuantity(self) && quantity(self).compareTo(quantity('1Mi')) >= 0 && "
                "quantity(self).compareTo(quantity('1Ti')) <= 0",
                A_MEMORY_QUANTITY,
            )
        ),
    )
    volume_mounts: list[VolumeMount] = Field(
        default_factory=list,
        max_length=16,
        description="Mounts of volumes of spec.volumes.",
        json_schema_extra=by_key("mountPath"),
    )

    @field_validator("name")
    @classmethod
    def _not_the_engine(cls, name: str) -> str:
        if name == ENGINE_CONTAINER:
            raise ValueError(NOT_THE_ENGINE)
        return name

    @field_validator("cpu")
    @classmethod
    def _cpu_is_a_quantity(cls, text: str) -> str:
        if not 1 <= 1000 * parse_count(text) <= 1_024_000:
            raise ValueError(f"{A_CPU_QUANTITY}, not {text}")
        return text

    @field_validator("memory")
    @classmethod
    def _memory_is_a_quantity(cls, text: str) -> str:
        if not 2**20 <= parse_bytes(text) <= 2**40:
            raise ValueError(f"{A_MEMORY_QUANTITY}, not {text}")
        return text

    @field_validator("env", "volume_mounts")
    @classmethod
    def _no_two_of_one_key(cls, items: list[Any]) -> list[Any]:
        no_two(items, "name" if items and isinstance(items[0], EnvVar) else "mount_path")
        return items
