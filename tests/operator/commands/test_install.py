"""The install manifest, generated from the table that the doctor uses to check permissions."""

import re
from pathlib import Path

import yaml

from ballast_operator.cli import main
from ballast_operator.rbac import CLUSTER_RULES, HOME_RULES, WATCHED_RULES, each_permission
from ballast_operator.version import __version__

FILE = Path(__file__).parents[3] / "manifests/operator/operator.yaml"
DOCKERFILE = Path(__file__).parents[3] / "Dockerfile"


def test_the_file_equals_the_commands_output(capsys):
    assert main(["install"]) == 0
    assert FILE.read_text() == capsys.readouterr().out, (
        "run: ballast-operator install > manifests/operator/operator.yaml"
    )


def test_services_without_gpus_get_an_image_of_the_same_origin(capsys):
    def arguments(*flags):
        assert main(["install", *flags]) == 0
        (deployment,) = [body for body in yaml.safe_load_all(capsys.readouterr().out) if body["kind"] == "Deployment"]
        return [word for word in deployment["spec"]["template"]["spec"]["containers"][0]["args"] if "image" in word]

    assert arguments() == [
        f"--runtime-image=ballast-runtime:{__version__}",
        f"--cpu-runtime-image=ballast-runtime:{__version__}-cpu",
    ]
    assert arguments("--runtime-image=r.test/x:1") == ["--runtime-image=r.test/x:1"]
    given = ["--runtime-image=r.test/x:1", "--cpu-runtime-image=r.test/x:1-cpu"]
    assert arguments(*given) == given


def test_no_secret_is_read_and_only_needed_permissions_are_requested():
    everywhere, at_home = list(each_permission((*WATCHED_RULES, *CLUSTER_RULES))), list(each_permission(HOME_RULES))
    permissions = [*everywhere, *at_home]
    assert len(everywhere) == len(set(everywhere))
    assert len(at_home) == len(set(at_home))
    assert not [permission for permission in permissions if "secret" in permission[1] or "*" in permission]
    assert not [permission for permission in permissions if permission[2] in ("escalate", "bind", "impersonate")]


def test_the_operators_pod_is_restricted():
    (deployment,) = [body for body in yaml.safe_load_all(FILE.read_text()) if body["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert set(re.findall(r"^USER (\d.+)$", DOCKERFILE.read_text(), re.MULTILINE)) == {user}, "the image's own user"
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
