"""A mutating webhook that adds a container to pods, as service meshes do."""

from __future__ import annotations

import base64
import json
import ssl
from http.server import BaseHTTPRequestHandler
from typing import Any

from devkit.cluster.controlplane import ControlPlane
from devkit.cluster.kube import Object
from devkit.cluster.server_thread import ServerThread

SIDECAR: Object = {
    "name": "proxy",
    "image": "made.up/proxy:1",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
"""Has no resource requests, so no pod with it has the QoS class Guaranteed."""


class Injector(ServerThread):
    """Adds SIDECAR to every pod that is created in one namespace during the block."""

    scheme = "https"

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self._kube, self._namespace = control_plane.kube, namespace
        self._ca = control_plane.pki.ca.read_bytes()
        cert, key = control_plane.pki.server("injector", "127.0.0.1")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(cert, key)
        super().__init__(_Handler, tls)

    def start(self) -> None:
        super().start()
        self._kube.create("mutatingwebhookconfigurations", self._configuration())

    def stop(self) -> None:
        try:
            self._kube.delete("mutatingwebhookconfigurations", self._namespace)
        finally:
            super().stop()

    def _configuration(self) -> Object:
        url = f"{self.url}/"
        webhook = {
            "name": "injector.test.ballast.dev",
            "clientConfig": {"url": url, "caBundle": base64.b64encode(self._ca).decode()},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
        }
        return {"metadata": {"name": self._namespace}, "webhooks": [webhook]}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        review: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        patch = json.dumps([{"op": "add", "path": "/spec/containers/-", "value": SIDECAR}])
        response = {
            "uid": review["request"]["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(patch.encode()).decode(),
        }
        answer = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: object) -> None:
        """No log output during tests."""
