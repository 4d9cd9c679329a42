"""The fields of all sources that a Job downloads to a volume."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from ballast_operator.api.base import ApiType, ObjectName, cel, exactly_one

CLAIM_OR_FOLDER = "exactly one of pvc and hostPath must be set"
CLAIM_OR_FOLDER_RULE = cel(exactly_one("pvc", "hostPath"), CLAIM_OR_FOLDER)

Endpoint = Annotated[str, StringConstraints(max_length=1024, pattern=r"^https?://[^\s/@]+(/[^\s@]*)?$")]


class PulledClaim(ApiType):
    """A claim to which models are downloaded."""

    claim_name: ObjectName = Field(
        description="PersistentVolumeClaim to which the model is downloaded; engines read it. Several models may "
        "share it."
    )


class PulledFolder(ApiType):
    """A directory of one node to which models are downloaded."""

    path: Annotated[str, StringConstraints(max_length=4096, pattern=r"^/[^:]*$")] = Field(
        description="Absolute directory on the node, writable for user 10001. Needs scheduling.nodeSelector with "
        "kubernetes.io/hostname, and the operator's --allowed-host-path."
    )


class KeptOnVolume(ApiType):
    """The volume of a downloaded model. Exactly one field is set."""

    pvc: PulledClaim | None = Field(default=None, description="A PersistentVolumeClaim.")
    host_path: PulledFolder | None = Field(default=None, description="A directory of one node.")

    @model_validator(mode="after")
    def _claim_or_folder(self) -> KeptOnVolume:
        if (self.pvc is None) == (self.host_path is None):
            raise ValueError(CLAIM_OR_FOLDER)
        return self
