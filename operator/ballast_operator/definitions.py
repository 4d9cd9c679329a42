"""All CustomResourceDefinitions, by their plural names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ballast_operator.api.model_cache_spec import ModelCacheSpec
from ballast_operator.api.model_cache_status import ModelCacheStatus
from ballast_operator.crd import column, condition_column, custom_resource_definition, definition, root_schema
from ballast_operator.names import CACHE_KIND, CACHE_PLURAL, MAX_NAME_LENGTH, PLURAL

CACHE_NAME_RULE = (
    f"the name becomes the value of a label: at most {MAX_NAME_LENGTH} lower-case letters, digits and hyphens, with a "
    "letter first"
)


def model_cache_definition() -> dict[str, Any]:
    """The definition of ModelCache."""
    columns = [
        condition_column("Ready", "Ready", "status"),
        condition_column("Reason", "Ready", "reason"),
        column("Present", "string", ".status.present"),
        column("Capacity", "string", ".spec.capacity"),
        column("Age", "date", ".metadata.creationTimestamp"),
    ]
    schema = root_schema(
        CACHE_KIND,
        "Models that are kept on nodes or on a claim, for the services of one namespace.",
        CACHE_NAME_RULE,
        ModelCacheSpec.model_json_schema(),
        ModelCacheStatus.model_json_schema(),
    )
    return definition(CACHE_KIND, CACHE_PLURAL, "bmc", columns, schema)


DEFINITIONS: Mapping[str, Callable[[], dict[str, Any]]] = {
    PLURAL: custom_resource_definition,
    CACHE_PLURAL: model_cache_definition,
}
