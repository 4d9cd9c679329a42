"""The operator's assumptions about `ballast pull`: arguments, report, and that engines find the model."""

import json
import os
import re

import pytest
from builders import FIRST, service

from ballast.hub.naming import read_name
from ballast.hub.report import REASONS
from ballast_operator.child_options import ChildOptions
from ballast_operator.control.deciding.pull import Trouble, judge
from ballast_operator.control.reporting.pull_findings import FIXES
from ballast_operator.folders import MODEL_DIRECTORY, SCRATCH_DIRECTORY
from ballast_operator.resources.pod import build_pod
from ballast_operator.resources.pulling.pull_job import build_pull_job
from ballast_operator.resources.pulling.source import REPORT
from devkit.models.written import write_tiny_model
from devkit.servers.command import ballast
from devkit.stores.hub_server import COMMIT, hub_server
from devkit.stores.oci_registry import TITLE, docker_config, oci_registry
from devkit.stores.s3_server import ACCESS_KEY, REGION, SECRET_KEY, s3_server


def test_the_operator_has_a_fix_for_every_reason():
    assert {word for _, word in REASONS} <= FIXES.keys()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("weights"), arch="v3", quant="q8_0").gguf.read_bytes()


def run(tmp_path, words, env):
    """Run a container's command, with its folders and the kubelet's file below `tmp_path`."""
    places = {
        MODEL_DIRECTORY: str(tmp_path / "models"),
        SCRATCH_DIRECTORY: str(tmp_path),
        REPORT: str(tmp_path / "said"),
    }
    words = [places.get(word, word) for word in words]
    given = {one["name"]: places.get(one["value"], one["value"]) for one in env}
    return ballast(words, {**os.environ, **given})


def status_of(tmp_path, code):
    ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": (tmp_path / "said").read_text()}
    status = {"phase": "Running", "containerStatuses": [{"name": "pull", "state": {"terminated": ended}}]}
    return {"metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": status}


def test_the_engine_finds_models_that_the_job_pulled_from_a_hub(tmp_path, weights):
    with hub_server({"tiny-Q8_0.gguf": weights}) as (server, endpoint):
        hub = {"repo": "org/tiny", "quant": "Q8_0", "pvc": {"claimName": "models"}, "endpoint": endpoint}
        one = service(model={"source": {"huggingFace": hub}})
        job = build_pull_job(one, one.spec.model.source.pulled, ChildOptions())
        [container] = job["spec"]["template"]["spec"]["containers"]
        words = [word if word != "10003" else "0" for word in container["args"]]  # another test may use that port

        server.token = "secret"
        refused = run(tmp_path, words, container["env"])
        assert refused.returncode == 2
        trouble = judge({"metadata": {}}, [status_of(tmp_path, 2)]).trouble
        assert trouble == Trouble("TokenRefused", json.loads((tmp_path / "said").read_text())["message"])

        server.token = None
        assert run(tmp_path, words, container["env"]).returncode == 0
    complete = {"metadata": {}, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert judge(complete, [status_of(tmp_path, 0)]).report == f"org/tiny:Q8_0 at {COMMIT}"
    assert_planned(tmp_path, one)


def assert_planned(tmp_path, one):
    """The engine's container finds the model with only its own variables."""
    [engine] = build_pod(one, ChildOptions(), FIRST)["spec"]["containers"]
    env = [each for each in engine["env"] if each["name"] != "HOME"]
    planned = run(tmp_path, ["plan", engine["args"][1], "--device", "cpu", "--memory_bandwidth", "46GB/s"], env)
    assert "It fits." in planned.stdout, planned.stderr


def pull_as_the_job(tmp_path, source, secrets):
    """Run the Job's container for a source, with the keys of its Secrets."""
    one = service(model={"source": source})
    job = build_pull_job(one, one.spec.model.source.pulled, ChildOptions())
    [container] = job["spec"]["template"]["spec"]["containers"]
    env = [each if "value" in each else secrets[each["name"]] for each in container["env"]]
    env = [{**each, "value": str(tmp_path)} if each["name"] == "DOCKER_CONFIG" else each for each in env]
    words = [word if word != "10003" else "0" for word in container["args"]]
    return one, run(tmp_path, words, env)


def test_the_engine_finds_models_that_the_job_pulled_from_s3(tmp_path, weights):
    with s3_server(tmp_path / "store") as store:
        store.fill("models", {"a/b/tiny-Q8_0.gguf": weights})
        source = {
            "bucket": "models",
            "prefix": "a/b",
            "endpoint": store.endpoint,
            "region": REGION,
            "credentialsSecretRef": {"name": "store"},
            "pvc": {"claimName": "models"},
        }
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": "wrong", "AWS_SESSION_TOKEN": ""}
        secrets = {name: {"name": name, "value": value} for name, value in keys.items()}
        _, refused = pull_as_the_job(tmp_path, {"s3": source}, secrets)
        assert refused.returncode == 2
        assert json.loads((tmp_path / "said").read_text())["reason"] == "TokenRefused"
        secrets["AWS_SECRET_ACCESS_KEY"]["value"] = SECRET_KEY
        one, pulled = pull_as_the_job(tmp_path, {"s3": source}, secrets)
        assert pulled.returncode == 0, pulled.stderr
    assert_planned(tmp_path, one)


def test_the_engine_finds_models_that_the_job_pulled_from_a_registry(tmp_path, weights):
    with oci_registry(tmp_path / "registry", "basic") as registry:
        registry.push("models/tiny", "v1", [("application/octet-stream", weights, {TITLE: "tiny-Q8_0.gguf"})])
        reference, claim = f"{registry.host}/models/tiny:v1", {"claimName": "models"}
        source = {"oci": {"reference": reference, "pullSecretRef": {"name": "registry"}, "pvc": claim}}
        _, refused = pull_as_the_job(tmp_path, source, {})
        assert refused.returncode == 2
        assert json.loads((tmp_path / "said").read_text())["reason"] == "TokenRefused"
        (tmp_path / "config.json").write_text(docker_config(registry.host))
        one, pulled = pull_as_the_job(tmp_path, source, {})
        assert pulled.returncode == 0, pulled.stderr
    assert_planned(tmp_path, one)


@pytest.mark.parametrize(
    "source",
    [
        {"s3": {"bucket": "models"}},
        {"s3": {"bucket": "models", "prefix": "a/b+c@d=e", "quant": "Q8_0"}},
        {"s3": {"bucket": "models", "quant": "a/tiny-00001-of-00002.gguf"}},
        {"oci": {"reference": "ghcr.io/a/b"}},
        {"oci": {"reference": "ghcr.io:5000/a/b:v1", "quant": "Q8_0"}},
        {"oci": {"reference": "ghcr.io/a/b", "quant": "Q8_0"}},
        {"oci": {"reference": f"ghcr.io/a/b:v1@sha256:{'0' * 64}", "quant": "Q8_0"}},
        {"oci": {"reference": f"ghcr.io/a/b@sha256:{'0' * 64}", "quant": "Q8_0"}},
    ],
    ids=str,
)
def test_names_of_stores_and_artifacts_are_read_as_they_are_meant(source):
    [(kind, fields)] = source.items()
    pulled = service(model={"source": {kind: {**fields, "pvc": {"claimName": "x"}}}}).spec.model.source.pulled
    name = read_name(pulled.name)
    assert name.site == kind
    assert name.quant == fields.get("quant")
    if kind == "s3":
        assert name.repo == "/".join(part for part in (fields["bucket"], fields.get("prefix")) if part)
    else:
        assert name.repo == re.sub("(:v1)?(@.*)?$", "", fields["reference"])
