"""An HTTP proxy that answers for all simulated pods and Services: the pods have addresses but no processes.

A Service answers while at least one of its endpoints is ready, as through kube-proxy.
"""

from __future__ import annotations

import copy
import ipaddress
import json
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from devkit.cluster.controlplane import ControlPlane
from devkit.cluster.kube import UNANSWERED, Kube
from devkit.cluster.server_thread import ServerThread
from devkit.cluster.service.endpoints import ready_services

PINNED: dict[str, Any] = {
    "cpus": "1",
    "shared_core_cpus": "",
    "memory_nodes": "0",
    "gpu_node": None,
    "gpus": [],
    "pinned": True,
    "pinned_reason": "each of 1 threads is pinned to its own CPU",
    "share_local": 1.0,
    "mempolicy_available": False,
    "nodes": [{"node": 0, "cpus": "0-3", "usable_cores": 1, "memory_allowed": True, "threads": 1}],
    "threads": [{"name": "ballast-cpu-0", "cpus": "1"}],
    "age_s": 0.0,
}

STATE: dict[str, Any] = {"state": "ready", "numbers": {"batch_slots": 4, "capacity_tokens": 4096}}


class PodAnswers(ServerThread):
    """Answers with `pages`, which may change at any time: path → status and body. None closes the connection; a text
    body is sent unchanged."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.pages: dict[str, tuple[int, Any] | None] = {
            "/readyz": (200, {"status": "ready"}),
            "/debug/numa": (200, copy.deepcopy(PINNED)),
            "/debug/state": (200, copy.deepcopy(STATE)),
        }
        self.requested: list[str] = []
        """Requested URLs, in order."""
        super().__init__(self._handler())

    def _is_reachable(self, host: str) -> bool:
        """Whether it is a pod, or a Service with a ready endpoint."""
        if ipaddress.ip_address(host) not in ipaddress.ip_network(ControlPlane.service_cidr):
            return True
        try:
            found = self._kube.list("services", fields={"spec.clusterIP": host})
            names = ((item["metadata"]["namespace"], item["metadata"]["name"]) for item in found)
            return any(ready_services(self._kube, *name) for name in names)
        except UNANSWERED:
            return False

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answers.requested.append(self.path)
                url = urlsplit(self.path)
                page = answers.pages.get(url.path, (404, {}))
                if page is None or not answers._is_reachable(str(url.hostname)):
                    self.close_connection = True
                    return
                body = (page[1] if isinstance(page[1], str) else json.dumps(page[1])).encode()
                self.send_response(page[0])
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(ConnectionError):  # the client has disconnected
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """No log output during tests."""

        return Handler
