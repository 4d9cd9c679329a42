"""The control plane, the simulated nodes and the faults behave as the operator tests assume."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.faults.proxy import Fault, FaultProxy, everything, mutations, nth_mutation, watches
from devkit.cluster.kube import ApiError, Kube, Object
from devkit.cluster.nodes.made_up import BEHAVIOUR
from devkit.cluster.waiting import wait_for

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod(name: str, behaviour: str = "run", **context: object) -> Object:
    return {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeSelector": {BEHAVIOUR: behaviour},
            "containers": [{"name": "main", "image": "made.up/image:1", "securityContext": {**RESTRICTED, **context}}],
        },
    }


def let(kube: Kube, namespace: str, account: str, user: Kube) -> None:
    """Grant a service account all rights on configmaps; return when they are effective. `user` calls as this
    account."""
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]
    kube.create("roles", {"metadata": {"name": "r"}, "rules": rules}, namespace)
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    kube.create("rolebindings", {"metadata": {"name": "r"}, "subjects": [subject], "roleRef": role}, namespace)
    wait_allowed(user, namespace)


def wait_allowed(user: Kube, namespace: str) -> None:
    """Return when the API server applies a new role binding."""

    def allowed() -> bool:
        try:
            user.list("configmaps", namespace)
        except ApiError as error:
            if error.code != 403:
                raise
            return False
        return True

    wait_for("the permission to list configmaps", allowed)


def status_of(kube: Kube, namespace: str, name: str) -> Object:
    status: Object = kube.get("pods", name, namespace)["status"]
    return status


@pytest.mark.parametrize(
    ("behaviour", "phase", "ready"),
    [
        ("run", "Running", "True"),
        ("loading", "Running", "False"),
        ("rejected", "Failed", None),
        ("oom", "Running", "False"),
    ],
)
def test_a_pod_on_a_made_up_node(kube: Kube, namespace: str, behaviour: str, phase: str, ready: str | None) -> None:
    kube.create("pods", pod("p", behaviour), namespace)
    wait_for(f"the pod to be {phase}", lambda: status_of(kube, namespace, "p")["phase"] == phase)
    conditions = {c["type"]: c["status"] for c in status_of(kube, namespace, "p").get("conditions", [])}
    assert conditions.get("Ready") == ready


def test_a_ready_pod_is_an_endpoint_of_its_service(kube: Kube, namespace: str) -> None:
    kube.create(
        "services", {"metadata": {"name": "s"}, "spec": {"selector": {"app": "p"}, "ports": [{"port": 80}]}}, namespace
    )
    kube.create("pods", pod("p"), namespace)

    def ready_endpoints() -> list[Object]:
        slices = kube.list("endpointslices", namespace, {"kubernetes.io/service-name": "s"})
        return [e for s in slices for e in s["endpoints"] or [] if e["conditions"]["ready"]]

    assert len(wait_for("a ready endpoint", ready_endpoints)) == 1
    kube.delete("pods", "p", namespace)
    wait_for("no endpoint", lambda: not ready_endpoints())


def test_pod_security_is_enforced(kube: Kube, namespace: str) -> None:
    with pytest.raises(ApiError, match='violates PodSecurity "restricted') as refused:
        kube.create("pods", pod("p", runAsNonRoot=False), namespace)
    assert refused.value.code == 403


def test_the_audit_log_records_each_writer(cluster: Cluster, kube: Kube, namespace: str) -> None:
    kube.create("serviceaccounts", {"metadata": {"name": "robot"}}, namespace)
    user = f"system:serviceaccount:{namespace}:robot"
    robot = Kube(cluster.kubeconfig_for(cluster.token_of("robot", namespace), "robot"))
    let(kube, namespace, "robot", robot)
    audit = cluster.audit()

    robot.create("configmaps", {"metadata": {"name": "c"}, "data": {"a": "1"}}, namespace)
    robot.list("configmaps", namespace)
    with pytest.raises(ApiError, match="forbidden"):
        robot.list("secrets", namespace)
    robot.close()

    writes = audit.new_writes(user)
    assert [(call.verb, call.resource, call.name, call.code) for call in writes] == [("create", "configmaps", "c", 201)]
    assert audit.new_writes(user) == []


def test_a_restarted_api_server_keeps_its_objects(cluster: Cluster, kube: Kube, namespace: str) -> None:
    kube.create("configmaps", {"metadata": {"name": "kept"}}, namespace)
    cluster.control_plane.restart_apiserver()
    assert kube.get("configmaps", "kept", namespace)


@pytest.fixture
def through(cluster: Cluster, proxy: FaultProxy) -> Iterator[Kube]:
    """A client with administrator rights behind the fault proxy."""
    name = "through-proxy"
    if cluster.kube.find("serviceaccounts", name, "default") is None:
        cluster.kube.create("serviceaccounts", {"metadata": {"name": name}}, "default")
        subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        cluster.kube.create("clusterrolebindings", {"metadata": {"name": name}, "subjects": [subject], "roleRef": role})
    token = cluster.token_of(name, "default")
    directly = Kube(cluster.kubeconfig_for(token, f"not-{name}"))
    wait_allowed(directly, "default")
    directly.close()
    client = Kube(cluster.kubeconfig_for(token, name, server=proxy.url))
    yield client
    client.close()


class TestFaults:
    def test_without_a_fault_calls_pass(self, through: Kube, proxy: FaultProxy, namespace: str) -> None:
        through.create("configmaps", {"metadata": {"name": "c"}}, namespace)
        assert [(s.method, s.is_mutating) for s in proxy.seen()] == [("POST", True)]

    @pytest.mark.parametrize("code", [409, 429, 500])
    def test_a_refusal_for_a_number_of_times(self, through: Kube, proxy: FaultProxy, namespace: str, code: int) -> None:
        proxy.add(Fault(mutations("/configmaps"), status=code, retry_after_s=1, times=2))
        for _ in range(2):
            with pytest.raises(ApiError, match="injected") as refused:
                through.create("configmaps", {"metadata": {"name": "c"}}, namespace)
            assert refused.value.code == code
        through.create("configmaps", {"metadata": {"name": "c"}}, namespace)

    def test_reset_before_drops_the_request_and_reset_after_drops_the_reply(
        self, kube: Kube, through: Kube, proxy: FaultProxy, namespace: str
    ) -> None:
        killed: list[str] = []
        proxy.add(Fault(nth_mutation(1), reset="before", then=lambda: killed.append("before")))
        proxy.add(Fault(nth_mutation(1), reset="after", then=lambda: killed.append("after")))
        for name in ("first", "second"):
            with pytest.raises(httpx.TransportError):
                through.create("configmaps", {"metadata": {"name": name}}, namespace)
        assert killed == ["before", "after"]
        assert kube.find("configmaps", "first", namespace) is None
        assert kube.find("configmaps", "second", namespace) is not None

    def test_a_reset_within_the_body(self, through: Kube, proxy: FaultProxy, namespace: str) -> None:
        proxy.add(Fault(everything, reset="mid-body", times=1))
        with pytest.raises(httpx.TransportError):
            through.list("configmaps", namespace)
        assert through.list("configmaps", namespace)

    def test_delay_and_stall(self, through: Kube, proxy: FaultProxy, namespace: str) -> None:
        proxy.add(Fault(everything, delay_s=0.5, times=1))
        proxy.add(Fault(everything, stall=True, times=1))
        started = time.monotonic()
        through.list("configmaps", namespace)
        assert time.monotonic() - started >= 0.5
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{proxy.url}/api/v1/configmaps", timeout=2)

    def test_an_expired_watch(self, proxy: FaultProxy) -> None:
        proxy.add(Fault(watches("/configmaps"), gone=True, times=1))
        events = httpx.get(f"{proxy.url}/api/v1/configmaps?watch=true", timeout=60).text
        assert '"code": 410' in events

    def test_a_frozen_watch_stays_open_and_silent(
        self, cluster: Cluster, kube: Kube, proxy: FaultProxy, namespace: str
    ) -> None:
        token = cluster.token_of("default", namespace)
        user = Kube(cluster.kubeconfig_for(token, "watcher"))
        let(kube, namespace, "default", user)
        user.close()
        wait_for("a first object", lambda: kube.find("configmaps", "kube-root-ca.crt", namespace))
        url = f"{proxy.url}/api/v1/namespaces/{namespace}/configmaps?watch=true"
        with httpx.stream("GET", url, headers={"Authorization": f"Bearer {token}"}, timeout=3) as watch:
            lines = watch.iter_lines()
            assert "kube-root-ca.crt" in next(lines)
            proxy.freeze_watches()
            kube.create("configmaps", {"metadata": {"name": "unseen"}}, namespace)
            with pytest.raises(httpx.ReadTimeout):
                next(lines)
