"""All CustomResourceDefinitions, by their plural names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ballast_operator.api.model_cache_spec import ModelCacheSpec
from ballast_operator.api.model_cache_status import ModelCacheStatus
from ballast_operator.crd import column, condition_column, custom_resource_definition, root_schema
from ballast_operator.names import CACHE_KIND, CACHE_PLURAL, GROUP, MAX_NAME_LENGTH, PLURAL, VERSION

CACHE_NAME_RULE = (
    f"the name becomes the value of a label: at most {MAX_NAME_LENGTH} lower-case letters, digits and hyphens, with a "
    "letter first"
)


def model_cache_definition() -> dict[str, Any]:
    """The definition of ModelCache."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{CACHE_PLURAL}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "ballast"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": CACHE_KIND,
                "listKind": f"{CACHE_KIND}List",
                "plural": CACHE_PLURAL,
                "singular": CACHE_KIND.lower(),
                "shortNames": ["bmc"],
                "categories": ["ballast"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        condition_column("Ready", "Ready", "status"),
                        condition_column("Reason", "Ready", "reason"),
                        column("Present", "string", ".status.present"),
                        column("Capacity", "string", ".spec.capacity"),
                        column("Age", "date", ".metadata.creationTimestamp"),
                    ],
                    "schema": {"openAPIV3Schema": _schema()},
                }
            ],
        },
    }


def _schema() -> dict[str, Any]:
    return root_schema(
        CACHE_KIND,
        "Models that are kept on nodes or on a claim, for the services of one namespace.",
        CACHE_NAME_RULE,
        ModelCacheSpec.model_json_schema(),
        ModelCacheStatus.model_json_schema(),
    )


DEFINITIONS: Mapping[str, Callable[[], dict[str, Any]]] = {
    PLURAL: custom_resource_definition,
    CACHE_PLURAL: model_cache_definition,
}
