"""Which changes restart pods."""

from pathlib import Path

import pytest
import yaml

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.definitions import service_definition
from ballast_operator.spec_hash import restarts, settings_hash, spec_hash

# As stored by the API server: with the defaults of the CRD at the time of writing.
SPEC = {
    "model": {"source": {"pvc": {"claimName": "models"}}, "ggufPath": "r1"},
    "engine": {"maxNewTokens": 1024, "cacheLens": 32768},
    "resources": {"cpus": 32, "memory": "440Gi"},
}


def hash_of(**changes):
    body = {"metadata": {"name": "x", "namespace": "y"}, "spec": {**SPEC, **changes}}
    return spec_hash(InferenceService.from_api(body).spec)


def test_the_hash_of_a_spec_equals_that_of_released_operators():
    assert hash_of() == "a990969cdfc8c3bf"


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"maxBatchSize": 4, "maxNewTokens": 1024, "cacheLens": 32768}},
        {"endpoint": {"port": 10002}},
        {"replicas": 3},
        {"numa": {"policy": "SingleNode", "enforcement": "Require"}},
        {"endpoint": {"networkPolicy": {}}},
        {"resources": {"cpus": 32, "memory": "450560Mi"}},
    ],
    ids=str,
)
def test_explicit_defaults_and_fields_that_pods_do_not_use_restart_nothing(changes):
    assert hash_of(**changes) == hash_of()


@pytest.mark.parametrize(
    "changes",
    [
        {"image": "other"},
        {"engine": {"maxNewTokens": 1024, "cacheLens": 32769}},
        {"engine": {"maxNewTokens": 1024}},
        {"engine": {"cacheLens": 32768}},
        {"engine": {}},
        {"engine": {**SPEC["engine"], "placementRules": {"inline": "a"}}},
        {"resources": {"cpus": 31, "memory": "440Gi"}},
        {"endpoint": {"port": 8080}},
        {"endpoint": {"auth": {"secretRef": {"name": "keys"}}}},
        {"scheduling": {"nodeSelector": {"a": "b"}}},
        {"numa": {"policy": "AllNodes"}},
        {"resources": {"cpus": 32, "memory": "440Gi", "gpus": 2}},
        {"resources": {"cpus": 32, "memory": "440Gi", "cpuFallback": True}},
    ],
    ids=str,
)
def test_fields_that_pods_use_restart_them(changes):
    assert hash_of(**changes) != hash_of()


def spec_of(name):
    return yaml.safe_load((Path(__file__).parent / f"services/{name}.yaml").read_text())["spec"]


EVERYTHING = spec_of("everything")
BESIDE = (
    *("model.source.pvc", "model.source.hostPath", "model.source.builtin", "engine.placementRules.configMapRef"),
    *("kernelCache.hostPath", "securityContext.assignedByCluster", "resources.gpuClaim", "resources.cpuFallback"),
    *("resources.claims[].name", "resources.claims[].resourceClaimName"),
    *(
        "model.source.huggingFace",
        "model.source.modelScope",
        "model.source.s3",
        "model.source.oci",
        "model.source.cache",
        "model.source.image.pullPolicy",
        "engine.backendType",
        "engine.extraArgs",
    ),
    *("packedWeights.memory", "scheduling.affinity", "scheduling.tolerations[]", "endpoint.networkPolicy"),
    *("env[].valueFrom", "envFrom[].secretRef", "sidecars[].env[].valueFrom", "sidecars[].envFrom[].prefix"),
    *("sidecars[].envFrom[].configMapRef", "sidecars[].volumeMounts[].subPath"),
    *("volumes[].configMap", "volumes[].secret", "volumes[].emptyDir", "volumes[].hostPath", "volumes[].csi"),
    *("volumes[].name", "volumeMounts[].name", "sidecars[].volumeMounts[].name"),
)
"""Paths of fields that exclude other fields of the service `everything`, or that are empty objects."""
OTHER = {
    "type": "NodePort",
    "imagePullPolicy": "Never",
    "policy": "SingleNode",
    "enforcement": "Off",
    "memory": "99Gi",
    "cpu": "200m",
} | {"whenUnsatisfiable": "DoNotSchedule"}
"""Alternative values for fields that accept only certain values."""


def leaves(schema, path=""):
    for name, field in schema.get("properties", {}).items():
        inner = field["items"] if field["type"] == "array" else field
        here = f"{path}{name}" + ("[]" if inner is not field else "")
        yield from leaves(inner, f"{here}.") if inner.get("properties") else [here]


def value_at(spec, names):
    for name in names:
        spec = spec[name.removesuffix("[]")]
        spec = spec[0] if name.endswith("[]") else spec
    return spec


def changed(path, base=EVERYTHING):
    """A copy of the spec (`everything` by default) with another value at this path."""
    spec = yaml.safe_load(yaml.safe_dump(base))
    *parents, last = path.removesuffix("[]").split(".")
    inside, value = value_at(spec, parents), value_at(spec, [*parents, last])
    if isinstance(value, dict):
        inside[last] = {**value, "more": "x"}
    elif isinstance(value, int) and not isinstance(value, bool):
        inside[last] = value + 1
    elif isinstance(value, list):
        inside[last] = [*value, value[-1]]
    else:
        inside[last] = OTHER.get(last, (not value) if isinstance(value, bool) else f"{value}x")
    return spec


SPEC_SCHEMA = service_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
BESIDE_PODS = ("replicas", "rollout.", "numa.", "endpoint.service.", "endpoint.inferencePool.", "endpoint.route.")
LEAVES = [path for path in leaves(SPEC_SCHEMA) if not path.startswith(BESIDE)]


def read(spec):
    return InferenceService.from_api({"metadata": {"name": "x", "namespace": "y"}, "spec": spec}).spec


@pytest.mark.parametrize("name", ["repo", "quant", "revision", "pvc.claimName", "tokenSecretRef.name", "endpoint"])
def test_download_settings_restart_no_engine_but_another_model_does(name):
    base, path = spec_of("hugging-face"), f"model.source.huggingFace.{name}"
    base["model"]["source"]["huggingFace"]["endpoint"] = "https://hub.example"
    before, after = read(base), read(changed(path, base))
    assert before != after
    assert restarts(path) is (name not in ("tokenSecretRef.name", "endpoint"))
    for what in (spec_hash, settings_hash):
        assert (what(before) != what(after)) is restarts(path)


@pytest.mark.parametrize(
    "name",
    [
        *("s3.bucket", "s3.prefix", "s3.quant", "s3.endpoint", "s3.region", "s3.pvc.claimName"),
        *("s3.credentialsSecretRef.name", "oci.reference", "oci.pullSecretRef.name", "oci.pvc.claimName"),
        *("modelScope.repo", "modelScope.revision", "modelScope.tokenSecretRef.name", "modelScope.pvc.claimName"),
    ],
)
def test_credentials_of_a_store_restart_no_engine_but_its_address_does(name):
    path, base = f"model.source.{name}", spec_of(name.partition(".")[0].replace("modelScope", "model-scope"))
    assert restarts(path) is ("Secret" not in name)
    for what in (spec_hash, settings_hash):
        assert (what(read(base)) != what(read(changed(path, base)))) is restarts(path)


@pytest.mark.parametrize("name", ["name", "model"])
def test_another_cached_model_restarts(name):
    path, base = f"model.source.cache.{name}", spec_of("hugging-face")
    base["model"]["source"] = {"cache": {"name": "models", "model": "tiny"}}
    for what in (spec_hash, settings_hash):
        assert what(read(base)) != what(read(changed(path, base)))
    assert restarts(path)


@pytest.mark.parametrize("path", LEAVES)
def test_each_field_restarts_as_documented(path):
    before, after = read(EVERYTHING), read(changed(path))
    assert before != after
    assert (spec_hash(before) != spec_hash(after)) is restarts(path)
    assert settings_hash(before) != settings_hash(after) or path.startswith(BESIDE_PODS)
