"""Services that use values outside the operator's allow lists: they are reported, and no object is created for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Kube, Object
from devkit.cluster.nodes.made_up import BEHAVIOUR
from devkit.cluster.service.operator import OperatorProcess, install
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.specs import service, wait_condition, wait_ready

LISTS = (
    "--allowed-image=registry.test/team",
    "--allowed-host-path=/srv/models",
    "--allowed-priority-class=models",
    f"--allowed-node-selector={BEHAVIOUR}=run",
)


@pytest.fixture(scope="module", autouse=True)
def operator(cluster: Cluster, answers: PodAnswers) -> Iterator[OperatorProcess]:
    """An operator with all allow lists set."""
    install(cluster)
    operator = OperatorProcess(cluster, "lists", answers.url, "--resync-seconds", "5", *LISTS)
    operator.start()
    operator.wait_leading()
    yield operator
    operator.stop()
    assert operator.exit_code == 0, operator.log_tail()


@pytest.fixture
def unrestricted(cluster: Cluster, namespace: str) -> Iterator[str]:
    """A namespace whose pod security standard allows all volumes."""
    name = cluster.make_namespace(f"{namespace}-open"[-63:].strip("-"), restricted=False)
    yield name
    cluster.kube.delete("namespaces", name)


def host_path(path: str) -> Object:
    return {"source": {"hostPath": {"path": path}}}


def pods(kube: Kube, namespace: str, name: str) -> list[Object]:
    return kube.list("pods", namespace, {"serving.ballast.dev/service": name})


CODE: Object = {"volumes": [{"name": "code", "configMap": {"name": "code"}}]}
SIDECAR: Object = {"name": "shell", "image": "registry.test/team/runtime:1", "cpu": "1", "memory": "1Gi"}
BEYOND: dict[str, Object] = {
    "image": {"image": "elsewhere.test/shell:1"},
    "model-image": {"model": {"source": {"image": {"reference": "registry.test/team-b/secrets:1"}}}},
    "host-path": {"model": host_path("/")},
    "sidecar": {"sidecars": [{"name": "shell", "image": "elsewhere.test/shell:1", "cpu": "1", "memory": "1Gi"}]},
    "volume": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
    "kernels": {"kernelCache": {"hostPath": "/etc"}},
    "python-path": {"env": [{"name": "PYTHONPATH", "value": "/data"}]},
    "preload": {"env": [{"name": "LD_PRELOAD", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}}]},
    "net-plugin": {"env": [{"name": "NCCL_NET_PLUGIN", "value": "/data/x.so"}]},
    "unknown-variable": {"env": [{"name": "SITE", "value": "x"}]},
    "variables-of-an-object": {"envFrom": [{"configMapRef": {"name": "x"}}]},
    "mount-over-programs": {**CODE, "volumeMounts": [{"name": "code", "mountPath": "/opt/ballast/lib"}]},
    "mount-of-one-file": {
        **CODE,
        "volumeMounts": [{"name": "code", "mountPath": "/etc/ld.so.preload", "subPath": "x"}],
    },
    "sidecar-command": {"sidecars": [{**SIDECAR, "command": ["python3", "-c", "pass"]}]},
    "sidecar-arguments": {"sidecars": [{**SIDECAR, "args": ["-c", "pass"]}]},
    "kernel-claim": {"kernelCache": {"claimName": "kernels"}},
    "priority-class": {"scheduling": {"nodeSelector": {BEHAVIOUR: "run"}, "priorityClassName": "system-node-critical"}},
    "node-selector": {"scheduling": {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}}},
}


@pytest.mark.parametrize("change", BEYOND.values(), ids=BEYOND.keys())
def test_fields_outside_the_allow_lists_are_rejected_and_create_nothing(
    kube: Kube, unrestricted: str, change: Object
) -> None:
    kube.apply("inferenceservices", service("beyond", **change), unrestricted)
    found = wait_condition(kube, unrestricted, "beyond", "Ready", "False", "NotAllowed")
    assert "is not allowed: --allowed-" in found["message"]
    assert pods(kube, unrestricted, "beyond") == []
    assert kube.find("services", "beyond", unrestricted) is None


def test_an_allowed_service_keeps_serving_when_a_change_is_not_allowed(kube: Kube, unrestricted: str) -> None:
    priority = {"metadata": {"name": "models"}, "value": 1}
    kube.apply("priorityclasses", {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **priority})
    allowed: Object = {
        "image": "registry.test/team/runtime:1",
        "model": host_path("/srv/models/r1"),
        "scheduling": {"nodeSelector": {BEHAVIOUR: "run"}, "priorityClassName": "models"},
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
        "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    kube.apply("inferenceservices", service("within", **allowed), unrestricted)
    wait_ready(kube, unrestricted, "within")
    (before,) = pods(kube, unrestricted, "within")
    kube.apply("inferenceservices", service("within", **{**allowed, "model": host_path("/etc")}), unrestricted)
    wait_condition(kube, unrestricted, "within", "Ready", "False", "NotAllowed")
    (after,) = pods(kube, unrestricted, "within")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    kube.apply("inferenceservices", service("within", **allowed), unrestricted)
    wait_ready(kube, unrestricted, "within")
