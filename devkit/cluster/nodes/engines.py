"""Real engines for simulated pods. Replaces the kubelet, which starts processes, and the network, which reaches them.

kwok leaves pods with the behaviour "loading" running and not ready. For each such pod of an InferenceService,
`Engines` starts `ballast serve` with the pod's arguments, and marks the pod as ready when the server is. The server
stops when the pod ends.
"""

from __future__ import annotations

import http.client
import ipaddress
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

from ballast_operator.names import ADMIN_PORT
from devkit.cluster.controlplane import ControlPlane
from devkit.cluster.kube import UNANSWERED, Kube, Object
from devkit.cluster.nodes.made_up import BEHAVIOUR
from devkit.cluster.nodes.socks import SocksProxy
from devkit.cluster.server_thread import ServerThread
from devkit.cluster.service.endpoints import SERVICE_NAME
from devkit.cluster.service.live_service import LABEL
from devkit.servers.process import ServerProcess

INTERVAL_S = 0.05
CHUNK_BYTES = 65536
ANSWER_TIMEOUT_S = 120


class Engines(ServerThread):
    """An HTTP proxy that reaches pods by address and Services by address or name.

    `folders`: maps folders that pods mount to folders of this machine. `hosts`: other addresses of this machine.
    """

    def __init__(self, kube: Kube, folders: Mapping[str, Path] | None = None, hosts: tuple[str, ...] = ()) -> None:
        self._kube, self._folders, self._hosts = kube, folders or {}, hosts
        self._running: dict[str, ServerProcess] = {}
        """By pod UID."""
        self._pods: dict[str, Object] = {}
        """Pods that have a server, by UID."""
        self.started: list[ServerProcess] = []
        """All servers, in start order."""
        self._ended = threading.Event()
        self._kubelet = threading.Thread(target=self._run, daemon=True)
        self._socks = SocksProxy(self._find)
        super().__init__(self._handler())

    @property
    def socks_url(self) -> str:
        """URL of a SOCKS proxy that reaches the same addresses."""
        return self._socks.url

    @property
    def num_running(self) -> int:
        """Number of running servers."""
        return len(self._running)

    def start(self) -> None:
        self._kubelet.start()
        self._socks.start()
        super().start()

    def stop(self) -> None:
        self._ended.set()
        self._kubelet.join()
        self._socks.stop()
        super().stop()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            try:
                found = self._kube.list("pods")
            except UNANSWERED:
                continue  # a kubelet leaves its pods unchanged while the API server is away
            pods = {pod["metadata"]["uid"]: pod for pod in found if _is_ours(pod)}
            for uid in self._running.keys() - pods.keys():
                self._end(uid)
            for uid, pod in pods.items():
                if uid not in self._running:
                    self._launch(uid, pod)
                elif not _is_ready(pod) and self._running[uid].has_logged("ready"):
                    self._report_ready(pod)
        for uid in list(self._running):
            self._end(uid)

    def _launch(self, uid: str, pod: Object) -> None:
        server = ServerProcess(*self._options(pod["spec"]["containers"][0]["args"]), until_ready=False)
        server.__enter__()
        self._running[uid], self._pods[uid] = server, pod
        self.started.append(server)

    def _end(self, uid: str) -> None:
        del self._pods[uid]
        server = self._running[uid]
        server.send_signal(signal.SIGTERM)
        server.wait()
        del self._running[uid]

    def _options(self, arguments: list[str]) -> list[str]:
        """A pod's arguments, with free ports and this machine's folders."""
        options = list(arguments[1:])
        for name in ("--port", "--admin_port"):
            options[options.index(name) + 1] = "0"
        for inside, here in self._folders.items():
            options = [str(here) + word[len(inside) :] if word.startswith(inside) else word for word in options]
        return options

    def _report_ready(self, pod: Object) -> None:
        conditions = [
            {**found, "status": "True", "reason": None} if found["type"] in ("Ready", "ContainersReady") else found
            for found in pod["status"]["conditions"]
        ]
        containers = [{**found, "ready": True, "started": True} for found in pod["status"]["containerStatuses"]]
        status = {"conditions": conditions, "containerStatuses": containers}
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        with suppress(*UNANSWERED):  # it was deleted, or the next iteration reports it
            self._kube.merge("pods", name, {"status": status}, namespace, "status")

    def _find(self, host: str, port: int) -> tuple[str, int] | None:
        """The address on this machine that stands for a host and port of the cluster; None if there is none."""
        if host in self._hosts:
            return "127.0.0.1", port
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            name, _, namespace = host.partition(".")
            return self._behind({"metadata.name": name, "metadata.namespace": namespace})
        if address in ipaddress.ip_network(ControlPlane.service_cidr):
            return self._behind({"spec.clusterIP": host})
        for uid, pod in list(self._pods.items()):
            server = self._running.get(uid)
            if pod["status"]["podIP"] == host and server is not None:
                return "127.0.0.1", server.admin_port or 0 if port == ADMIN_PORT else server.port
        return None

    def _behind(self, fields: Mapping[str, str]) -> tuple[str, int] | None:
        """The first ready endpoint of a Service; None if the API server does not answer."""
        with suppress(*UNANSWERED):
            for endpoint in self._endpoints(fields):
                server = self._running.get(endpoint["targetRef"]["uid"])
                if endpoint["conditions"]["ready"] and server is not None:
                    return "127.0.0.1", server.port
        return None

    def _endpoints(self, fields: Mapping[str, str]) -> Iterator[Object]:
        for service in self._kube.list("services", fields=fields):
            name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
            for found in self._kube.list("endpointslices", namespace, {SERVICE_NAME: name}):
                yield from found["endpoints"] or []

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        engines = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._pass_on()

            def do_POST(self) -> None:
                self._pass_on()

            def _pass_on(self) -> None:
                url = urlsplit(self.path)
                found = engines._find(str(url.hostname), url.port or 80)
                if found is None:
                    self.close_connection = True
                    return
                connection = http.client.HTTPConnection(*found, timeout=ANSWER_TIMEOUT_S)
                with suppress(ConnectionError, http.client.HTTPException):  # one end has disconnected
                    self._relay(connection, url.path)
                connection.close()

            def _relay(self, connection: http.client.HTTPConnection, path: str) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                connection.request(self.command, path, body or None, dict(self.headers))
                answer = connection.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "server", "date"):
                        self.send_header(name, value)
                self.end_headers()
                while chunk := answer.read1(CHUNK_BYTES):
                    self.wfile.write(chunk)

            def log_message(self, *_: object) -> None:
                """No log output during tests."""

        return Handler


def _is_ours(pod: Object) -> bool:
    """Whether it is a running engine; a pod that is being deleted still drains."""
    labels, behaviour = pod["metadata"].get("labels", {}), pod["spec"].get("nodeSelector", {}).get(BEHAVIOUR)
    return LABEL in labels and behaviour == "loading" and bool(pod["status"].get("podIP"))


def _is_ready(pod: Object) -> bool:
    return any(found["type"] == "Ready" and found["status"] == "True" for found in pod["status"]["conditions"])
