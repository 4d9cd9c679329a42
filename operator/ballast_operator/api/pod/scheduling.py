"""The part of the spec for the choice of nodes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator

from ballast_operator.api.base import ApiType, Labels, LabelValue, ObjectName, cel, rules

DUPLICATE_SPREAD = "topologySpreadConstraints must not have two items with the same topologyKey and whenUnsatisfiable"
_IS_SOFT = "(has({0}.whenUnsatisfiable) && {0}.whenUnsatisfiable == 'ScheduleAnyway')"
"""In CEL: whether a spread is ScheduleAnyway instead of the default, DoNotSchedule."""


class Toleration(ApiType):
    """A taint that the pods tolerate."""

    key: Annotated[str, StringConstraints(max_length=317)] | None = Field(
        default=None, description="Key of the taint. Default: every taint."
    )
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="Comparison of the value.")
    value: LabelValue | None = Field(default=None, description="Value of the taint, for Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint. Default: every effect."
    )
    toleration_seconds: int | None = Field(
        default=None, ge=0, le=2**31 - 1, description="How long a NoExecute taint is tolerated. Default: forever."
    )


class TopologySpread(ApiType):
    """How the service's own pods spread over nodes or zones."""

    topology_key: Annotated[str, StringConstraints(min_length=1, max_length=317)] = Field(
        description="Label of nodes, such as topology.kubernetes.io/zone. Nodes with the same value are one domain."
    )
    max_skew: int = Field(
        default=1, ge=1, le=256, description="Maximum difference of the number of pods between two domains."
    )
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        default="DoNotSchedule", description="What to do if the constraint cannot be met."
    )


class Scheduling(ApiType):
    """Which nodes the pods may run on."""

    node_selector: Labels = Field(default_factory=dict, description="Labels that a node must have.")
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=32, description="Taints that the pods tolerate."
    )
    affinity: dict[str, Any] | None = Field(
        default=None,
        description="Affinity of the pods, as in a pod's spec.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    topology_spread_constraints: list[TopologySpread] = Field(
        default_factory=list,
        max_length=8,
        description="How the service's own pods spread over nodes or zones.",
        # Not a list of the type map: its keys need a value or a default of the API server, and lists have none.
        json_schema_extra=rules(
            cel(
                f"self.all(a, self.exists_one(b, a.topologyKey == b.topologyKey && {_IS_SOFT.format('a')} == "
                f"{_IS_SOFT.format('b')}))",
                DUPLICATE_SPREAD,
            )
        ),
    )
    priority_class_name: ObjectName | None = Field(default=None, description="PriorityClass of the pods.")
    runtime_class_name: ObjectName | None = Field(default=None, description="RuntimeClass of the pods, such as nvidia.")
    scheduler_name: ObjectName | None = Field(
        default=None,
        description="Scheduler of the pods, such as one that considers NUMA nodes. Default: the cluster's.",
    )

    @field_validator("topology_spread_constraints")
    @classmethod
    def _spreads_differ(cls, spreads: list[TopologySpread]) -> list[TopologySpread]:
        if len({(each.topology_key, each.when_unsatisfiable) for each in spreads}) < len(spreads):
            raise ValueError(DUPLICATE_SPREAD)
        return spreads
