"""The definition's rules, evaluated by the API server; the cache rule uses the same table as the other validators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import ApiError, Kube, Object
from devkit.cluster.service.operator import CRD
from devkit.cluster.service.specs import service

CONTRACTS = Path(__file__).parents[1] / "contracts"
CASES = yaml.safe_load((CONTRACTS / "cache_rule.yaml").read_text())
MEMORY = yaml.safe_load((CONTRACTS / "memory.yaml").read_text())
GPU_OPTIONS = yaml.safe_load((CONTRACTS / "gpu_options.yaml").read_text())


@pytest.fixture(autouse=True, scope="module")
def definition(cluster: Cluster) -> None:
    cluster.install(CRD)


def refusal(kube: Kube, namespace: str, body: Object) -> str | None:
    try:
        kube.create("inferenceservices", body, namespace)
    except ApiError as error:
        return f"{error.code}: {error.message}"
    return None


def hub(**source: object) -> dict[str, Any]:
    """A model from a hub; None removes a field."""
    requested = {"repo": "org/tiny", "quant": "Q8_0", "pvc": {"claimName": "models"}, **source}
    wanted = {name: value for name, value in requested.items() if value is not None}
    return {"model": {"source": {"huggingFace": wanted}}}


def test_the_cache_rule(kube: Kube, namespace: str) -> None:
    for number, case in enumerate(CASES):
        text = refusal(kube, namespace, service(f"case-{number}", engine=case["engine"]))
        assert (text is None) == case["accepted"], (case, text)
        if "smallest" in case:
            assert text is not None
            rule = "max_batch_size * max_new_tokens" if "maxNewTokens" in case["engine"] else "no block of 32 tokens"
            assert rule in text
            assert f"the smallest cacheLens that passes is {case['smallest']}" in text
        if "longest" in case:
            assert text is not None
            assert f"the largest maxNewTokens that passes is {case['longest']}" in text
            assert "smallest" not in text


def test_accepted_memory_values(kube: Kube, namespace: str) -> None:
    for number, case in enumerate(MEMORY):
        resources = {"cpus": 1, "memory": case["memory"]}
        text = refusal(kube, namespace, service(f"memory-{number}", resources=resources))
        assert (text is None) == ("bytes" in case), (case, text)


def test_options_must_fit_the_gpus(kube: Kube, namespace: str) -> None:
    for number, case in enumerate(GPU_OPTIONS):
        resources = {"cpus": 1, "memory": "1Gi", "gpus": case["gpus"]}
        body = service(f"gpus-{number}", resources=resources, engine={"extraArgs": case["words"]})
        text = refusal(kube, namespace, body)
        assert (text is None) == case["accepted"], (case, text)
        assert text is None or f"resources.gpus is {case['gpus']}" in text


def test_defaults_are_set(kube: Kube, namespace: str) -> None:
    kube.create("inferenceservices", service("plain"), namespace)
    spec = kube.get("inferenceservices", "plain", namespace)["spec"]
    assert spec["engine"]["chunkSize"] == 256
    assert spec["engine"].keys().isdisjoint({"cacheLens", "maxNewTokens"}), "the server chooses these defaults"
    assert spec["numa"] == {"policy": "SingleNode", "enforcement": "Prefer"}
    assert spec["endpoint"] == {"port": 10002, "service": {"type": "ClusterIP", "annotations": {}}}
    assert (spec["replicas"], spec["resources"]["gpuResourceName"]) == (1, "nvidia.com/gpu")


SAME_SPREADS = [{"topologyKey": "a"}, {"topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}]
SIDECAR = {"name": "a", "image": "x", "cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model": {"source": {}}}, "exactly one model source"),
        ({"model": {"source": {"builtin": {}, "pvc": {"claimName": "x"}}}}, "exactly one model source"),
        ({"model": {"source": {"pvc": {"claimName": "x"}}, "ggufPath": "../etc"}}, "ggufPath"),
        (hub(pvc=None), "exactly one of pvc and hostPath"),
        (hub(files=["a.gguf"]), "exactly one of quant and files"),
        (hub(repo="org/.tiny"), "repo"),
        (hub(endpoint="file:///etc"), "endpoint"),
        (hub(pvc=None, hostPath={"path": "/srv"}), "nodeSelector must have kubernetes.io/hostname"),
        ({"model": {**hub()["model"], "ggufPath": "a.gguf"}}, "ggufPath and configPath must not be set"),
        ({"resources": {"cpus": 1.5, "memory": "1Gi"}}, "cpus"),
        ({"resources": {"cpus": "500m", "memory": "1Gi"}}, "cpus"),
        ({"resources": {"cpus": 0, "memory": "1Gi"}}, "cpus"),
        ({"resources": {"cpus": 1, "memory": "lots"}}, "must be a quantity"),
        ({"resources": {"cpus": 1, "memory": "1Mi"}}, "from 64Mi to 1Pi"),
        ({"resources": {"memory": "1Gi"}}, "cpus"),
        ({"engine": {"extraArgs": ["--admin-port=1"]}}, "must not set"),
        ({"engine": {"extraArgs": ["--admin-port=1\n2"]}}, "must not set"),
        ({"engine": {"extraArgs": ["--cache_len", "8"]}}, "must not set"),
        ({"engine": {"extraArgs": ["--max_queue", "8", "--tls-cert=x"]}}, "must not set"),
        ({"engine": {"extraArgs": ["--max_queue", "8", "--tls_cert_file", "x"]}}, "must not set"),
        *(
            ({"engine": {"extraArgs": words}}, "must not read files outside /models")
            for words in (
                ["--chat_template", "/etc/ballast/keys/keys"],
                ["--chat-template=/etc/ballast/keys/keys"],
                ["--max_queue=8", "--expert_profile", "/models/../etc/passwd"],
                ["--chat_template", "--chat_template", "/etc/passwd"],
                ["--chat_template=deepseek-r1", "--chat_template=etc/passwd"],
            )
        ),
        ({"engine": {"maxBatchSize": 512, "maxNewTokens": 1}}, "chunk_size"),
        ({"engine": {"placementRules": {}}}, "exactly one of configMapRef and inline"),
        ({"endpoint": {"port": 10003}}, "admin port"),
        ({"endpoint": {"port": 80}}, "1024"),
        ({"endpoint": {"service": {"type": "ExternalName"}}}, "Unsupported value"),
        ({"securityContext": {"runAsUser": 0}}, "runAsUser"),
        ({"securityContext": {"assignedByCluster": True, "fsGroup": 7}}, "must not be set: the cluster chooses them"),
        ({"kernelCache": {}}, "exactly one of claimName and hostPath"),
        ({"probes": {"liveness": {"failureThreshold": 0}}}, "failureThreshold"),
        *(
            ({"resources": {"cpus": 1, "memory": "1Gi", **requested}}, text)
            for requested, text in (
                ({"gpuClaim": "a"}, "gpuClaim must name one of resources.claims"),
                ({"gpuClaim": "a", "claims": [{"name": "a", "resourceClaimName": "x"}], "gpus": 0}, "gpuClaim must"),
                ({"claims": [{"name": "a"}]}, "exactly one of resourceClaimName and"),
                ({"gpus": 9}, "less than or equal to 8"),
                ({"gpus": 2, "cpuFallback": True}, "cpuFallback must not be set with several GPUs"),
                ({"claims": [{"name": "a", "resourceClaimName": "x"}] * 2}, "Duplicate value"),
            )
        ),
        ({"numa": {"policy": "Anywhere"}}, "Unsupported value"),
        ({"replicas": -1}, "replicas"),
        ({"env": [{"name": "HOME", "value": "/root"}]}, "env must not set HOME"),
        ({"env": [{"name": "BALLAST_PORT", "value": "1"}]}, "which belong in engine.extraArgs"),
        ({"env": [{"name": "A"}, {"name": "A"}]}, "Duplicate value"),
        ({"envFrom": [{}]}, "exactly one of secretRef and configMapRef"),
        ({"volumes": [{"name": "model", "secret": {"secretName": "x"}}]}, "names of the operator's own volumes"),
        ({"volumes": [{"name": "a"}]}, "exactly one source of the volume"),
        ({"volumeMounts": [{"name": "a", "mountPath": "/a"}]}, "must name volumes of spec.volumes"),
        ({"volumeMounts": [{"name": "a", "mountPath": "/models/x"}]}, "must not overlap the operator's folders"),
        (
            {"scheduling": {"topologySpreadConstraints": [{"topologyKey": "a"}] * 2}},
            "must not have two items with the same topologyKey",
        ),
        (
            {"scheduling": {"topologySpreadConstraints": SAME_SPREADS}},
            "must not have two items with the same topologyKey",
        ),
        (
            {"sidecars": [{**SIDECAR, "volumeMounts": [{"name": "a", "mountPath": "/a"}]}]},
            "sidecars[].volumeMounts must",
        ),
        ({"sidecars": [{"name": "engine", "image": "x", "cpu": "1", "memory": "1Gi"}]}, "engine's own container"),
        ({"sidecars": [{"name": "a", "image": "x", "cpu": "1", "memory": "1"}]}, "from 1Mi to 1Ti"),
    ],
    ids=str,
)
def test_an_invalid_spec_is_rejected_with_an_explanation(
    kube: Kube, namespace: str, change: dict[str, Any], text: str
) -> None:
    assert text in (refusal(kube, namespace, service("x", **change)) or "accepted")


def test_a_hub_model_is_accepted(kube: Kube, namespace: str) -> None:
    assert refusal(kube, namespace, service("by-quant", **hub())) is None
    assert refusal(kube, namespace, service("by-file", **hub(quant=None, files=["Q8/m-00001-of-00002.gguf"]))) is None
    node = {"nodeSelector": {"kubernetes.io/hostname": "gpu-0"}}
    folder = hub(pvc=None, hostPath={"path": "/srv/models"})
    assert refusal(kube, namespace, service("by-folder", **folder, scheduling=node)) is None
    source = kube.get("inferenceservices", "by-quant", namespace)["spec"]["model"]["source"]["huggingFace"]
    assert (source["revision"], source["endpoint"]) == ("main", "https://huggingface.co")


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        ("modelScope", {"repo": "org/tiny", "quant": "Q8_0", "site": "modelscope.ai"}, None),
        ("modelScope", {"repo": "org/tiny"}, "exactly one of quant and files"),
        ("modelScope", {"repo": "org/tiny", "quant": "Q8_0", "site": "example.org"}, "Unsupported value"),
        ("modelScope", {"repo": "org/tiny", "quant": "Q8_0", "pvc": None}, "exactly one of pvc and hostPath"),
        (
            "modelScope",
            {"repo": "org/tiny", "quant": "Q8_0", "pvc": None, "hostPath": {"path": "/srv"}},
            "kubernetes.io/hostname",
        ),
        ("s3", {"bucket": "models", "prefix": "a/b", "quant": "Q8_0", "endpoint": "https://minio.test:9000"}, None),
        ("s3", {"bucket": "Models"}, "bucket"),
        ("s3", {"bucket": "models", "prefix": "/a"}, "prefix"),
        ("s3", {"bucket": "models", "endpoint": "http://user:password@minio.test"}, "endpoint"),
        ("s3", {"bucket": "models", "pvc": None}, "exactly one of pvc and hostPath"),
        ("s3", {"bucket": "models", "pvc": None, "hostPath": {"path": "/srv"}}, "kubernetes.io/hostname"),
        ("oci", {"reference": "registry.test:5000/a/b:v1", "quant": "Q8_0"}, None),
        ("oci", {"reference": f"registry.test/a/b@sha256:{'0' * 64}", "pullSecretRef": {"name": "x"}}, None),
        ("oci", {"reference": "https://registry.test/a"}, "reference"),
        ("oci", {"reference": "registry.test/a", "pvc": None}, "exactly one of pvc and hostPath"),
    ],
    ids=str,
)
def test_a_model_source_is_accepted_or_rejected_with_an_explanation(
    kube: Kube, namespace: str, kind: str, fields: dict[str, Any], text: str | None
) -> None:
    source = {name: value for name, value in {"pvc": {"claimName": "models"}, **fields}.items() if value is not None}
    refused = refusal(kube, namespace, service("x", model={"source": {kind: source}}))
    assert (refused is None) == (text is None), refused
    assert (text or "") in (refused or "")
    if refused is None:
        body = service("y", model={"source": {kind: source}, "ggufPath": "a.gguf"})
        assert "ggufPath and configPath must not be set" in (refusal(kube, namespace, body) or "accepted")


def test_templates_by_name_and_model_files_are_accepted(kube: Kube, namespace: str) -> None:
    words = ["--chat_template", "deepseek-r1", "--expert_profile=/models/r1/profile.json", "--max_queue", "8"]
    assert refusal(kube, namespace, service("x", engine={"extraArgs": words})) is None
    words = ["--chat-template", "/models/r1.jinja"]
    assert refusal(kube, namespace, service("y", engine={"extraArgs": words})) is None


@pytest.mark.parametrize("name", ["1starts-with-a-digit", "has.dots", "x" * 53])
def test_invalid_service_names_are_rejected(kube: Kube, namespace: str, name: str) -> None:
    assert "the name becomes a Service's" in (refusal(kube, namespace, service(name)) or "accepted")
    assert refusal(kube, namespace, service("x" * 52)) is None or name != "x" * 53


def test_the_samples_are_accepted(kube: Kube, namespace: str) -> None:
    for sample in sorted((CRD.parents[1] / "samples").glob("*.yaml")):
        for document in yaml.safe_load_all(sample.read_text()):
            if document["kind"] == "InferenceService":
                assert refusal(kube, namespace, document) is None
