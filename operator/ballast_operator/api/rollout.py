"""The part of the spec for the replacement of pods of an earlier spec."""

from __future__ import annotations

from pydantic import ConfigDict, Field, model_validator

from ballast_operator.api.base import ApiType, cel, rules

NO_STEP = "maxUnavailable and maxSurge must not both be 0: no pod could be replaced"
PROGRESS_DEADLINE_S = 600


class RolloutPolicy(ApiType):
    """How pods of an earlier spec are replaced."""

    model_config = ConfigDict(json_schema_extra=rules(cel("self.maxUnavailable > 0 || self.maxSurge > 0", NO_STEP)))

    max_unavailable: int = Field(
        default=1,
        ge=0,
        le=256,
        description="Maximum number of serving replicas that the operator stops simultaneously. Until a pod of the new "
        "spec has served, it stops at most one.",
    )
    max_surge: int = Field(
        default=0,
        ge=0,
        le=256,
        description="Pods of the new spec that may run in addition to replicas during a rollout. Each needs a node "
        "with the memory and devices of a replica.",
    )
    paused: bool = Field(
        default=False,
        description="Keeps pods of an earlier spec. A replica without a pod gets one of the newest spec.",
    )
    progress_deadline_seconds: int = Field(
        default=PROGRESS_DEADLINE_S,
        ge=1,
        le=2**31 - 1,
        description="Seconds without progress after which Progressing becomes False. While a pod starts without an "
        "error, its load timeout is added.",
    )

    @model_validator(mode="after")
    def _can_take_a_step(self) -> RolloutPolicy:
        if not self.max_unavailable and not self.max_surge:
            raise ValueError(NO_STEP)
        return self
