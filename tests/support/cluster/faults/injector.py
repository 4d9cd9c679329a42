"""A mutating webhook that puts a container into pods, as service meshes do."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from support.cluster.controlplane import ControlPlane
from support.cluster.kube import Object

SIDECAR: Object = {
    "name": "proxy",
    "image": "made.up/proxy:1",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
"""Asks for nothing, so that no pod that holds it is Guaranteed."""


class Injector:
    """Puts SIDECAR into every pod of one namespace that is made within the block."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self._kube, self._namespace = control_plane.kube, namespace
        self._ca = control_plane.pki.ca.read_bytes()
        cert, key = control_plane.pki.server("injector", "127.0.0.1")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(cert, key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Injector:
        self._thread.start()
        self._kube.create("mutatingwebhookconfigurations", self._configuration())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._kube.delete("mutatingwebhookconfigurations", self._namespace)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _configuration(self) -> Object:
        url = f"https://127.0.0.1:{self._server.server_address[1]}/"
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
        """Tests are quiet."""
