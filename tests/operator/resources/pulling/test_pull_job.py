"""The Job that pulls a model, the network policy of its pod, and the engine that uses the pulled model."""

import pytest
from builders import service

from ballast_operator.api.inference_service import SpecError
from ballast_operator.child_options import ChildOptions
from ballast_operator.resources.pod import Attempt, build_pod
from ballast_operator.resources.pulling.pull_job import build_pull_job, build_pull_policy, pull_name
from ballast_operator.spec_hash import settings_hash, spec_hash

CLAIM = {"metadata": {"name": "models", "uid": "claim-uid"}}
OPTIONS = ChildOptions(runtime_image="runtime:1", cpu_runtime_image="runtime:1-cpu")


def pulled(*, scheduling=None, env=None, image=None, **source):
    requested = {"repo": "org/tiny", "quant": "Q8_0", "pvc": {"claimName": "models"}, **source}
    wanted = {name: value for name, value in requested.items() if value is not None}
    more = {"scheduling": scheduling, "env": env, "image": image}
    given = {name: value for name, value in more.items() if value is not None}
    return service(model={"source": {"huggingFace": wanted}}, **given)


def name_of(one):
    return pull_name(one.spec, one.spec.model.source.pulled)


def job_of(one):
    return build_pull_job(one, one.spec.model.source.pulled, OPTIONS)


def policy_ports(one):
    policy = build_pull_policy(one, one.spec.model.source.pulled, OPTIONS, CLAIM)
    return [[port["port"] for port in rule["ports"]] for rule in policy["spec"]["egress"]]


def test_only_services_with_the_same_source_share_a_job():
    assert name_of(pulled()) == name_of(pulled(image="another:2", env=[{"name": "A", "value": "b"}]))
    others = (
        pulled(revision="v2"),
        pulled(quant="Q4_K_M"),
        pulled(pvc={"claimName": "others"}),
        pulled(endpoint="https://mirror.example"),
        pulled(tokenSecretRef={"name": "hub"}),
    )
    assert len({name_of(one) for one in (pulled(), *others)}) == 6


def test_a_folder_needs_a_node_selector_for_one_node():
    folder = {"pvc": None, "hostPath": {"path": "/srv/models"}}
    nodes = [{"nodeSelector": {"kubernetes.io/hostname": name}} for name in ("a", "b")]
    assert len({name_of(pulled(scheduling=node, **folder)) for node in nodes}) == 2
    job = job_of(pulled(scheduling=nodes[0], **folder))
    assert job["spec"]["template"]["spec"]["volumes"][-1]["hostPath"] == {"path": "/srv/models", "type": "Directory"}
    with pytest.raises(SpecError, match=r"nodeSelector must have kubernetes\.io/hostname"):
        pulled(**folder)


def test_it_belongs_to_the_service_and_reserves_no_whole_cpu():
    one = pulled(scheduling={"tolerations": [{"key": "models", "operator": "Exists"}]})
    job = job_of(one)
    [owner] = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("InferenceService", one.uid)
    assert "controller" not in owner, "another service with the same source will own it, too"
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"] == "runtime:1-cpu"
    assert container["resources"]["requests"]["cpu"] == "250m"
    assert "cpu" not in container["resources"]["limits"], "a Guaranteed pod would take an engine's CPUs"
    assert pod["tolerations"][0]["key"] == "models"
    assert "readOnly" not in pod["volumes"][-1]["persistentVolumeClaim"]


def test_only_the_downloading_pod_gets_the_token():
    one = pulled(tokenSecretRef={"name": "hub", "key": "it"})
    requested = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "it"}}}
    assert requested in job_of(one)["spec"]["template"]["spec"]["containers"][0]["env"]
    engine = build_pod(one, OPTIONS, Attempt(0))["spec"]["containers"][0]
    assert "HF_TOKEN" not in str(engine)
    for what in (spec_hash, settings_hash):
        assert what(one.spec) == what(pulled(endpoint="https://mirror.example").spec), "engines do not depend on it"
        assert what(one.spec) != what(pulled(revision="v2").spec)


def test_the_engine_finds_the_model_without_a_hub():
    pod = build_pod(pulled(revision="v2"), OPTIONS, Attempt(0))["spec"]
    [engine] = pod["containers"]
    assert engine["args"][:2] == ["serve", "org/tiny:Q8_0@v2"]
    assert "--gguf_path" not in engine["args"]
    assert engine["args"][engine["args"].index("--served_model_name") + 1] == "org/tiny:Q8_0"
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in engine["env"]
    model = next(volume for volume in pod["volumes"] if volume["name"] == "model")
    assert model["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}


def test_the_policy_allows_dns_and_the_hub():
    dns = [53, 53, 5353, 5353]
    assert policy_ports(pulled()) == [dns, [443]]
    assert policy_ports(pulled(endpoint="http://mirror.example")) == [dns, [80, 443]]
    assert policy_ports(pulled(endpoint="http://mirror.example:8080/hub")) == [dns, [443, 8080]]
    env = [{"name": "https_proxy", "value": "http://proxy.example:3128"}, {"name": "NO_PROXY", "value": ".svc"}]
    assert policy_ports(pulled(env=env)) == [dns, [443, 3128]]
    names = {
        variable["name"] for variable in job_of(pulled(env=env))["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert {"https_proxy", "NO_PROXY"} <= names


def test_files_name_one_model():
    shards = [f"Q4/m-0000{n}-of-00002.gguf" for n in (1, 2)]
    args = job_of(pulled(quant=None, files=shards))["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[1] == "org/tiny:Q4/m-00001-of-00002.gguf@main"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"quant": None}, "exactly one of quant and files"),
        ({"files": ["a.gguf"]}, "exactly one of quant and files"),
        ({"pvc": None}, "exactly one of pvc and hostPath"),
        ({"quant": None, "files": ["a.gguf", "b.gguf"]}, "shards of one model, and these are of a.gguf, b.gguf"),
        ({"quant": None, "files": ["../a.gguf"]}, "files"),
        ({"quant": None, "files": ["model.py"]}, "files"),
        ({"repo": "tiny"}, "repo"),
        ({"repo": "org/.."}, "repo"),
        ({"revision": "a/../b"}, "must not contain '..'"),
        ({"endpoint": "https://user:pw@mirror.example"}, "endpoint"),
        ({"endpoint": "file:///etc/passwd"}, "endpoint"),
    ],
)
def test_an_invalid_model_source_is_rejected(source, message):
    with pytest.raises(SpecError, match=message):
        pulled(**source)


def test_paths_cannot_be_combined_with_a_source_that_names_the_model():
    source = {"huggingFace": {"repo": "org/tiny", "quant": "Q8_0", "pvc": {"claimName": "models"}}}
    for more in ({"ggufPath": "a.gguf"}, {"configPath": "config"}):
        with pytest.raises(SpecError, match="ggufPath and configPath must not be set"):
            service(model={"source": source, **more})


def stored(kind, **fields):
    return service(model={"source": {kind: {"pvc": {"claimName": "models"}, **fields}}})


@pytest.mark.parametrize(
    ("kind", "fields", "ports"),
    [
        ("modelScope", {"repo": "org/tiny", "quant": "Q8_0"}, [443]),
        ("s3", {"bucket": "models"}, [443]),
        ("s3", {"bucket": "models", "endpoint": "http://minio.store:9000"}, [443, 9000]),
        ("s3", {"bucket": "models", "endpoint": "http://minio.store"}, [80, 443]),
        ("oci", {"reference": "ghcr.io/a/b:1"}, [443]),
        ("oci", {"reference": "registry.test:5000/a/b:1"}, [443, 5000]),
    ],
    ids=str,
)
def test_the_policy_allows_a_pull_to_reach_the_port_of_its_store(kind, fields, ports):
    assert policy_ports(stored(kind, **fields))[1] == ports


@pytest.mark.parametrize("name", ["bucket", "prefix", "quant", "endpoint", "region", "credentialsSecretRef"])
def test_services_share_a_pull_from_a_store_only_if_their_sources_are_equal(name):
    one = {"bucket": "models", "prefix": "a", "quant": "Q8_0", "endpoint": "https://a.test", "region": "eu-1"}
    other = {**one, name: {"name": "keys"} if name == "credentialsSecretRef" else f"{one[name]}x"}
    assert name_of(stored("s3", **one)) == name_of(stored("s3", **one))
    assert name_of(stored("s3", **one)) != name_of(stored("s3", **other))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("s3", {"bucket": "Models"}),
        ("s3", {"bucket": "models", "prefix": "../etc"}),
        ("s3", {"bucket": "models", "prefix": "a//b"}),
        ("s3", {"bucket": "models", "prefix": "a/./b"}),
        ("s3", {"bucket": "models", "prefix": "/a"}),
        ("s3", {"bucket": "models", "prefix": "a:b"}),
        ("s3", {"bucket": "models", "quant": "../x.gguf"}),
        ("s3", {"bucket": "models", "endpoint": "http://user:password@minio.test"}),
        ("s3", {"bucket": "models", "endpoint": "minio.test:9000"}),
        ("s3", {"bucket": "models", "region": "eu west"}),
        ("oci", {"reference": "model"}),
        ("oci", {"reference": "a.test/../b"}),
        ("oci", {"reference": "a.test/b:1/c"}),
        ("oci", {"reference": "a.test/b@sha256:12"}),
        ("oci", {"reference": "user@a.test/b"}),
        ("oci", {"reference": "https://a.test/b"}),
    ],
    ids=str,
)
def test_an_invalid_model_of_a_store_is_rejected(kind, fields):
    with pytest.raises(SpecError, match=f"model.source.{kind}"):
        stored(kind, **fields)


def test_paths_and_folders_of_stores_follow_the_rules_of_pulled_models():
    with pytest.raises(SpecError, match="ggufPath and configPath must not be set"):
        service(model={"source": {"s3": {"bucket": "models", "pvc": {"claimName": "x"}}}, "ggufPath": "a.gguf"})
    for claim in ({}, {"pvc": {"claimName": "x"}, "hostPath": {"path": "/srv"}}):
        with pytest.raises(SpecError, match="exactly one of pvc and hostPath"):
            service(model={"source": {"oci": {"reference": "a.test/b:1", **claim}}})
    source = {"oci": {"reference": "a.test/b:1", "pvc": {"claimName": "x"}}, "builtin": {}}
    with pytest.raises(SpecError, match="exactly one model source"):
        service(model={"source": source})
