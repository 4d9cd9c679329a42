"""The status of a ModelCache."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from ballast_operator.api.base import ApiType
from ballast_operator.api.pod.container import by_key
from ballast_operator.api.status import Condition

ModelState = Literal["Present", "Pulling", "Waiting", "Failed", "NoRoom", "Removing"]

MAX_PLACES = 1024
MAX_ENTRIES = 128
MAX_SENTENCE = 4096


class PlacedModel(ApiType):
    """One model in one place."""

    name: str = Field(max_length=63, description="Name of the model in the spec.")
    state: ModelState = Field(
        description="Present: services may use it. Pulling: a Job downloads it. Waiting: its Job waits for a node, for "
        "room or for a removal. Failed: the Job fails and is retried. NoRoom: other models fill the capacity and are "
        "not evicted for it. Removing: a Job deletes its files."
    )
    in_use: bool = Field(default=False, description="Whether a service or a pod uses it, so that it is not evicted.")
    last_used: Annotated[str, StringConstraints(max_length=32)] | None = Field(
        default=None,
        description="Time when the last service or pod stopped using it, or when it was downloaded. Absent while it "
        "is in use.",
        json_schema_extra={"format": "date-time"},
    )
    message: Annotated[str, StringConstraints(max_length=MAX_SENTENCE)] = Field(
        default="", description="Human-readable explanation."
    )


class Place(ApiType):
    """One node, or the claim."""

    name: str = Field(max_length=253, description="Name of the node, or of the claim.")
    used: Annotated[str, StringConstraints(max_length=32)] = Field(
        description="Total size of the models here, by their sizes in the spec."
    )
    models: list[PlacedModel] = Field(
        default_factory=list, max_length=MAX_ENTRIES, description="The models.", json_schema_extra=by_key("name")
    )


class ModelCacheStatus(ApiType):
    """The state of the cache now."""

    observed_generation: int = Field(default=0, ge=0, description="Generation of the spec that this status describes.")
    present: str = Field(
        default="0/0",
        max_length=32,
        description="Number of copies that are present / number of copies that the spec requests.",
    )
    places: list[Place] | None = Field(
        default=None,
        max_length=MAX_PLACES,
        description="Models on each node, or on the claim.",
        json_schema_extra=by_key("name"),
    )
    conditions: list[Condition] | None = Field(
        default=None,
        max_length=8,
        description="Ready: every model is present wherever the spec requests it.",
        json_schema_extra=by_key("type"),
    )
