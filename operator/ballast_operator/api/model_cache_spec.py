"""The spec of a ModelCache. Its descriptions, defaults, bounds and rules become those of the CRD."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator

from ballast_operator.api.base import ApiType, Labels, ObjectName, cel, exactly_one, rules
from ballast_operator.api.pod.container import PartName, by_key, no_two
from ballast_operator.api.pod.scheduling import Toleration
from ballast_operator.api.sources.hub_model import PROXY_VARIABLES
from ballast_operator.api.sources.hugging_face import HuggingFaceModel
from ballast_operator.api.sources.model_scope import ModelScopeModel
from ballast_operator.api.sources.oci_model import OciModel
from ballast_operator.api.sources.pulled_model import PulledModel
from ballast_operator.api.sources.s3_model import S3Model
from ballast_operator.quantity import parse_bytes

EXACTLY_ONE_STORAGE = "exactly one of hostPath and pvc must be set"
EXACTLY_ONE_HUB = "exactly one of huggingFace, modelScope, s3 and oci must be set"
STORAGE_STAYS = "storage cannot be changed because it holds models: create another ModelCache"
SOURCE_STAYS = (
    "the source of a model cannot be changed because services use it by its name: add a model with another name"
)
SIZE_FORMAT = "must be a quantity from 1Mi to 1Pi, such as 400Gi"
LARGER_THAN_ALL = "capacity must be at least the size of the largest model"
PROXY_PATTERN = f"^({'|'.join(word for name in PROXY_VARIABLES for word in (name, name.lower()))})$"

MAX_MODELS = 64

Size = Annotated[str, StringConstraints(min_length=1, max_length=32)]
SIZE_RULE = cel(
    "isQuantity(self) && quantity(self).compareTo(quantity('1Mi')) >= 0 && "
    "quantity(self).compareTo(quantity('1Pi')) <= 0",
    SIZE_FORMAT,
)


def _checked_size(text: str) -> str:
    if not 2**20 <= parse_bytes(text) <= 2**50:
        raise ValueError(f"{text}: {SIZE_FORMAT}")
    return text


class CacheFolder(ApiType):
    """A directory of each node."""

    path: Annotated[str, StringConstraints(max_length=4096, pattern=r"^/[^:]*$")] = Field(
        description="Absolute directory that exists on each node and is writable for user 10001. Needs the operator's "
        "--allowed-host-path, and a namespace whose pod security standard admits hostPath."
    )


class CacheClaim(ApiType):
    """A claim that all nodes share."""

    claim_name: ObjectName = Field(description="PersistentVolumeClaim that holds the models.")


class CacheStorage(ApiType):
    """The storage of the models. Exactly one field is set."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(exactly_one("hostPath", "pvc"), EXACTLY_ONE_STORAGE), cel("self == oldSelf", STORAGE_STAYS)
        )
    )

    host_path: CacheFolder | None = Field(default=None, description="A directory of each node.")
    pvc: CacheClaim | None = Field(default=None, description="One claim for all nodes.")

    @model_validator(mode="after")
    def _exactly_one(self) -> CacheStorage:
        if (self.host_path is None) == (self.pvc is None):
            raise ValueError(EXACTLY_ONE_STORAGE)
        return self


class CacheSource(ApiType):
    """The hub, store or registry of a model. Exactly one field is set."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(exactly_one("huggingFace", "modelScope", "s3", "oci"), EXACTLY_ONE_HUB),
            cel("self == oldSelf", SOURCE_STAYS),
        )
    )

    hugging_face: HuggingFaceModel | None = Field(default=None, description="Hugging Face's hub, or a mirror.")
    model_scope: ModelScopeModel | None = Field(default=None, description="ModelScope's hub.")
    s3: S3Model | None = Field(default=None, description="An S3-compatible store.")
    oci: OciModel | None = Field(default=None, description="An artifact of an OCI registry.")

    @property
    def model(self) -> PulledModel:
        """The model at its source."""
        found = self.hugging_face or self.model_scope or self.s3 or self.oci
        assert found is not None
        return found

    @model_validator(mode="after")
    def _exactly_one(self) -> CacheSource:
        if [self.hugging_face, self.model_scope, self.s3, self.oci].count(None) != 3:
            raise ValueError(EXACTLY_ONE_HUB)
        return self


class CachedModel(ApiType):
    """One model of the cache."""

    name: PartName = Field(description="Name of the model, which services use in model.source.cache.model.")
    size: Size = Field(
        description="Size of the model, rounded up, as `ballast pull REPO` lists it. The cache uses it for its "
        "capacity.",
        json_schema_extra=rules(SIZE_RULE),
    )
    source: CacheSource = Field(description="Source of the model.")

    _size = field_validator("size")(_checked_size)


class CacheImageSecret(ApiType):
    """A Secret of the same namespace."""

    name: ObjectName = Field(description="Name of the Secret.")


class Proxy(ApiType):
    """A variable with a proxy, or with hosts that need none."""

    name: Annotated[str, StringConstraints(max_length=16, pattern=PROXY_PATTERN)] = Field(
        description="HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or NO_PROXY, or one of them in lower case."
    )
    value: Annotated[str, StringConstraints(max_length=4096)] = Field(description="Its value.")


class ModelCacheSpec(ApiType):
    """Models on nodes or on a claim, for the services of one namespace."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!isQuantity(self.capacity) || self.models.all(m, !isQuantity(m.size) || "
                "quantity(m.size).compareTo(quantity(self.capacity)) <= 0)",
                LARGER_THAN_ALL,
                field_path=".capacity",
            )
        )
    )

    storage: CacheStorage = Field(description="Storage of the models.")
    capacity: Size = Field(
        description="Maximum total size of the models on each node, or on the claim.",
        json_schema_extra=rules(SIZE_RULE),
    )
    models: list[CachedModel] = Field(
        default_factory=list,
        max_length=MAX_MODELS,
        description="Models to download, in this order. If they exceed the capacity, models that no service uses are "
        "evicted, least recently used first.",
        json_schema_extra=by_key("name"),
    )
    node_selector: Labels = Field(
        default_factory=dict, description="Labels of the nodes that store the models. Default: all nodes."
    )
    tolerations: list[Toleration] = Field(
        default_factory=list,
        max_length=32,
        description="Tolerated taints. Nodes with other taints store no models.",
    )
    image_pull_secrets: list[CacheImageSecret] = Field(
        default_factory=list, max_length=16, description="Secrets of the runtime image's registry, by name."
    )
    proxies: list[Proxy] = Field(
        default_factory=list,
        max_length=8,
        description="Proxy variables of the pods that download models.",
        json_schema_extra=by_key("name"),
    )

    @field_validator("models")
    @classmethod
    def _names_differ(cls, models: list[CachedModel]) -> list[CachedModel]:
        no_two(models, "name")
        return models

    @field_validator("proxies")
    @classmethod
    def _proxies_differ(cls, proxies: list[Proxy]) -> list[Proxy]:
        no_two(proxies, "name")
        return proxies

    _size = field_validator("capacity")(_checked_size)

    @model_validator(mode="after")
    def _each_fits(self) -> ModelCacheSpec:
        for model in self.models:
            if parse_bytes(model.size) > parse_bytes(self.capacity):
                raise ValueError(f"capacity ({self.capacity}): {LARGER_THAN_ALL}, and {model.name} takes {model.size}")
        return self
