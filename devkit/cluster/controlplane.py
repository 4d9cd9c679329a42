"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback, on ports that the kernel picks."""

from __future__ import annotations

from pathlib import Path

from devkit.cluster.binaries import program
from devkit.cluster.kube import Kube
from devkit.cluster.pki import Pki, kubeconfig
from devkit.cluster.process import Process, free_port
from devkit.cluster.waiting import wait_for

START_TIMEOUT_S = 90
GOGC = "300"
"""Heap growth in percent between Go's collections (default 100): saves a fifth of CPU time for 250 MB more memory."""
AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""


class ControlPlane:
    """A cluster without nodes. `kubeconfig` is the administrator's; `kube` a client made from it.

    `address`: the API server's listen address. Either loopback, or the address of a node if pods must reach it.
    """

    service_cidr = "10.96.0.0/16"
    pod_cidr = "10.244.0.0/16"

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        self.folder = folder
        self.address = address
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.pki = Pki(folder / "pki")
        self.port = free_port(address)
        self.server = f"https://{address}:{self.port}"
        self.kubeconfig = self.client_config("admin", "system:masters")
        self.audit_log = folder / "audit.log"
        (folder / "audit-policy.yaml").write_text(AUDIT_POLICY)
        self._etcd, self._etcd_peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.etcd = self._process("etcd", self._etcd_flags())
        self.apiserver = self._process("kube-apiserver", self._apiserver_flags())
        self.controller_manager = self._process("kube-controller-manager", self._controller_manager_flags())
        self.scheduler = self._process("kube-scheduler", self._scheduler_flags())
        self.kube = Kube(self.kubeconfig)

    @property
    def processes(self) -> tuple[Process, ...]:
        return self.scheduler, self.controller_manager, self.apiserver, self.etcd

    def client_config(self, user: str, group: str | None = None) -> Path:
        """A kubeconfig with a client certificate for `user` in `group`."""
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        return kubeconfig(path, self.server, self.pki.ca, self.pki.client(user, group))

    def start(self) -> None:
        """Return when pods can be created in the namespace `default`."""
        self.etcd.start()
        self.apiserver.start()
        self.wait_ready()
        # If the API server's start-up hooks have not created their roles yet, the controller manager exits instead of
        # waiting.
        self.controller_manager.start()
        self.scheduler.start()
        wait_for("the default service account", self._has_default_account, START_TIMEOUT_S)

    def stop(self) -> None:
        self.kube.close()
        for process in self.processes:
            process.kill()  # open watches would delay a graceful stop, and no data outlives the tests

    def wait_ready(self) -> None:
        wait_for("the API server's /readyz", self._is_ready, START_TIMEOUT_S)

    def restart_apiserver(self) -> None:
        """Kill and start the API server on the same port; etcd keeps its data."""
        self.apiserver.kill()
        self.apiserver.start()
        self.wait_ready()

    def _is_ready(self) -> bool:
        self.etcd.check()
        self.apiserver.check()
        return self.kube.is_ready()

    def _has_default_account(self) -> bool:
        self.controller_manager.check()
        self.scheduler.check()
        return self.kube.find("serviceaccounts", "default", "default") is not None

    def _process(self, name: str, flags: dict[str, str | Path]) -> Process:
        words = (f"--{flag}={value}" for flag, value in flags.items())
        return Process(name, [program(name), *words], self.logs, env={"GOGC": GOGC})

    def _etcd_flags(self) -> dict[str, str | Path]:
        return {
            "name": "test",
            "data-dir": self.folder / "etcd",
            "listen-client-urls": self._etcd,
            "advertise-client-urls": self._etcd,
            "listen-peer-urls": self._etcd_peer,
            "initial-advertise-peer-urls": self._etcd_peer,
            "initial-cluster": f"test={self._etcd_peer}",
            "unsafe-no-fsync": "true",
        }

    def _apiserver_flags(self) -> dict[str, str | Path]:
        first_service_ip = self.service_cidr.replace(".0.0/16", ".0.1")
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1")
        cert, key = self.pki.server("kube-apiserver", *names, self.address, first_service_ip)
        kubelet_cert, kubelet_key = self.pki.client("kube-apiserver-kubelet-client", "system:masters")
        proxy_cert, proxy_key = self.pki.front_proxy_client()
        return {
            "etcd-servers": self._etcd,
            "bind-address": self.address,
            "advertise-address": self.address,
            "secure-port": str(self.port),
            "tls-cert-file": cert,
            "tls-private-key-file": key,
            "client-ca-file": self.pki.ca,
            "kubelet-client-certificate": kubelet_cert,
            "kubelet-client-key": kubelet_key,
            "kubelet-certificate-authority": self.pki.ca,
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-key-file": self.pki.service_account_key,
            "service-account-signing-key-file": self.pki.service_account_key,
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "requestheader-client-ca-file": self.pki.front_proxy_ca,
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-username-headers": "X-Remote-User",
            "proxy-client-cert-file": proxy_cert,
            "proxy-client-key-file": proxy_key,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            "service-cluster-ip-range": self.service_cidr,
            "audit-policy-file": self.folder / "audit-policy.yaml",
            "audit-log-path": self.audit_log,
            "audit-log-mode": "blocking",
            "profiling": "false",
            # Endpoint objects with loopback addresses are rejected, and no client here uses the API server's Service.
            **({"endpoint-reconciler-type": "none"} if self.address.startswith("127.") else {}),
        }

    def _controller_manager_flags(self) -> dict[str, str | Path]:
        config = self.client_config("system:kube-controller-manager")
        return {
            **self._component_flags(config),
            "client-ca-file": self.pki.ca,
            "root-ca-file": self.pki.ca,
            "service-account-private-key-file": self.pki.service_account_key,
            "use-service-account-credentials": "true",
            "allocate-node-cidrs": "true",
            "cluster-cidr": self.pod_cidr,
            "service-cluster-ip-range": self.service_cidr,
            # On a busy machine simulated nodes renew their leases late. Their pods would then never become ready again.
            "node-monitor-grace-period": "600s",
            "horizontal-pod-autoscaler-sync-period": "2s",
        }

    def _scheduler_flags(self) -> dict[str, str | Path]:
        return self._component_flags(self.client_config("system:kube-scheduler"))

    def _component_flags(self, config: Path) -> dict[str, str | Path]:
        return {
            "kubeconfig": config,
            "authentication-kubeconfig": config,
            "authorization-kubeconfig": config,
            "bind-address": "127.0.0.1",
            "secure-port": str(free_port()),
            "leader-elect": "false",
            # With the default of 20 requests per second, 200 concurrent services would wait for the limit, not the
            # operator.
            "kube-api-qps": "500",
            "kube-api-burst": "1000",
        }
