"""Definitions of other projects' kinds, limited to the fields that samples and the operator use. Each has its type;
other fields are rejected, so that misspelt ones are found."""

from __future__ import annotations

from typing import Any

from devkit.cluster.kube import Object

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT}
ANYTHING: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def record(required: tuple[str, ...] = (), **fields: Schema) -> Schema:
    """An object with these fields."""
    return {"type": "object", "properties": fields, **({"required": list(required)} if required else {})}


def several(item: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": item}


def preset(schema: Schema, default: object) -> Schema:
    """The schema with a default that the API server fills in."""
    return {**schema, "default": default}


def definition(
    group: str, version: str, kind: str, content: Schema, short_names: tuple[str, ...] = (), namespaced: bool = True
) -> Object:
    """A CustomResourceDefinition whose objects contain `content` in addition to their metadata."""
    plural = kind.lower()[:-1] + "ies" if kind.endswith("y") else kind.lower() + "s"
    schema = record(apiVersion=TEXT, kind=TEXT, metadata={"type": "object"}, **content["properties"])
    metadata: Object = {"name": f"{plural}.{group}"}
    if group.endswith(".k8s.io"):
        metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, a stand-in for tests"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": group,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "shortNames": list(short_names)},
            "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def with_spec(required: tuple[str, ...] = (), **fields: Schema) -> Schema:
    """The content of a kind with a spec that has these fields."""
    return record(spec=record(required, **fields))


_ALL_PATHS = {"path": {"type": "PathPrefix", "value": "/"}}
# Fields, required fields and defaults: gateway-api-inference-extension 1.5, gateway-api 1.4.
INFERENCE_POOL = definition(
    "inference.networking.k8s.io",
    "v1",
    "InferencePool",
    with_spec(
        ("selector", "targetPorts", "endpointPickerRef"),
        selector=record(("matchLabels",), matchLabels=LABELS),
        targetPorts=several(record(("number",), number=NUMBER)),
        endpointPickerRef=record(
            ("name",), group=TEXT, kind=TEXT, name=TEXT, port=record(("number",), number=NUMBER), failureMode=TEXT
        ),
    ),
)
_ROUTE_MATCH = record(
    path={**record(type=preset(TEXT, "PathPrefix"), value=preset(TEXT, "/")), "default": _ALL_PATHS["path"]}
)
_BACKEND = record(
    ("name",),
    group=preset(TEXT, ""),
    kind=preset(TEXT, "Service"),
    name=TEXT,
    port=NUMBER,
    weight={**preset(NUMBER, 1), "minimum": 0, "maximum": 1_000_000},
)
HTTP_ROUTE = definition(
    "gateway.networking.k8s.io",
    "v1",
    "HTTPRoute",
    with_spec(
        parentRefs=several(
            record(
                ("name",),
                group=preset(TEXT, "gateway.networking.k8s.io"),
                kind=preset(TEXT, "Gateway"),
                name=TEXT,
                namespace=TEXT,
                sectionName=TEXT,
            )
        ),
        hostnames=several(TEXT),
        rules=several(
            record(
                matches=preset(several(_ROUTE_MATCH), [_ALL_PATHS]),
                backendRefs=several(_BACKEND),
                timeouts=record(request={**TEXT, "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}),
            )
        ),
    ),
)
# KEDA 2.21.
SCALED_OBJECT = definition(
    "keda.sh",
    "v1alpha1",
    "ScaledObject",
    with_spec(
        ("scaleTargetRef", "triggers"),
        scaleTargetRef=record(("name",), apiVersion=TEXT, kind=TEXT, name=TEXT),
        minReplicaCount=NUMBER,
        maxReplicaCount=NUMBER,
        pollingInterval=NUMBER,
        cooldownPeriod=NUMBER,
        advanced=record(
            horizontalPodAutoscalerConfig=record(
                behavior=record(scaleDown=record(stabilizationWindowSeconds=NUMBER)),
            )
        ),
        triggers=several(record(("type", "metadata"), type=TEXT, metadata=LABELS)),
    ),
)
# KEDA's HTTP add-on 0.15.
INTERCEPTOR_ROUTE = definition(
    "http.keda.sh",
    "v1beta1",
    "InterceptorRoute",
    with_spec(
        ("target", "scalingMetric"),
        target=record(("service",), service=TEXT, port=NUMBER),
        rules=several(record(hosts=several(TEXT))),
        scalingMetric=record(concurrency=record(("targetValue",), targetValue=NUMBER)),
        timeouts=record(readiness=TEXT, responseHeader=TEXT),
    ),
)
# prometheus-operator 0.85.
POD_MONITOR = definition(
    "monitoring.coreos.com",
    "v1",
    "PodMonitor",
    with_spec(
        ("selector", "podMetricsEndpoints"),
        selector=record(matchLabels=LABELS),
        podMetricsEndpoints=several(
            record(
                port=TEXT,
                path=TEXT,
                interval=TEXT,
                honorLabels={"type": "boolean"},
                relabelings=several(record(sourceLabels=several(TEXT), targetLabel=TEXT)),
            )
        ),
    ),
)
PROMETHEUS_RULE = definition(
    "monitoring.coreos.com",
    "v1",
    "PrometheusRule",
    with_spec(
        groups=several(
            record(
                ("name",),
                name=TEXT,
                rules=several(
                    record(("expr",), alert=TEXT, expr=TEXT, **{"for": TEXT}, labels=LABELS, annotations=LABELS)
                ),
            )
        )
    ),
)
# The kind of node feature discovery's topology updater has its fields at the top level.
NODE_RESOURCE_TOPOLOGY = definition(
    "topology.node.k8s.io",
    "v1alpha2",
    "NodeResourceTopology",
    record(zones=several(ANYTHING)),
    namespaced=False,
)
# Other projects with a kind InferenceService: KServe, LLMKube, OME. All three claim the short name isvc.
KSERVE = definition("serving.kserve.io", "v1beta1", "InferenceService", record(spec=ANYTHING), ("isvc",))
LLMKUBE = definition("inference.llmkube.dev", "v1alpha1", "InferenceService", record(spec=ANYTHING), ("isvc",))
OME = definition("ome.io", "v1beta1", "InferenceService", record(spec=ANYTHING), ("isvc",))
