"""All CustomResourceDefinitions, by their plural names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ballast_operator.api.model_cache_spec import ModelCacheSpec
from ballast_operator.api.model_cache_status import ModelCacheStatus
from ballast_operator.api.spec import InferenceServiceSpec
from ballast_operator.api.status import InferenceServiceStatus
from ballast_operator.crd import column, condition_column, definition, root_schema
from ballast_operator.names import CACHE_KIND, CACHE_PLURAL, KIND, MAX_NAME_LENGTH, NAME_RULE, PLURAL

CACHE_NAME_RULE = (
    f"the name becomes a label value: at most {MAX_NAME_LENGTH} lower-case letters, digits and hyphens, with a "
    "letter first"
)


def service_definition() -> dict[str, Any]:
    """The definition of InferenceService."""
    columns = [
        condition_column("Available", "Available", "status"),
        condition_column("Ready", "Ready", "status"),
        condition_column("Reason", "Ready", "reason"),
        condition_column("NUMA", "NUMAPinned", "status"),
        column("Device", "string", ".status.device.used"),
        column("Ready-Pods", "integer", ".status.readyReplicas"),
        column("Wanted", "integer", ".spec.replicas"),
        column("Replicas", "integer", ".status.replicas", priority=1),
        column("Updated", "integer", ".status.updatedReplicas", priority=1),
        column("Images", "string", ".status.image", priority=1),
        column("Age", "date", ".metadata.creationTimestamp"),
        column("URL", "string", ".status.url", priority=1),
        column("External-URL", "string", ".status.externalURL", priority=1),
        column("Node", "string", ".status.nodes", priority=1),
        condition_column("Message", "Ready", "message", priority=1),
    ]
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    schema = root_schema(
        KIND,
        "A mixture-of-experts model that one or a few GPUs and a lot of host memory serve behind an OpenAI endpoint.",
        NAME_RULE,
        InferenceServiceSpec.model_json_schema(),
        InferenceServiceStatus.model_json_schema(),
    )
    return definition(KIND, PLURAL, "bisvc", columns, schema, scale=scale)


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
        "Models that are stored on nodes or on a claim, for the services of one namespace.",
        CACHE_NAME_RULE,
        ModelCacheSpec.model_json_schema(),
        ModelCacheStatus.model_json_schema(),
    )
    return definition(CACHE_KIND, CACHE_PLURAL, "bmc", columns, schema)


DEFINITIONS: Mapping[str, Callable[[], dict[str, Any]]] = {
    PLURAL: service_definition,
    CACHE_PLURAL: model_cache_definition,
}
