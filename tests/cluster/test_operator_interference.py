"""Other clients edit the operator's objects and request impossible changes: services keep serving, and the status is
correct."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Kube, Object
from devkit.cluster.nodes.made_up import add_node, made_up_node, wait_lost, wait_schedulable
from devkit.cluster.service.api_versions import OLD
from devkit.cluster.service.endpoints import ready_services
from devkit.cluster.service.operator import OperatorProcess
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.specs import condition, service, status_of, wait_condition, wait_ready
from devkit.cluster.waiting import wait_for

pytestmark = pytest.mark.usefixtures("operator")

FOREIGN = {"labels": {"example.org/mine": "yes"}, "annotations": {"example.org/mine": "yes"}}


def serving(kube: Kube, namespace: str, name: str, **spec: object) -> None:
    kube.apply("inferenceservices", service(name, **spec), namespace)
    wait_ready(kube, namespace, name)


def is_served(kube: Kube, namespace: str, name: str) -> bool:
    return name in ready_services(kube, namespace, name)


def pods(kube: Kube, namespace: str, name: str) -> list[Object]:
    return kube.list("pods", namespace, {"serving.ballast.dev/service": name})


def uids(found: list[Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in found}


ADDED = [
    ("services", {"selector": {"foo": "bar"}}),
    ("services", {"publishNotReadyAddresses": True, "externalIPs": ["198.51.100.7"]}),
    ("services", {"internalTrafficPolicy": "Local", "sessionAffinity": "ClientIP"}),
    ("networkpolicies", {"podSelector": {"matchLabels": {"foo": "bar"}}}),
    ("networkpolicies", {"egress": [{}]}),
    ("poddisruptionbudgets", {"selector": {"matchLabels": {"foo": "bar"}}}),
]
"""Fields that another client adds to a child's spec, in addition to the operator's."""


def test_additions_to_children_are_removed_and_foreign_labels_stay(kube: Kube, namespace: str) -> None:
    serving(kube, namespace, "added", endpoint={"networkPolicy": {}})
    before = {resource: kube.get(resource, "added", namespace)["spec"] for resource, _ in ADDED}
    for resource, spec in ADDED:
        edited = kube.merge(resource, "added", {"spec": spec, "metadata": FOREIGN}, namespace)
        assert edited["spec"] != before[resource]

        def healed(resource: str = resource) -> bool:
            return bool(kube.get(resource, "added", namespace)["spec"] == before[resource])

        wait_for(f"{resource} without {spec}", healed)
        metadata = kube.get(resource, "added", namespace)["metadata"]
        assert (metadata["labels"]["example.org/mine"], metadata["annotations"]["example.org/mine"]) == ("yes", "yes")
    wait_for("clients to reach it again", lambda: is_served(kube, namespace, "added"))
    wait_ready(kube, namespace, "added")


@pytest.mark.parametrize(
    "ports",
    [
        [{"name": "http", "port": 10002, "targetPort": "admin"}],
        [{"name": "http", "port": 80, "targetPort": "http"}],
        [{"name": "web", "port": 10002, "targetPort": "http"}],
        [{"name": "http", "port": 10002, "targetPort": "http"}, {"name": "debug", "port": 1, "targetPort": "admin"}],
    ],
)
def test_an_edited_or_added_port_is_reverted(kube: Kube, namespace: str, ports: list[Object]) -> None:
    serving(kube, namespace, "ports")
    before = kube.get("services", "ports", namespace)["spec"]["ports"]
    kube.merge("services", "ports", {"spec": {"ports": ports}}, namespace)
    wait_for("its port", lambda: kube.get("services", "ports", namespace)["spec"]["ports"] == before)
    wait_ready(kube, namespace, "ports")


def test_a_new_port_is_applied_after_an_edit_was_reverted(kube: Kube, namespace: str) -> None:
    serving(kube, namespace, "moved")
    kube.merge("services", "moved", {"spec": {"ports": [{"name": "http", "port": 80}]}}, namespace)
    wait_for("its port", lambda: kube.get("services", "moved", namespace)["spec"]["ports"][0]["port"] == 10002)
    kube.merge("inferenceservices", "moved", {"spec": {"endpoint": {"port": 10005}}}, namespace)
    wait_ready(kube, namespace, "moved")
    assert [port["port"] for port in kube.get("services", "moved", namespace)["spec"]["ports"]] == [10005]


@contextmanager
def without_permission(kube: Kube, resource: str, verb: str) -> Iterator[None]:
    """The operator lacks this permission."""
    role = kube.get("clusterroles", "ballast-operator")
    rules = [
        {**rule, "resources": [found], "verbs": [v for v in rule["verbs"] if (found, v) != (resource, verb)]}
        for rule in role["rules"]
        for found in rule["resources"]
    ]
    kube.merge("clusterroles", "ballast-operator", {"rules": rules})
    try:
        yield
    finally:
        kube.merge("clusterroles", "ballast-operator", {"rules": role["rules"]})


def test_a_service_without_endpoints_is_not_ready(kube: Kube, namespace: str) -> None:
    serving(kube, namespace, "lost")
    with without_permission(kube, "services", "patch"):
        kube.merge("services", "lost", {"spec": {"selector": {"foo": "bar"}}}, namespace)
        found = wait_condition(kube, namespace, "lost", "EndpointReady", "False", "EndpointsMissing")
        assert "lost-0: ready, but not an endpoint" in found["message"]
        wait_condition(kube, namespace, "lost", "Ready", "False")
    kube.merge("inferenceservices", "lost", {"metadata": {"annotations": {"example.org/look": "now"}}}, namespace)
    wait_ready(kube, namespace, "lost")


HOST_PATH = {"source": {"hostPath": {"path": "/srv"}}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheduling": {"priorityClassName": "nope"}}, "no PriorityClass with name nope"),
        ({"model": HOST_PATH}, "violates PodSecurity"),
        ({"podMetadata": {"labels": {"büro": "yes"}}}, "büro"),
    ],
    ids=["priority-class", "host-path", "label"],
)
def test_a_serving_pod_stays_while_its_successor_would_be_refused(
    kube: Kube, namespace: str, change: Object, message: str
) -> None:
    serving(kube, namespace, "stays")
    (before,) = pods(kube, namespace, "stays")
    changed = service("stays", engine={"cacheLens": 5000})
    for name, value in change.items():
        changed["spec"][name] = {**changed["spec"].get(name, {}), **value} if name == "scheduling" else value
    kube.apply("inferenceservices", changed, namespace)
    found = wait_condition(kube, namespace, "stays", "Ready", "False", "ChildRefused")
    assert message in found["message"]
    assert "stays-0, which therefore stays" in found["message"]
    assert uids(pods(kube, namespace, "stays")) == uids([before])
    assert is_served(kube, namespace, "stays")
    kube.apply("inferenceservices", service("stays", engine={"cacheLens": 5000}), namespace)
    wait_ready(kube, namespace, "stays")
    assert uids(pods(kube, namespace, "stays")) != uids([before])


def test_a_pod_can_be_replaced_within_a_quota_of_one_pod(kube: Kube, namespace: str) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}
    kube.apply("resourcequotas", quota, namespace)
    wait_for("the quota", lambda: kube.get("resourcequotas", "q", namespace).get("status", {}).get("hard"))
    serving(kube, namespace, "tight")
    (before,) = pods(kube, namespace, "tight")
    serving(kube, namespace, "tight", engine={"cacheLens": 5000})
    assert uids(pods(kube, namespace, "tight")) != uids([before])


def test_a_stuck_rollout_names_its_cause_while_the_others_serve(kube: Kube, namespace: str) -> None:
    serving(kube, namespace, "stuck", replicas=3)
    kube.apply("inferenceservices", service("stuck", "unpullable", replicas=3), namespace)
    found = wait_condition(kube, namespace, "stuck", "Ready", "False", "ImagePullFailed")
    assert "stuck-2: not found" in found["message"]
    assert "2 of 3 replicas are ready, 0 of" in condition(kube, namespace, "stuck", "EndpointReady")["message"]
    status = status_of(kube, namespace, "stuck")
    assert (status["readyReplicas"], status["updatedReplicas"], status["replicas"]) == (2, 1, 3)
    assert condition(kube, namespace, "stuck", "Available")["status"] == "True"

    def reported() -> Object:
        return {
            e["reason"]: e["type"] for e in kube.list("events", namespace) if e["involvedObject"]["name"] == "stuck"
        }

    wait_for("a warning", lambda: reported().get("ImagePullFailed") == "Warning")


def test_a_service_stays_available_while_scaling_up_but_not_at_zero(kube: Kube, namespace: str) -> None:
    serving(kube, namespace, "avail")
    kube.merge("inferenceservices", "avail", {"spec": {"replicas": 2}}, namespace)

    def never_unavailable() -> None:
        assert condition(kube, namespace, "avail", "Available")["status"] == "True"

    wait_ready(kube, namespace, "avail", meanwhile=never_unavailable)
    found = status_of(kube, namespace, "avail")
    assert (found["updatedReplicas"], found["images"]) == (2, ["made.up/runtime:1"])
    kube.merge("inferenceservices", "avail", {"spec": {"replicas": 0}}, namespace)
    wait_condition(kube, namespace, "avail", "Available", "False", "ScaledToZero")


WITHOUT_RESTART: dict[str, Object] = {
    "quantity": {"resources": {"memory": "1024Mi"}},
    "pull-policy": {"imagePullPolicy": "Always"},
    "pull-secrets": {"imagePullSecrets": [{"name": "registry"}]},
    "timeouts": {"engine": {"drainTimeoutSeconds": 61, "loadTimeoutSeconds": 600}},
    "tolerations": {"scheduling": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}},
    "pod-metadata": {"podMetadata": {"labels": {"team": "a"}, "annotations": {"example.org/note": "1"}}},
}


def test_changes_that_apply_to_running_pods_restart_nothing(kube: Kube, namespace: str) -> None:
    serving(kube, namespace, "kept")
    (before,) = pods(kube, namespace, "kept")
    for change in WITHOUT_RESTART.values():
        kube.merge("inferenceservices", "kept", {"spec": change}, namespace)
        wait_ready(kube, namespace, "kept")
    (after,) = pods(kube, namespace, "kept")
    assert uids([after]) == uids([before])
    assert (after["metadata"]["labels"]["team"], after["metadata"]["annotations"]["example.org/note"]) == ("a", "1")
    assert {"key": "gpu", "operator": "Exists"} in after["spec"]["tolerations"]
    kube.merge("inferenceservices", "kept", {"spec": {"podMetadata": None}}, namespace)
    wait_ready(kube, namespace, "kept")
    (stripped,) = pods(kube, namespace, "kept")
    assert uids([stripped]) == uids([before])
    assert "team" not in stripped["metadata"]["labels"]
    assert "example.org/note" not in stripped["metadata"]["annotations"]


def test_a_pod_that_cannot_pull_is_replaced_when_the_pull_secret_changes(kube: Kube, namespace: str) -> None:
    kube.apply("inferenceservices", service("secret", "unpullable"), namespace)
    wait_condition(kube, namespace, "secret", "Ready", "False", "ImagePullFailed")
    kube.merge("inferenceservices", "secret", {"spec": {"imagePullSecrets": [{"name": "registry"}]}}, namespace)

    def has_secret() -> bool:
        return any(pod["spec"].get("imagePullSecrets") for pod in pods(kube, namespace, "secret"))

    wait_for("a pod with the secret", has_secret)


def test_an_engine_with_an_unused_gpu_is_not_ready(kube: Kube, namespace: str, answers: PodAnswers) -> None:
    page = answers.pages["/debug/state"]
    assert page is not None
    answers.pages["/debug/state"] = (200, {**page[1], "device": "cpu"})
    resources = {"cpus": 1, "memory": "1Gi", "gpus": 1}
    try:
        kube.apply("inferenceservices", service("idle", resources=resources), namespace)
        found = wait_condition(kube, namespace, "idle", "Ready", "False", "GPUNotUsed")
        assert "idle-0: computes on the CPU, although it has 1 nvidia.com/gpu" in found["message"]
        assert status_of(kube, namespace, "idle")["device"] == {"asked": "cuda", "used": "cpu"}
        kube.apply("inferenceservices", service("idle", resources={**resources, "cpuFallback": True}), namespace)
        wait_ready(kube, namespace, "idle")
        assert status_of(kube, namespace, "idle")["device"] == {"asked": "auto", "used": "cpu"}
    finally:
        answers.pages["/debug/state"] = page


def restart(value: str) -> Object:
    return {"metadata": {"annotations": {"serving.ballast.dev/restarted-at": value}}}


def test_a_service_of_two_gpus_is_ready_when_it_uses_both(kube: Kube, namespace: str, answers: PodAnswers) -> None:
    before = dict(answers.pages)
    state, numa = (before[f"/debug/{name}"] for name in ("state", "numa"))
    assert state is not None
    assert numa is not None
    gpus = [{"name": f"cuda:{node}", "product": "NVIDIA L4", "node": node} for node in (0, 1)]
    resources = {"cpus": 1, "memory": "1Gi", "gpus": 2}
    pinned = {"policy": "SingleNode", "enforcement": "Require"}
    try:
        answers.pages["/debug/state"] = 200, {**state[1], "device": "cuda:0"}
        answers.pages["/debug/numa"] = 200, {**numa[1], "gpus": gpus}
        kube.apply("inferenceservices", service("both", resources=resources, numa=pinned), namespace)
        found = wait_condition(kube, namespace, "both", "Ready", "False", "GPUNotUsed")
        assert "both-0: computes on cuda:0 alone, although it has 2 nvidia.com/gpu" in found["message"]
        (pod,) = pods(kube, namespace, "both")
        assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"

        answers.pages["/debug/state"] = 200, {**state[1], "device": "cuda:0,cuda:1"}
        kube.merge("inferenceservices", "both", restart("again"), namespace)
        found = wait_condition(kube, namespace, "both", "Ready", "False", "GPUsSpanNodes")
        assert "cuda:0 to 0, cuda:1 to 1" in found["message"]
        status = status_of(kube, namespace, "both")
        assert status["device"] == {"asked": "cuda", "used": "cuda:0,cuda:1"}
        (placement,) = status["placement"]
        assert [(gpu["name"], gpu["numaNode"]) for gpu in placement["gpus"]] == [("cuda:0", 0), ("cuda:1", 1)]
        assert kube.get(f"inferenceservices{OLD}", "both", namespace)["status"]["placement"] == [placement]

        answers.pages["/debug/numa"] = 200, {**numa[1], "gpus": [{**gpu, "node": 0} for gpu in gpus]}
        kube.merge("inferenceservices", "both", restart("near"), namespace)
        wait_ready(kube, namespace, "both")
    finally:
        answers.pages.update(before)


def test_a_misspelt_affinity_key_is_rejected_and_serving_pods_stay(kube: Kube, namespace: str) -> None:
    serving(kube, namespace, "spelt")
    (before,) = pods(kube, namespace, "spelt")
    changed = service("spelt")
    changed["spec"]["scheduling"]["affinity"] = {
        "podAntiAfinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}
    }
    kube.apply("inferenceservices", changed, namespace)
    found = wait_condition(kube, namespace, "spelt", "Ready", "False", "ChildRefused")
    assert 'unknown field "spec.affinity.podAntiAfinity"' in found["message"]
    assert uids(pods(kube, namespace, "spelt")) == uids([before])
    fresh = service("fresh")
    fresh["spec"]["scheduling"]["affinity"] = {"nodeAffinity": {"required": {}}}
    kube.apply("inferenceservices", fresh, namespace)
    wait_condition(kube, namespace, "fresh", "Ready", "False", "ChildRefused")
    assert pods(kube, namespace, "fresh") == []


def test_deeply_nested_json_from_a_pod_does_not_disturb_the_operator(
    kube: Kube, namespace: str, answers: PodAnswers
) -> None:
    page = answers.pages["/debug/numa"]
    answers.pages["/debug/numa"] = (200, "[" * 200_000 + "]" * 200_000)
    try:
        kube.apply("inferenceservices", service("deep"), namespace)
        found = wait_condition(kube, namespace, "deep", "NUMAPinned", "Unknown", "ProbeFailed")
        assert "not a usable answer" in found["message"]
        wait_ready(kube, namespace, "deep")
    finally:
        answers.pages["/debug/numa"] = page


def test_an_engine_that_loads_too_long_is_reported_with_a_warning(
    kube: Kube, namespace: str, answers: PodAnswers
) -> None:
    page, answers.pages["/readyz"] = answers.pages["/readyz"], (503, {"status": "loading", "progress": 0.42})
    try:
        kube.apply("inferenceservices", service("slow", "slow", engine={"loadTimeoutSeconds": 60}), namespace)
        found = wait_condition(kube, namespace, "slow", "Ready", "False", "LoadTimeout")
        assert "engine.loadTimeoutSeconds" in found["message"]
        assert "60 s after its start); 40 % loaded again" in found["message"]

        def reported() -> bool:
            found = kube.list("events", namespace)
            return any((e["reason"], e["type"]) == ("LoadTimeout", "Warning") for e in found)

        wait_for("a warning", reported)
        # The same termination with another time does not come from the kubelet.
        kube.apply("inferenceservices", service("other", "slow", engine={"loadTimeoutSeconds": 600}), namespace)
        wait_condition(kube, namespace, "other", "Ready", "False", "Loading")
    finally:
        answers.pages["/readyz"] = page


NOT_READY = {
    "type": "Ready",
    "status": "False",
    "reason": "KubeletNotReady",
    "message": "made to fail",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


@pytest.fixture
def dies(cluster: Cluster, kube: Kube) -> Iterator[str]:
    """A node only for the next test: other tests rely on every node of the cluster."""
    add_node(cluster.control_plane, made_up_node("dies", labels={"example.org/own": "yes"}))
    yield "dies"
    kube.delete("nodes", "dies")


def test_a_dead_node_and_its_stuck_pod_are_reported(kube: Kube, namespace: str, answers: PodAnswers, dies: str) -> None:
    own = {"nodeSelector": {"example.org/own": "yes"}}
    lingers = {"annotations": {"test.ballast.dev/lingers": "yes"}}
    page, answers.pages["/readyz"] = answers.pages["/readyz"], answers.pages["/readyz"]
    serving(kube, namespace, "orphan", scheduling=own, podMetadata=lingers)
    try:
        answers.pages["/readyz"] = None
        kube.merge("nodes", dies, {"metadata": {"annotations": {"test.ballast.dev/broken": "yes"}}})
        kube.merge("nodes", dies, {"status": {"conditions": [NOT_READY]}}, subresource="status")
        # The node controller marks the pods of such a node like this, within its grace period.
        kube.merge("pods", "orphan-0", {"status": {"conditions": [NOT_READY]}}, namespace, "status")
        found = wait_condition(kube, namespace, "orphan", "Ready", "False", "NodeNotReady")
        assert "orphan-0: node dies is not ready since 20" in found["message"]

        def warned() -> bool:
            return any((e["reason"], e["type"]) == ("NodeNotReady", "Warning") for e in kube.list("events", namespace))

        wait_for("a warning", warned)
        kube.delete("pods", "orphan-0", namespace)
        found = wait_condition(kube, namespace, "orphan", "Scheduled", "False", "NodeNotReady")
        assert "kubectl delete pod orphan-0 --force" in found["message"]
        wait_lost(kube, dies)
    finally:
        answers.pages["/readyz"] = page
        kube.merge("nodes", dies, {"metadata": {"annotations": {"test.ballast.dev/broken": None}}})
        wait_schedulable(kube, dies)
        kube.delete("pods", "orphan-0", namespace, gracePeriodSeconds=0)
    wait_ready(kube, namespace, "orphan")


def test_a_new_default_image_is_not_mixed_with_the_old_one_within_a_spec(
    operator: OperatorProcess, kube: Kube, namespace: str
) -> None:
    serving(kube, namespace, "one")
    number = operator.argv.index("made.up/runtime:1")
    operator.stop()
    operator.argv[number] = "made.up/runtime:2"
    operator.start()
    try:
        operator.wait_leading()
        kube.merge("inferenceservices", "one", {"spec": {"replicas": 2}}, namespace)
        wait_ready(kube, namespace, "one")
        assert status_of(kube, namespace, "one")["images"] == ["made.up/runtime:1"]
        assert len(pods(kube, namespace, "one")) == 2
        kube.merge("inferenceservices", "one", {"spec": {"engine": {"cacheLens": 5000}}}, namespace)
        wait_ready(kube, namespace, "one")
        assert status_of(kube, namespace, "one")["images"] == ["made.up/runtime:2"]
    finally:
        operator.stop()
        operator.argv[number] = "made.up/runtime:1"
        operator.start()
        operator.wait_leading()


def test_a_requested_restart_replaces_the_pods_once(kube: Kube, namespace: str) -> None:
    serving(kube, namespace, "again", replicas=2)
    before = uids(pods(kube, namespace, "again"))
    kube.merge("inferenceservices", "again", restart("1"), namespace)
    wait_for("other pods", lambda: not before & uids(pods(kube, namespace, "again")))
    wait_ready(kube, namespace, "again")
    after = uids(pods(kube, namespace, "again"))
    kube.merge(
        "inferenceservices",
        "again",
        {
            "metadata": {"annotations": {"serving.ballast.dev/restarted-at": None}},
            "spec": {"numa": {"enforcement": "Off"}},
        },
        namespace,
    )
    wait_ready(kube, namespace, "again")
    assert uids(pods(kube, namespace, "again")) == after, "removing the annotation restarts nothing"
