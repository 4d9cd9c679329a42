"""The Jobs of a ModelCache, and the pod of a service that uses a cached model."""

from dataclasses import replace

import pytest
from builders import FIRST, service
from caching import cached, model_cache

from ballast_operator.api.inference_service import SpecError
from ballast_operator.child_options import ChildOptions
from ballast_operator.resources.node_affinity import admitted_nodes, on_nodes
from ballast_operator.resources.pod import build_pod
from ballast_operator.resources.pulling.cache_job import (
    build_cache_policy,
    build_cache_pull,
    build_removal,
    folder_of,
    found_model,
)

OPTIONS = ChildOptions(runtime_image="runtime:1", cpu_runtime_image="runtime:1-cpu")
SCOPE = {"name": "tiny", "size": "1Gi", "source": {"modelScope": {"repo": "org/tiny", "quant": "Q8_0"}}}
TERM = {"key": "zone", "operator": "In", "values": ["a"]}


def is_node(name):
    return {"key": "metadata.name", "operator": "In", "values": [name]}


def pull(cache, place="n1"):
    return build_cache_pull(cache, cache.spec.models[0], place, OPTIONS)


def env_of(job):
    [container] = job["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value") for one in container["env"]}


def test_a_pull_runs_on_its_node_and_writes_to_its_own_folder():
    proxies = [{"name": "https_proxy", "value": "http://proxy.example:3128"}, {"name": "NO_PROXY", "value": ".local"}]
    mirrored = cached(endpoint="https://mirror.example:8443")
    cache = model_cache(mirrored, tolerations=[{"key": "gpu"}], proxies=proxies)
    job = pull(cache)
    pod = job["spec"]["template"]["spec"]
    assert pod["affinity"] == on_nodes(None, ["n1"])
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Equal"}]
    assert pod["containers"][0]["image"] == "runtime:1-cpu"
    assert env_of(job)["HF_HUB_CACHE"] == f"/models/{folder_of(cache, cache.spec.models[0])}"
    assert env_of(job)["https_proxy"] == "http://proxy.example:3128"
    assert env_of(job)["HF_ENDPOINT"] == "https://mirror.example:8443"
    ports = build_cache_policy(cache, OPTIONS)["spec"]["egress"][1]["ports"]
    assert [port["port"] for port in ports] == [443, 3128, 8443]


def test_folders_differ_by_cache_model_and_source():
    folders = {
        folder_of(cache, cache.spec.models[0])
        for cache in (
            model_cache(cached()),
            model_cache(cached("other", repo="org/tiny")),
            model_cache(cached(quant="Q4_K_M")),
            model_cache(cached(revision="v2")),
            model_cache(SCOPE),
        )
    }
    assert len(folders) == 5
    assert all(folder.startswith("ns.models.") for folder in folders)
    same = model_cache(cached(endpoint="https://mirror.example"))
    assert folder_of(same, same.spec.models[0]) in folders, "a mirror provides the same model"


def test_a_removal_tolerates_every_taint_and_needs_no_token():
    cache = model_cache(cached(tokenSecretRef={"name": "hub"}))
    job = build_removal(cache, "n1", "ns.models.tiny-01234567", "tiny", "60Gi", OPTIONS)
    assert job["spec"]["template"]["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert env_of(job) == {
        "HOME": "/tmp",
        "HF_HUB_CACHE": "/models/ns.models.tiny-01234567",
        "MODELSCOPE_CACHE": "/models/ns.models.tiny-01234567",
        "BALLAST_MODEL_CACHE": "/models/ns.models.tiny-01234567",
    }


def test_a_pod_mounts_only_its_model_on_a_node_that_has_it():
    cache = model_cache(SCOPE)
    one = service(model={"source": {"cache": {"name": "models", "model": "tiny"}}})
    found = found_model(cache, cache.spec.models[0], ("n1", "n2"))
    pod = build_pod(replace(one, cached=found), OPTIONS, FIRST)["spec"]
    assert [term["matchFields"] for term in pod["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]] == [
        [is_node("n1")],
        [is_node("n2")],
    ]
    [engine] = pod["containers"]
    assert {"name": "model", "mountPath": "/models", "subPath": found.folder, "readOnly": True} in engine[
        "volumeMounts"
    ]
    assert engine["args"][:2] == ["serve", "modelscope.cn/org/tiny:Q8_0@master"]
    assert engine["args"][engine["args"].index("--served_model_name") + 1] == "modelscope.cn/org/tiny:Q8_0"


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def test_affinity_of_the_spec_is_combined_with_each_node():
    soft = {"preferredDuringSchedulingIgnoredDuringExecution": []}
    requested = {
        "podAffinity": {},
        "nodeAffinity": {
            **soft,
            REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [TERM]}, {"matchFields": [is_node("x")]}]},
        },
    }
    assert on_nodes(requested, ["n1", "n2"]) == {
        "podAffinity": {},
        "nodeAffinity": {
            **soft,
            REQUIRED: {
                "nodeSelectorTerms": [
                    {"matchExpressions": [TERM], "matchFields": [is_node("n1")]},
                    {"matchExpressions": [TERM], "matchFields": [is_node("n2")]},
                    {"matchFields": [is_node("x"), is_node("n1")]},
                    {"matchFields": [is_node("x"), is_node("n2")]},
                ]
            },
        },
    }
    assert admitted_nodes(on_nodes({}, ["n1", "n2"])) == {"n1", "n2"}
    assert admitted_nodes(None) == set()
    assert on_nodes(None, None) is None
    assert on_nodes(requested, None) == requested
    wrong = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": "zone"}}}
    assert on_nodes(wrong, ["n1"]) == wrong, "the API server rejects it"


@pytest.mark.parametrize(
    ("message", "models", "spec"),
    [
        ("at least the size of the largest", [cached(size="200Gi")], {}),
        ("exactly one of hostPath and pvc", [], {"storage": {}}),
        ("exactly one of huggingFace, modelScope, s3 and oci", [{"name": "a", "size": "1Gi", "source": {}}], {}),
        ("must be a quantity", [cached(size="1")], {}),
        ("tiny is listed twice", [cached(), cached()], {}),
        ("proxies.0.name", [], {"proxies": [{"name": "PATH", "value": "/"}]}),
    ],
)
def test_invalid_specs_are_rejected(message, models, spec):
    with pytest.raises(SpecError, match=message):
        model_cache(*models, **spec)
