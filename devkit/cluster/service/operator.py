"""The operator as a process, with exactly the permissions of its installation."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar

import httpx

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Object, documents
from devkit.cluster.process import Child, Process
from devkit.cluster.waiting import wait_for

ROOT = Path(__file__).parents[3]
CRD = ROOT / "manifests/crd/inferenceservices.serving.ballast.dev.yaml"
CRDS = sorted(CRD.parent.glob("*.yaml"))
INSTALLATION = ROOT / "manifests/operator/operator.yaml"

NAMESPACE = "ballast-system"
ACCOUNT = "ballast-operator"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"

LAST_LOOK = "ballast_operator_last_resync_timestamp_seconds"
RBAC = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}


def install(cluster: Cluster) -> None:
    """Install the definitions, the account and its permissions; safe to repeat."""
    cluster.install(*CRDS)
    for document in documents(INSTALLATION):
        if document["kind"] in {"Namespace", "ServiceAccount", *RBAC}:
            cluster.kube.apply(document["kind"].lower() + "s", document)


class OperatorProcess(Process):
    """`ballast-operator run`, from the repository's environment. `probe_proxy` reaches pods and Services that this
    machine cannot reach."""

    fork: ClassVar[Callable[[Sequence[str], Mapping[str, str], IO[bytes]], Child] | None] = None
    """Starts `python -m …` with its output in a log; the pytest configuration sets it to `prefork`."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        probe_proxy: str | None,
        *options: str,
        server: str | None = None,
        account: str = ACCOUNT,
        namespace: str = NAMESPACE,
    ) -> None:
        self._cluster, self._server, self._account = cluster, server, (account, namespace)
        self.name = name
        config = self._take_token()
        argv: list[str | Path] = [
            sys.executable,
            *("-m", "ballast_operator", "run"),
            *("--health-port", "0", "--health-host", "127.0.0.1", "--identity", name),
            *(("--probe-proxy", probe_proxy) if probe_proxy is not None else ()),
            *("--runtime-image", "made.up/runtime:1"),
            *options,
        ]
        self._log_start = 0
        super().__init__(name, argv, cluster.folder, env={"KUBECONFIG": str(config)})

    def start(self) -> None:
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        super().start()

    def _launch(self, log: IO[bytes]) -> Child:
        if OperatorProcess.fork is None:
            return super()._launch(log)
        return OperatorProcess.fork(self.argv, {**os.environ, **(self.env or {})}, log)

    def rotate_token(self) -> None:
        """Give it a new token; return when the API server rejects the previous one, which takes some seconds."""
        token, secret = self._token, self._secret["metadata"]["name"]
        self._take_token()
        self._cluster.kube.delete("secrets", secret, self._account[1])
        wait_for("the old token to be rejected", lambda: not self._cluster.accepts(token))

    def wait_leading(self) -> None:
        wait_for(f"{self.name} to lead", lambda: self.metric("ballast_operator_leading") == 1.0)

    @property
    def health_address(self) -> str:
        """Host and port of its health server, once it listens."""
        return f"127.0.0.1:{self._port()}"

    def wait_looked(self) -> None:
        """Return when it has begun and completed a full resync."""
        self._wait_look_end()  # this resync may have begun earlier
        self._wait_look_end()

    def _wait_look_end(self) -> None:
        before = self.metric(LAST_LOOK)
        wait_for("a look at everything", lambda: self.metric(LAST_LOOK) > before)

    def http(self, path: str) -> httpx.Response:
        """A page of its health server, once it listens."""
        return httpx.get(f"http://{self.health_address}{path}", timeout=60, trust_env=False, verify=False)

    def metric(self, sample: str) -> float:
        """The value of one sample, such as `ballast_operator_leading`; 0 if it is missing."""
        for line in self.http("/metrics").text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        return 0.0

    def _take_token(self) -> Path:
        account, namespace = self._account
        body = {"metadata": {"generateName": f"{self.name}-"}}
        self._secret: Object = self._cluster.kube.create("secrets", body, namespace)
        self._token = self._cluster.token_of(account, namespace, self._secret)
        return self._cluster.kubeconfig_for(self._token, self.name, self._server)

    def _port(self) -> int:
        def listening() -> list[str]:
            self.check()
            return re.findall(r"listening host=\S+ port=(\d+)", self.log_path.read_text()[self._log_start :])

        return int(wait_for(f"{self.name} to listen", listening)[-1])
