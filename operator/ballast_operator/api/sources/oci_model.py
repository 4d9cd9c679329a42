"""A model that is an artifact of an OCI registry."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from ballast_operator.api.base import ApiType, ObjectName, rules
from ballast_operator.api.sources.pulled_source import CLAIM_OR_FOLDER_RULE, KeptOnVolume

_REFERENCE = (
    r"^[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$"
)


class PullSecretRef(ApiType):
    """A Secret of the type kubernetes.io/dockerconfigjson."""

    name: ObjectName = Field(description="Name of the Secret, in the same namespace.")


class OciModel(ApiType):
    """An artifact, with the credentials."""

    reference: Annotated[str, StringConstraints(max_length=400, pattern=_REFERENCE)] = Field(
        description="Artifact with GGUF files, as ORAS, Docker Model Runner and ModelPack publish them: "
        "registry/repository:tag or registry/repository@sha256:…. Only a digest always has the same files. "
        "The operator's --allowed-image must allow it."
    )
    quant: Annotated[str, StringConstraints(max_length=256, pattern=r"^\w[\w.-]*$")] | None = Field(
        default=None, description="Quantisation. Needed if the artifact has several models."
    )
    pull_secret_ref: PullSecretRef | None = Field(
        default=None,
        description="Secret of the type kubernetes.io/dockerconfigjson with the registry's credentials. Only the "
        "downloading pod gets it; the operator never reads it.",
    )

    @property
    def name(self) -> str:
        """The model's name, as `ballast pull` and `ballast serve` take it."""
        if self.quant is None:
            return f"oci://{self.reference}"
        has_tag = ":" in self.reference.rpartition("/")[2]
        return f"oci://{self.reference}{'' if has_tag else ':latest'}:{self.quant}"

    @property
    def served_name(self) -> str:
        """The name for clients."""
        return self.name

    @property
    def registry(self) -> str:
        """The registry's host, with its port if it has one."""
        return self.reference.partition("/")[0]


class OciSource(OciModel, KeptOnVolume):
    """An artifact, and its volume."""

    model_config = ConfigDict(json_schema_extra=rules(CLAIM_OR_FOLDER_RULE))
