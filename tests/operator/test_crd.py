"""The definitions in charts/ballast/files/crd: generated from the types, complete, and within the API server's
limits."""

import json
from pathlib import Path

import pytest
import yaml
from builders import service

from ballast_operator.api.inference_service import InferenceService, SpecError
from ballast_operator.api.pod.scheduling import Scheduling
from ballast_operator.child_options import ChildOptions
from ballast_operator.crd import to_yaml
from ballast_operator.definitions import DEFINITIONS, model_cache_definition, service_definition
from ballast_operator.resources.pod import Attempt, build_pod
from devkit.cluster.service.short_lists import SHORT_LISTS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "charts/ballast/files/crd"
FILE = FOLDER / "inferenceservices.serving.ballast.dev.yaml"
SCHEMA = service_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


CACHE_SCHEMA = model_cache_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def fields(schema, path=""):
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields(field, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield f"{path}[]", schema[inner]
            yield from fields(schema[inner], f"{path}[]")


SPEC_FIELDS = list(fields(SCHEMA["properties"]["spec"], "spec"))
ALL_FIELDS = [*SPEC_FIELDS, *fields(SCHEMA["properties"]["status"], "status")]
CACHE_FIELDS = [
    (f"{path} of a cache", field)
    for part in ("spec", "status")
    for path, field in fields(CACHE_SCHEMA["properties"][part], part)
]
DESCRIBED = [*ALL_FIELDS, *CACHE_FIELDS]


@pytest.mark.parametrize("plural", DEFINITIONS)
def test_the_file_matches_the_types(plural):
    file = FILE.with_name(f"{plural}.serving.ballast.dev.yaml")
    made = to_yaml(DEFINITIONS[plural]())
    assert file.read_text() == made, f"run: ballast-operator crd {plural} > {file.relative_to(ROOT)}"


def test_the_manifests_link_to_every_definition_of_the_chart():
    links = {file.name: file.readlink() for file in (ROOT / "manifests/crd").iterdir()}
    assert links == {file.name: Path("../../charts/ballast/files/crd", file.name) for file in FOLDER.iterdir()}


@pytest.mark.parametrize("plural", DEFINITIONS)
def test_both_versions_are_served_with_the_same_content_and_one_is_stored(plural):
    spec = DEFINITIONS[plural]()["spec"]
    versions = {version["name"]: version for version in spec["versions"]}
    assert list(versions) == ["v1beta1", "v1alpha1"]
    assert [name for name, version in versions.items() if version["storage"]] == ["v1alpha1"]
    assert all(version["served"] and "deprecated" not in version for version in versions.values())
    beta, alpha = ({**version, "name": "", "storage": None} for version in versions.values())
    assert beta == alpha
    assert spec["conversion"] == {"strategy": "None"}


@pytest.mark.parametrize("plural", DEFINITIONS)
def test_the_crd_fits_the_annotation_of_a_client_side_apply(plural):
    """It stores the whole definition in an annotation, and annotations have at most 256 KiB."""
    assert len(json.dumps(DEFINITIONS[plural]())) < 200 * 2**10


@pytest.mark.parametrize(("path", "field"), DESCRIBED, ids=[path for path, _ in DESCRIBED])
def test_every_field_is_described_and_bounded(path, field):
    assert path.removesuffix(" of a cache").endswith("[]") or field.get("description", "").endswith((".", "}.", ")."))
    kind = field["type"]
    if kind == "string":
        assert "enum" in field or "maxLength" in field
    elif kind == "integer":
        assert {"minimum", "maximum"} <= field.keys() or not path.startswith("spec")
    elif kind == "array":
        assert "maxItems" in field
    elif kind == "object" and "additionalProperties" in field:
        assert "maxProperties" in field or "x-kubernetes-preserve-unknown-fields" in field
    assert set(field) <= {
        "type", "format", "description", "default", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum",
        "minItems", "maxItems", "maxProperties", "properties", "required", "items", "additionalProperties",
        "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
        "x-kubernetes-preserve-unknown-fields",
    }  # fmt: skip


def test_every_spec_field_is_explicitly_required_defaulted_or_optional():
    def check(schema, path):
        for name, field in schema.get("properties", {}).items():
            is_object_or_list = field["type"] in ("object", "array")
            absent_by_choice = name not in schema.get("required", ()) and "default" not in field
            if is_object_or_list and absent_by_choice:
                assert (path, name) in ABSENT_OBJECTS, f"{path}.{name} has no default"
            check(field, f"{path}.{name}")

    check(SCHEMA["properties"]["spec"], "spec")


ABSENT_OBJECTS = {
    ("spec.model.source", "pvc"),
    ("spec.model.source", "hostPath"),
    ("spec.model.source", "image"),
    ("spec.model.source", "builtin"),
    ("spec.model.source", "cache"),
    ("spec.model.source", "huggingFace"),
    ("spec.model.source.huggingFace", "files"),
    ("spec.model.source.huggingFace", "tokenSecretRef"),
    ("spec.model.source.huggingFace", "pvc"),
    ("spec.model.source.huggingFace", "hostPath"),
    ("spec.model.source", "modelScope"),
    ("spec.model.source.modelScope", "files"),
    ("spec.model.source.modelScope", "tokenSecretRef"),
    ("spec.model.source.modelScope", "pvc"),
    ("spec.model.source.modelScope", "hostPath"),
    ("spec.model.source", "s3"),
    ("spec.model.source.s3", "credentialsSecretRef"),
    ("spec.model.source.s3", "pvc"),
    ("spec.model.source.s3", "hostPath"),
    ("spec.model.source", "oci"),
    ("spec.model.source.oci", "pullSecretRef"),
    ("spec.model.source.oci", "pvc"),
    ("spec.model.source.oci", "hostPath"),
    ("spec.engine", "placementRules"),
    ("spec.engine.placementRules", "configMapRef"),
    ("spec.endpoint", "auth"),
    ("spec.endpoint", "networkPolicy"),
    ("spec.endpoint", "inferencePool"),
    ("spec.endpoint", "route"),
    ("spec.endpoint.route", "canary"),
    ("spec.securityContext", "seLinuxOptions"),
    ("spec.scheduling", "affinity"),
    ("spec", "kernelCache"),
    ("spec", "packedWeights"),
    ("spec", "kvDisk"),
    ("spec.packedWeights", "memory"),
    ("spec.packedWeights", "pvc"),
}


def test_no_field_of_a_lists_item_has_a_default():
    """Argo CD compares lists as a whole, so a default inside a list keeps a service OutOfSync."""
    root = {"properties": SCHEMA["properties"]}
    assert [path for path, field in fields(root) if "[]" in path and "default" in field] == []


def test_a_list_without_its_defaults_means_the_same_as_with_them():
    pods = []
    for lists in (SHORT_LISTS, WRITTEN_OUT_LISTS):
        body = {"metadata": {"name": "x", "uid": "1"}, "spec": {"model": {"source": {"builtin": {}}}, **lists}}
        pods.append(build_pod(InferenceService.from_api(body, strict=True), ChildOptions(), Attempt(0)))
    assert pods[0] == pods[1]


KEY, OBJECT = {"name": "a", "key": "b"}, {"name": "a"}
NO, SOME = {"readOnly": False}, {"optional": False}
SIDECAR = {"imagePullPolicy": "IfNotPresent", "command": [], "args": [], "env": [], "envFrom": [], "volumeMounts": []}
PLAIN, FULL = SHORT_LISTS["sidecars"]
WRITTEN_OUT_LISTS = {
    **SHORT_LISTS,
    "scheduling": {
        "tolerations": [{"key": "pool", "operator": "Equal", "value": "models"}],
        "topologySpreadConstraints": [
            {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"},
            {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"},
        ],
    },
    "env": [
        {"name": "A", "valueFrom": {"secretKeyRef": {**KEY, **SOME}}},
        {"name": "B", "valueFrom": {"configMapKeyRef": {**KEY, **SOME}}},
    ],
    "envFrom": [{"secretRef": {**OBJECT, **SOME}}, {"configMapRef": {**OBJECT, **SOME}}],
    "volumes": [
        {"name": "a", "persistentVolumeClaim": {"claimName": "a", **NO}},
        {"name": "b", "configMap": {"name": "a", **SOME}},
        {"name": "c", "secret": {"secretName": "a", **SOME}},
        {"name": "d", "hostPath": {"path": "/srv", "type": "Directory"}},
        {"name": "e", "csi": {"driver": "a", **NO, "volumeAttributes": {}}},
        {"name": "f", "emptyDir": {"sizeLimit": "1Gi"}},
    ],
    "volumeMounts": [{"name": "a", "mountPath": "/a", **NO}],
    "sidecars": [
        {**SIDECAR, **PLAIN},
        {
            **SIDECAR,
            **FULL,
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": {**KEY, **SOME}}}],
            "envFrom": [{"configMapRef": {**OBJECT, **SOME}}],
            "volumeMounts": [{"name": "a", "mountPath": "/a", **NO}],
        },
    ],
}


@pytest.mark.parametrize("second", [{}, {"whenUnsatisfiable": "DoNotSchedule"}], ids=["left out", "written out"])
def test_two_spreads_with_one_key_are_rejected(second):
    spread = {"topologyKey": "zone"}
    with pytest.raises(ValueError, match="must not have two items with the same topologyKey"):
        Scheduling.model_validate({"topologySpreadConstraints": [spread, {**spread, **second}]})
    both = [spread, {**spread, "whenUnsatisfiable": "ScheduleAnyway"}, {"topologyKey": "host"}]
    assert len(Scheduling.model_validate({"topologySpreadConstraints": both}).topology_spread_constraints) == 3


def test_names_and_columns_match_the_contract():
    spec = service_definition()["spec"]
    assert (spec["group"], spec["names"]["shortNames"], spec["names"]["categories"]) == (
        "serving.ballast.dev",
        ["bisvc"],
        ["ballast"],
    )
    version = spec["versions"][0]
    columns = [(column["name"], column.get("priority", 0)) for column in version["additionalPrinterColumns"]]
    assert columns == [
        ("Available", 0), ("Ready", 0), ("Reason", 0), ("NUMA", 0), ("Device", 0),
        ("Ready-Pods", 0), ("Wanted", 0), ("Replicas", 1), ("Updated", 1),
        ("Images", 1), ("Age", 0), ("URL", 1), ("External-URL", 1), ("Node", 1), ("Message", 1),
    ]  # fmt: skip
    assert set(version["subresources"]) == {"status", "scale"}


def test_samples_are_accepted_by_the_types():
    samples = sorted((ROOT / "manifests/samples").glob("*.yaml"))
    assert len(samples) >= 3
    for sample in samples:
        for document in yaml.safe_load_all(sample.read_text()):
            if document["kind"] == "InferenceService":
                InferenceService.from_api(document, strict=True)


@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_pod_metadata_may_not_have_the_operators_keys(part):
    key = "serving.ballast.dev/served"
    with pytest.raises(SpecError, match=rf"podMetadata: keys that begin with serving.ballast.dev/ are .* {key} is one"):
        service(podMetadata={part: {key: "true"}})
    assert service(podMetadata={part: {"example.org/served": "true"}}).spec.pod_metadata


def test_columns_compare_ready_and_wanted_pods():
    (columns,) = {
        tuple((each["name"], each["jsonPath"]) for each in version["additionalPrinterColumns"])
        for version in service_definition()["spec"]["versions"]
    }
    assert {("Ready-Pods", ".status.readyReplicas"), ("Wanted", ".spec.replicas")} <= set(columns)
