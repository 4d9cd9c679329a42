"""The part of the spec for the model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from ballast_operator.api.base import ApiType, ObjectName, RelativePath, cel, exactly_one, rules
from ballast_operator.api.sources.cached_source import CachedSource
from ballast_operator.api.sources.hugging_face import HuggingFaceSource
from ballast_operator.api.sources.model_scope import ModelScopeSource
from ballast_operator.api.sources.oci_model import OciSource
from ballast_operator.api.sources.pulled_model import PulledSource
from ballast_operator.api.sources.s3_model import S3Source

PULLED_SOURCES = {"huggingFace": "hugging_face", "modelScope": "model_scope", "s3": "s3", "oci": "oci"}
"""Sources that a Job downloads to a volume: name in YAML → name here."""
_SOURCES = ("pvc", "hostPath", "image", *PULLED_SOURCES, "cache", "builtin")
EXACTLY_ONE_SOURCE = f"exactly one model source must be set: {', '.join(_SOURCES[:-1])} or {_SOURCES[-1]}"
PATHS_NOT_ALLOWED = (
    f"with source.{', '.join(PULLED_SOURCES)} or cache, ggufPath and configPath must not be set: "
    "the source's files are the model"
)


class PvcSource(ApiType):
    """A PersistentVolumeClaim."""

    claim_name: ObjectName = Field(description="PersistentVolumeClaim that holds the model. Mounted read-only.")


class HostPathSource(ApiType):
    """A directory of the node."""

    path: Annotated[str, StringConstraints(max_length=4096, pattern=r"^/[^:]*$")] = Field(
        description="Absolute directory on the node. Mounted read-only. The operator rejects it outside its allowed "
        "directories (--allowed-host-path, `allowed.hostPaths` of the chart), and so do namespaces that enforce the "
        "baseline or restricted pod security standard; use a local PersistentVolume there."
    )


class ImageSource(ApiType):
    """An OCI image that is mounted as a volume."""

    reference: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        description="OCI image or artifact with the model's files. Needs the ImageVolume feature of Kubernetes."
    )
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When the image is pulled."
    )


class BuiltinSource(ApiType):
    """The tiny model in the runtime's image."""


class ModelSource(ApiType):
    """The source of the model's files. Exactly one field is set."""

    model_config = ConfigDict(
        json_schema_extra=rules(cel(exactly_one(*_SOURCES), EXACTLY_ONE_SOURCE)),
    )

    pvc: PvcSource | None = Field(default=None, description="A PersistentVolumeClaim.")
    host_path: HostPathSource | None = Field(default=None, description="A directory of the node.")
    image: ImageSource | None = Field(default=None, description="An OCI image, mounted as a volume.")
    hugging_face: HuggingFaceSource | None = Field(
        default=None,
        description="A model of a hub. A Job first downloads it to a claim or a node's directory, once for all "
        "services with the same source. The files stay when the services are deleted.",
    )
    model_scope: ModelScopeSource | None = Field(
        default=None, description="A model of ModelScope's hub, downloaded by a Job as for huggingFace."
    )
    s3: S3Source | None = Field(
        default=None,
        description="A model of an S3-compatible store, downloaded by a Job as for huggingFace.",
    )
    oci: OciSource | None = Field(
        default=None,
        description="An artifact of an OCI registry, downloaded by a Job as for huggingFace.",
    )
    cache: CachedSource | None = Field(
        default=None,
        description="A model of a ModelCache. Pods run on the nodes that have it.",
    )
    builtin: BuiltinSource | None = Field(
        default=None, description="The small trained model in the runtime's image, for tests of a cluster: {}."
    )

    @property
    def pulled(self) -> PulledSource | None:
        """The model that a Job downloads to a volume; None for other sources."""
        return self.hugging_face or self.model_scope or self.s3 or self.oci

    @property
    def pulled_field(self) -> str:
        """The field of `pulled`."""
        return next(written for written, name in PULLED_SOURCES.items() if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _exactly_one(self) -> ModelSource:
        if len(self.to_api()) != 1:
            raise ValueError(EXACTLY_ONE_SOURCE)
        return self


class Model(ApiType):
    """The served model."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                f"!({' || '.join(f'has(self.source.{name})' for name in (*PULLED_SOURCES, 'cache'))}) || "
                "(self.ggufPath == '.' && !has(self.configPath))",
                PATHS_NOT_ALLOWED,
            )
        )
    )

    served_name: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = Field(
        default=None,
        description="Name of the model in replies and in /v1/models. Default: the model's own name, or "
        "that on the hub.",
    )
    source: ModelSource = Field(description="Source of the model's files.")
    gguf_path: RelativePath = Field(
        default=".",
        description="GGUF file, or directory of one model's shards, inside the source. Default: the source's root.",
    )
    config_path: RelativePath | None = Field(
        default=None,
        description="Directory inside the source with config.json and the tokenizer's files. Default: from the GGUF.",
    )

    @model_validator(mode="after")
    def _paths_of_files(self) -> Model:
        of_a_hub = self.source.pulled is not None or self.source.cache is not None
        if of_a_hub and (self.gguf_path != "." or self.config_path is not None):
            raise ValueError(PATHS_NOT_ALLOWED)
        return self
