"""What the operator takes for granted of `ballast pull`: its arguments, its report, and that engines find the model."""

import json
import os
import subprocess
import sys

import pytest
from builders import service

from ballast.hub.report import REASONS
from ballast.tiny import write_tiny_model
from ballast_operator.child_options import ChildOptions
from ballast_operator.control.deciding.pull import Trouble, judge
from ballast_operator.control.reporting.pull_findings import WAYS_OUT
from ballast_operator.folders import MODEL_DIRECTORY, SCRATCH_DIRECTORY
from ballast_operator.resources.command import engine_arguments
from ballast_operator.resources.hub_pod import REPORT
from ballast_operator.resources.pod import PULLED_ENV
from ballast_operator.resources.pull_job import build_pull_job
from support.servers.hub_server import COMMIT, hub_server


def test_the_operator_knows_a_way_out_for_every_reason():
    assert {word for _, word in REASONS} <= WAYS_OUT.keys()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("weights"), arch="v3", quant="q8_0").gguf.read_bytes()


def run(tmp_path, words, env):
    """A container's command, with its folders and the kubelet's file below `tmp_path`."""
    places = {
        MODEL_DIRECTORY: str(tmp_path / "models"),
        SCRATCH_DIRECTORY: str(tmp_path),
        REPORT: str(tmp_path / "said"),
    }
    words = [places.get(word, word) for word in words]
    given = {one["name"]: places.get(one["value"], one["value"]) for one in env}
    command = [sys.executable, "-m", "ballast", *words]
    return subprocess.run(command, env={**os.environ, **given}, capture_output=True, text=True, timeout=120)


def status_of(tmp_path, code):
    ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": (tmp_path / "said").read_text()}
    status = {"phase": "Running", "containerStatuses": [{"name": "pull", "state": {"terminated": ended}}]}
    return {"metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": status}


def test_the_job_pulls_what_the_engine_finds_without_a_hub(tmp_path, weights):
    with hub_server({"tiny-Q8_0.gguf": weights}) as (server, endpoint):
        hub = {"repo": "org/tiny", "quant": "Q8_0", "pvc": {"claimName": "models"}, "endpoint": endpoint}
        one = service(model={"source": {"huggingFace": hub}})
        job = build_pull_job(one, one.spec.model.source.hugging_face, ChildOptions())
        [container] = job["spec"]["template"]["spec"]["containers"]
        words = [word if word != "10003" else "0" for word in container["args"]]  # another test may have that port

        server.token = "secret"
        refused = run(tmp_path, words, container["env"])
        assert refused.returncode == 2
        trouble = judge({"metadata": {}}, [status_of(tmp_path, 2)]).trouble
        assert trouble == Trouble("TokenRefused", json.loads((tmp_path / "said").read_text())["message"])

        server.token = None
        assert run(tmp_path, words, container["env"]).returncode == 0
    complete = {"metadata": {}, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert judge(complete, [status_of(tmp_path, 0)]).report == f"org/tiny:Q8_0 at {COMMIT}"
    name = engine_arguments(one.spec)[1]
    planned = run(tmp_path, ["plan", name, "--device", "cpu"], PULLED_ENV)
    assert "It fits." in planned.stdout, planned.stderr
