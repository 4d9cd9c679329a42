"""Kubernetes' own autoscaler with the sample: its controller scales a service by its reported queue lengths."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Kube, Object, documents
from devkit.cluster.server_thread import ServerThread
from devkit.cluster.service.specs import wait_ready
from devkit.cluster.waiting import wait_for

SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "hpa.yaml"
GROUP, VERSION = "custom.metrics.k8s.io", "v1beta2"
METRIC = "ballast_requests_waiting"

pytestmark = pytest.mark.usefixtures("operator")


class MetricsApi(ServerThread):
    """Replaces prometheus-adapter: reports `waiting` requests for each pod that matches a selector."""

    def __init__(self, kube: Kube, certificate: tuple[Path, Path]) -> None:
        self.waiting = 0
        self.requested: list[str] = []
        """Label selectors, in order."""
        self._kube = kube
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*certificate)
        super().__init__(self._handler(), tls)

    def _answer(self, path: str) -> Object:
        parts = urlsplit(path)
        if "/namespaces/" not in parts.path:
            resource = {"name": f"pods/{METRIC}", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}
            head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}"}
            return {**head, "resources": [{**resource, "singularName": ""}]}
        namespace = parts.path.split("/namespaces/")[1].partition("/")[0]
        assert parts.path.endswith(f"/{METRIC}"), parts.path
        (selector,) = parse_qs(parts.query)["labelSelector"]
        self.requested.append(selector)
        pods = self._kube.list("pods", namespace, dict(term.split("=") for term in selector.split(",")))
        return {
            "kind": "MetricValueList",
            "apiVersion": f"{GROUP}/{VERSION}",
            "metadata": {},
            "items": [
                {
                    "describedObject": {"kind": "Pod", "namespace": namespace, "name": pod["metadata"]["name"]},
                    "metric": {"name": METRIC},
                    "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "value": str(self.waiting),
                }
                for pod in pods
            ],
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(answer(self.path)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def metrics(cluster: Cluster, kube: Kube, namespace: str) -> Iterator[MetricsApi]:
    """The API group from which the autoscaler reads metrics, served by this process."""
    api = MetricsApi(kube, cluster.control_plane.pki.server("metrics", "localhost", "127.0.0.1"))
    service = {"metadata": {"name": "metrics"}, "spec": {"type": "ExternalName", "externalName": "localhost"}}
    kube.create("services", service, namespace)
    served_by = {"namespace": namespace, "name": "metrics", "port": api.port}
    priorities = {"groupPriorityMinimum": 100, "versionPriority": 100}
    spec = {"group": GROUP, "version": VERSION, "insecureSkipTLSVerify": True, "service": served_by, **priorities}
    name = f"{VERSION}.{GROUP}"
    with api:
        kube.create("apiservices", {"metadata": {"name": name}, "spec": spec})
        wait_for("the metrics API", lambda: _is_available(kube.get("apiservices", name)))
        yield api
        kube.delete("apiservices", name)


def _is_available(body: Object) -> bool:
    conditions = (body.get("status") or {}).get("conditions") or []
    return any(found["type"] == "Available" and found["status"] == "True" for found in conditions)


def test_the_autoscaler_adds_replicas_while_requests_wait_and_no_pod_restarts(
    kube: Kube, namespace: str, metrics: MetricsApi
) -> None:
    bodies = {body["kind"]: body for body in documents(SAMPLE)}
    kube.apply("inferenceservices", bodies["InferenceService"], namespace)
    wait_ready(kube, namespace, "autoscaled")
    (first,) = kube.list("pods", namespace)
    metrics.waiting = 20
    kube.apply("horizontalpodautoscalers", bodies["HorizontalPodAutoscaler"], namespace)
    # 20 waiting requests per pod with a target of 8 requires 2.5 times as many replicas.
    wait_for(
        "three replicas",
        lambda: kube.get("inferenceservices", "autoscaled", namespace)["spec"]["replicas"] == 3,
        timeout_s=180,
    )
    metrics.waiting = 4
    wait_ready(kube, namespace, "autoscaled")
    status = kube.get("inferenceservices", "autoscaled", namespace)["status"]
    assert status["selector"] in metrics.requested
    uids = {pod["metadata"]["uid"] for pod in kube.list("pods", namespace)}
    assert len(uids) == 3
    assert first["metadata"]["uid"] in uids
