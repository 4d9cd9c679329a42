"""KEDA and its HTTP add-on as processes on this machine, with the permissions of their own releases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import httpx
import yaml

from devkit.cluster.binaries import built
from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Object, documents
from devkit.cluster.process import Process, free_port
from devkit.cluster.waiting import wait_for

NAMESPACE = "keda"
ADMIN = "keda-add-ons-http-interceptor-admin"
INTERCEPTOR_ADDRESS = "192.0.2.1"
"""The address of the interceptor's pod: an EndpointSlice may not have a loopback address."""


def definitions() -> list[Object]:
    """The custom resource definitions of both releases."""
    return [yaml.safe_load(file.read_text()) for file in sorted((built("keda") / "definitions").glob("*.yaml"))]


class Keda:
    """The operator, and the add-on's interceptor and external scaler.

    `network` is a SOCKS proxy that reaches Services by name, and `INTERCEPTOR_ADDRESS`. The definitions must exist.
    """

    def __init__(self, cluster: Cluster, network: str) -> None:
        self._cluster = cluster
        self._proxy_port, self.admin_port, scaler_port = (free_port() for _ in range(3))
        self.url = f"http://127.0.0.1:{self._proxy_port}"
        """The interceptor's proxy, to which clients connect."""
        self.scaler_address = f"127.0.0.1:{scaler_port}"
        through = {"HTTP_PROXY": network, "OTEL_PROM_EXPORTER_ENABLED": "false"}
        interceptor = {"KEDA_HTTP_PROXY_PORT": str(self._proxy_port), "KEDA_HTTP_ADMIN_PORT": str(self.admin_port)}
        scaler = {
            "KEDA_HTTP_SCALER_PORT": str(scaler_port),
            "KEDA_HTTP_SCALER_TARGET_ADMIN_NAMESPACE": NAMESPACE,
            "KEDA_HTTP_SCALER_TARGET_ADMIN_SERVICE": ADMIN,
            "KEDA_HTTP_SCALER_TARGET_ADMIN_DEPLOYMENT": "keda-add-ons-http-interceptor",
            "KEDA_HTTP_SCALER_TARGET_ADMIN_PORT": str(self.admin_port),
        }
        self._processes = (
            self._process(
                "keda-operator",
                {"POD_NAMESPACE": NAMESPACE, "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE, "WATCH_NAMESPACE": ""},
                *self._operator_flags(),
            ),
            self._process("keda-interceptor", {**through, **interceptor}),
            self._process("keda-scaler", {**through, **scaler}),
        )

    def start(self) -> None:
        """Return when the interceptor answers; the other programs retry until their dependencies are available."""
        self._cluster.make_namespace(NAMESPACE)
        for file in sorted((built("keda") / "roles").glob("*.yaml")):
            for role in documents(file):
                self._grant(role, file.stem)
        self._publish_interceptor()
        for process in self._processes:
            process.start()
        wait_for("the interceptor", self._answers)

    def stop(self) -> None:
        """Kill the programs after the objects with KEDA's finalizers are gone."""
        try:
            wait_for("KEDA's objects to go", lambda: not self._cluster.kube.list("scaledobjects"))
        finally:
            for process in self._processes:
                process.kill()
            self._cluster.kube.delete("namespaces", NAMESPACE)

    def watches(self, namespace: str, name: str) -> bool:
        """Whether the operator and the scaler use this ScaledObject."""
        found = self._cluster.kube.get("scaledobjects", name, namespace)
        conditions = found.get("status", {}).get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def check(self) -> None:
        """Raise an error if one of the programs has exited."""
        for process in self._processes:
            process.check()

    def _answers(self) -> bool:
        self.check()
        try:
            return httpx.get(f"http://127.0.0.1:{self.admin_port}/readyz", trust_env=False).is_success
        except httpx.TransportError:
            return False

    def _grant(self, role: Object, user: str) -> None:
        """Apply a role and bind it to `user`."""
        self._cluster.kube.apply(f"{role['kind'].lower()}s", role)
        kind, metadata = f"{role['kind']}Binding", role["metadata"]
        group = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": kind,
            "metadata": {"name": metadata["name"], "namespace": metadata.get("namespace")},
            "roleRef": {"apiGroup": group, "kind": role["kind"], "name": metadata["name"]},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        }
        self._cluster.kube.apply(f"{kind.lower()}s", binding)

    def _publish_interceptor(self) -> None:
        """Create the Service by which the scaler finds interceptors, and its EndpointSlice, as a cluster would."""
        ports = [{"name": "http", "port": self.admin_port}]
        kube = self._cluster.kube
        kube.create("services", {"metadata": {"name": ADMIN}, "spec": {"clusterIP": "None", "ports": ports}}, NAMESPACE)
        endpoints = {
            "metadata": {"name": ADMIN, "labels": {"kubernetes.io/service-name": ADMIN}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [INTERCEPTOR_ADDRESS], "conditions": {"ready": True}}],
            "ports": ports,
        }
        kube.create("endpointslices", endpoints, NAMESPACE)

    def _operator_flags(self) -> list[str]:
        certificates = self._cluster.folder / "keda-certificates"
        certificates.mkdir()
        pki = self._cluster.control_plane.pki
        for name, path in zip(("tls.crt", "tls.key"), pki.server("keda-operator", "localhost"), strict=True):
            (certificates / name).write_bytes(path.read_bytes())
        (certificates / "ca.crt").write_bytes(pki.ca.read_bytes())
        addresses = ("metrics", "health-probe", "metrics-service")
        return [f"--cert-dir={certificates}", *(f"--{name}-bind-address=127.0.0.1:{free_port()}" for name in addresses)]

    def _process(self, name: str, environment: Mapping[str, str], *flags: str) -> Process:
        config = self._cluster.control_plane.client_config(name)
        argv: list[str | Path] = [built("keda") / name, *flags]
        return Process(name, argv, self._cluster.folder, env={"KUBECONFIG": str(config), **environment})
