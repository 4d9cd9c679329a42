"""A model of a hub, which the operator has pulled onto a volume before engines start."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from ballast_operator.api.base import ApiType, ObjectName, cel, exactly_one, rules
from ballast_operator.api.hub_model import QUANT_OR_FILES_RULE, HubModel

CLAIM_OR_FOLDER = "exactly one of pvc and hostPath must be set"

Endpoint = Annotated[str, StringConstraints(max_length=1024, pattern=r"^https?://[^\s/@]+(/[^\s@]*)?$")]


class PulledClaim(ApiType):
    """A claim that models are pulled onto."""

    claim_name: ObjectName = Field(
        description="PersistentVolumeClaim that the model is pulled onto; engines read it. Several models may share it."
    )


class PulledFolder(ApiType):
    """A directory of one node that models are pulled into."""

    path: Annotated[str, StringConstraints(max_length=4096, pattern=r"^/[^:]*$")] = Field(
        description="Absolute directory on the node, which user 10001 may write to. Needs "
        "scheduling.nodeSelector with kubernetes.io/hostname, and the operator's --allowed-host-path."
    )


class HuggingFaceModel(HubModel):
    """Which model of Hugging Face's hub or of a mirror, and who asks for it."""

    model_config = ConfigDict(json_schema_extra=rules(QUANT_OR_FILES_RULE))

    endpoint: Endpoint = Field(default="https://huggingface.co", description="URL of the hub, or of a mirror.")


class HuggingFaceSource(HuggingFaceModel):
    """Which model of a hub, and where it is kept."""

    model_config = ConfigDict(
        json_schema_extra=rules(QUANT_OR_FILES_RULE, cel(exactly_one("pvc", "hostPath"), CLAIM_OR_FOLDER))
    )

    pvc: PulledClaim | None = Field(default=None, description="A PersistentVolumeClaim.")
    host_path: PulledFolder | None = Field(default=None, description="A directory of one node.")

    @model_validator(mode="after")
    def _claim_or_folder(self) -> HuggingFaceSource:
        if (self.pvc is None) == (self.host_path is None):
            raise ValueError(CLAIM_OR_FOLDER)
        return self
