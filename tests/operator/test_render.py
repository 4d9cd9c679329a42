"""The exact content of every child, as printed by `ballast-operator render`.

After an intended change, run: ballast-operator render --allowed-host-path /srv --allowed-host-path /run/agent -f
SERVICE > tests/operator/golden/NAME.yaml, and review the difference.
"""

from pathlib import Path

import pytest
import yaml

from ballast_operator.cli import main

HERE = Path(__file__).parent
SAMPLES = HERE.parents[1] / "manifests/samples"
AGENT = ("--allowed-host-path", "/run/agent")
SERVICES = [*sorted((HERE / "services").glob("*.yaml")), *sorted(SAMPLES.glob("*.yaml"))]


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.stem)
def test_children_match_the_golden_files(service, capsys):
    assert main(["render", "-f", str(service), "--allowed-host-path", "/srv", *AGENT]) == 0
    golden = HERE / "golden" / service.name
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == list(yaml.safe_load_all(golden.read_text()))


def test_every_golden_file_is_used():
    assert {path.name for path in (HERE / "golden").iterdir()} == {path.name for path in SERVICES}


def test_a_manifest_of_either_version_has_the_same_children(tmp_path, capsys):
    written = (HERE / "services/model-cache.yaml").read_text()
    assert written.count("serving.ballast.dev/v1beta1") == 2
    printed = []
    for number, version in enumerate(("v1beta1", "v1alpha1")):
        file = tmp_path / f"{number}.yaml"
        file.write_text(written.replace("v1beta1", version))
        assert main(["render", "-f", str(file), "--allowed-host-path", "/srv"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_a_cache_of_an_unknown_version_is_refused(tmp_path, capsys):
    written = (HERE / "services/model-cache.yaml").read_text()
    file = tmp_path / "caches.yaml"
    file.write_text(written.replace("serving.ballast.dev/v1beta1", "serving.ballast.dev/v2", 1))
    assert main(["render", "-f", str(file)]) == 2
    assert "apiVersion 'serving.ballast.dev/v2' of ModelCache is unknown; write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec": {"engine": {"maxNewTokens": 1024, "cacheLens": 4096}}}, "the smallest cacheLens that passes is 4097"),
        ({"spec": {"model": {"source": {}}}}, "exactly one model source"),
        ({"spec": {"model": {"source": {"builtin": {}, "pvc": {"claimName": "x"}}}}}, "exactly one model source"),
        ({"spec": {"resources": {"cpus": 1.5, "memory": "1Gi"}}}, "spec.resources.cpus: 1.5: input should be"),
        ({"spec": {"rollout": {"maxUnavailable": "25%"}}}, "spec.rollout.maxUnavailable: '25%': input should be"),
        ({"spec": {"replica": 2}}, "spec.replica: there is no such field"),
        ({"spec": {"resources": {"cpus": 1}}}, "spec.resources.memory: this field is required"),
        ({"spec": {"resources": {"cpus": "500m", "memory": "1Gi"}}}, "spec.resources.cpus"),
        ({"spec": {"resources": {"cpus": 1, "memory": "lots"}}}, "is not a quantity such as 440Gi"),
        ({"spec": {"resources": {"cpus": 1, "memory": "1Mi"}}}, "from 64Mi to 1Pi"),
        ({"spec": {"engine": {"extraArgs": ["--admin-port=1"]}}}, "must not set --admin_port"),
        ({"spec": {"engine": {"extraArgs": ["--drain-timeout-s=9000"]}}}, "must not set --drain_timeout_s"),
        ({"spec": {"engine": {"extraArgs": ["--chat_template", "/etc/passwd"]}}}, "files outside /models"),
        (
            {"spec": {"model": {"source": {"hostPath": {"path": "/"}}}}},
            "--allowed-host-path of the operator allows none",
        ),
        ({"spec": {"endpoint": {"port": 10003}}}, "port 10003 is the admin port"),
        ({"spec": {"typo": 1}}, "spec.typo"),
        (
            {"apiVersion": "serving.ballast.dev/v1"},
            "apiVersion 'serving.ballast.dev/v1' of InferenceService is unknown; write serving.ballast.dev/v1beta1 or",
        ),
        ({"apiVersion": "v1beta1"}, "apiVersion 'v1beta1' of InferenceService is unknown"),
        ({"kind": "Deployment"}, "no InferenceService"),
        ({"metadata": {}}, "metadata.name is missing"),
        ({"metadata": {"name": "Bad_Name"}}, "metadata.name 'Bad_Name': the name becomes a Service's"),
        ({"metadata": {"name": "2x.y"}}, "metadata.name '2x.y'"),
        ({"metadata": {"name": "x\n"}}, "metadata.name 'x\\n'"),
        ({"metadata": {"name": 5}}, "metadata.name 5"),
        ({"metadata": {"name": {"a": 1}}}, "metadata.name {'a': 1}"),
        ({"metadata": {"name": "x" * 53}}, "at most 52 lower-case letters"),
        ({"metadata": {"namespace": "Team_A"}}, "metadata.namespace 'Team_A' is not a valid name of a namespace"),
    ],
)
def test_a_spec_that_cannot_be_rendered_is_rejected_with_a_message(tmp_path, capsys, change, message):
    body = yaml.safe_load((SAMPLES / "tiny-cpu.yaml").read_text())
    for key, value in change.items():
        body[key] = {**body[key], **value} if isinstance(value, dict) and value else value
    file = tmp_path / "service.yaml"
    file.write_text(yaml.safe_dump(body))
    assert main(["render", "-f", str(file)]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named_once(capsys):
    assert main(["render", "-f", "/absent.yaml"]) == 2
    assert capsys.readouterr().err == "ballast-operator: /absent.yaml: No such file or directory\n"
