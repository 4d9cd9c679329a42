"""The part of the spec for user and groups of the processes."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from ballast_operator.api.base import ApiType, cel, rules

MAX_ID = 2**31 - 1
NOT_BOTH = "with assignedByCluster, runAsUser, runAsGroup and fsGroup must not be set: the cluster chooses them"

SELinuxWord = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9_.,:-]+$")]


class SELinux(ApiType):
    """SELinux label of the processes."""

    user: SELinuxWord | None = Field(default=None, description="User of the label.")
    role: SELinuxWord | None = Field(default=None, description="Role of the label.")
    type: SELinuxWord | None = Field(default=None, description="Type of the label, such as container_t.")
    level: SELinuxWord | None = Field(default=None, description="Level of the label, such as s0:c26,c5.")


class SecurityContext(ApiType):
    """User and groups of the processes. There are no fields for what never changes: no root, no privileges, a read-only
    root file system."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!self.assignedByCluster || !(has(self.runAsUser) || has(self.runAsGroup) || has(self.fsGroup))",
                NOT_BOTH,
                field_path=".assignedByCluster",
            )
        )
    )

    assigned_by_cluster: bool = Field(
        default=False,
        description="Leave out user and groups, for OpenShift, which assigns them per namespace and rejects others. "
        "Other clusters then use the image's user.",
    )
    run_as_user: int | None = Field(default=None, ge=1, le=MAX_ID, description="User of the processes. Default: 10001.")
    run_as_group: int | None = Field(
        default=None, ge=1, le=MAX_ID, description="Group of the processes. Default: 10001."
    )
    fs_group: int | None = Field(
        default=None, ge=1, le=MAX_ID, description="Group that may write to volumes. Default: 10001."
    )
    supplemental_groups: list[Annotated[int, Field(ge=1, le=MAX_ID)]] = Field(
        default_factory=list, max_length=16, description="Additional groups, such as that of a file share."
    )
    se_linux_options: SELinux | None = Field(default=None, description="SELinux label of the processes.")

    @model_validator(mode="after")
    def _not_both(self) -> SecurityContext:
        if self.assigned_by_cluster and (self.run_as_user, self.run_as_group, self.fs_group) != (None, None, None):
            raise ValueError(NOT_BOTH)
        return self
