"""A real node: kubelet with the static CPU manager, containerd, runc and CNI, in separate namespaces.

The tests run in their own namespaces (tools/node-namespaces.sh), so changes to network, mounts and /var/lib/kubelet do
not affect the machine. The kubelet would set kernel parameters of the whole machine; it gets plain files instead.
Further nodes share network and CPUs with the first; everything else is their own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from ipaddress import IPv4Address
from pathlib import Path

from devkit.cluster.binaries import program
from devkit.cluster.controlplane import ControlPlane
from devkit.cluster.nodes.settings import (
    CNI_FOLDER,
    MEMORY_EVICTION_MIB,
    cni_config,
    containerd_config,
    kubelet_config,
    proxy_config,
)
from devkit.cluster.pki import kubeconfig
from devkit.cluster.process import Process
from devkit.cluster.waiting import wait_for

ADDRESS = "10.55.0.1"
"""Address of the first node; further nodes use the addresses after it."""
MACHINE_NETWORK = "BALLAST_MACHINE_NETWORK"
"""Variable in which tools/e2e.sh passes the machine's own network namespace; the tests must not run in it."""
PAUSE_IMAGE = "localhost/ballast-pause:e2e"
COMMANDS = ("containerd", "ctr", "runc", "iptables", "conntrack", "ip", "unshare", "buildah", "debootstrap")
PACKAGES = "containerd runc containernetworking-plugins iptables conntrack iproute2 buildah debootstrap"
CGROUPS = Path("/sys/fs/cgroup")
KUBELET_FOLDER = Path("/var/lib/kubelet")
COMMAND_TIMEOUT_S = 120
IMPORT_TIMEOUT_S = 1200
"""An image with CUDA's libraries is written twice: packed and unpacked."""
READY_TIMEOUT_S = 120
CPU_RESERVED_MILLIS = 500
"""Reserved for the system; the static CPU manager rounds it up to one CPU, which is never exclusive."""
MEMORY_RESERVED_MIB = 924


def missing_here() -> list[str]:
    """Requirements for a node that this machine does not meet; empty if it can run one."""
    missing = []
    if os.geteuid() != 0:
        missing.append("root: namespaces, mounts and cgroups are made")
    missing += [f"the command {name}" for name in COMMANDS if shutil.which(name) is None]
    if not (CNI_FOLDER / "bridge").exists():
        missing.append(f"the CNI plugins in {CNI_FOLDER}")
    if missing:
        missing.append(f"(on Debian and Ubuntu: apt-get install --no-install-recommends {PACKAGES})")
    if (os.cpu_count() or 1) < 2:
        missing.append("two CPUs: one stays shared, one becomes exclusive")
    return missing


class Node:
    """The node `node-<number>`; nodes and their control plane are in the caller's namespaces."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        if os.environ.get(MACHINE_NETWORK) in (None, str(Path("/proc/self/ns/net").readlink())):
            raise RuntimeError("a node requires separate namespaces: run the tests with tools/e2e.sh")
        self.folder = folder
        self.name = f"node-{number}"
        self.address = str(IPv4Address(ADDRESS) + number)
        self.logs = folder / "logs"
        for part in ("logs", "var-lib-kubelet", "kernel", "cni", "containerd", "pod-logs"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        self._number = number
        self._socket = folder / "containerd" / "containerd.sock"
        self._processes: list[Process] = []
        self._mounts: Process | None = None
        """Process that holds the mounts of a further node."""

    def make_network(self) -> None:
        """First node only: give this namespace the node's address, and the kubelet its folders."""
        KUBELET_FOLDER.mkdir(parents=True, exist_ok=True)
        _run("mount", "--make-rshared", "/")
        _run("mount", "--bind", self.folder / "var-lib-kubelet", KUBELET_FOLDER)
        kernel = {
            "vm/overcommit_memory": "1",
            "vm/panic_on_oom": "0",
            "kernel/panic": "10",
            "kernel/panic_on_oops": "1",
        }
        for parameter, value in kernel.items():
            stand_in = self.folder / "kernel" / parameter.replace("/", "-")
            stand_in.write_text(value + "\n")
            _run("mount", "--bind", stand_in, f"/proc/sys/{parameter}")
        for command in (
            "ip link set lo up",
            "ip link add node0 type veth peer name node1",
            f"ip addr add {self.address}/24 dev node0",
            "ip link set node0 up",
            "ip link set node1 up",
            "ip route add default via 10.55.0.254 dev node0",
            "sysctl -qw net.ipv4.ip_forward=1",
        ):
            _run(*command.split())

    def join_network(self) -> None:
        """Add an address to the first node's network, and mount a /var/lib/kubelet that only this node's processes see:
        a kubelet clears its device plugin folder, whose path is fixed."""
        _run("ip", "addr", "add", f"{self.address}/24", "dev", "node0")
        # Unmounts of the first node apply here too; mounts made here are not visible there.
        self._mounts = self._spawn("mounts", "unshare", "--mount", "--propagation", "slave", "sleep", "infinity")
        ours, own = (Path(f"/proc/{pid}/ns/mnt") for pid in ("self", self._mounts.pid))
        wait_for("mounts of its own", lambda: ours.readlink() != own.readlink())
        _run(*self._entering(), "mount", "--make-rshared", "/")
        _run(*self._entering(), "mount", "--bind", self.folder / "var-lib-kubelet", KUBELET_FOLDER)
        for hierarchy in _hierarchies():
            top = hierarchy / self.name
            top.mkdir(exist_ok=True)
            for of_the_machine in ("cpuset.cpus", "cpuset.mems"):
                if (hierarchy / of_the_machine).exists():
                    (top / of_the_machine).write_text((hierarchy / of_the_machine).read_text())

    def start_containerd(self, images: list[Path]) -> None:
        """Start it and load these docker archives."""
        config = self.folder / "containerd" / "config.toml"
        config.write_text(containerd_config(self.folder, PAUSE_IMAGE))
        (self.folder / "cni" / "10-bridge.conflist").write_text(json.dumps(cni_config(self.folder, self._number)))
        self._spawn("containerd", "containerd", "--config", config)
        wait_for("containerd", lambda: self.ctr("version", check=False))
        for image in images:
            self.ctr("images", "import", image, timeout_s=IMPORT_TIMEOUT_S)

    def ctr(self, *argv: str | Path, check: bool = True, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run ctr in the kubelet's containerd namespace."""
        return _run("ctr", "-a", self._socket, "-n", "k8s.io", *argv, check=check, timeout_s=timeout_s)

    def join(self, control_plane: ControlPlane) -> None:
        """Start the kubelet and kube-proxy; return when the node is Ready."""
        config = self.folder / "kubelet.json"
        server = control_plane.pki.server(f"kubelet-server-{self._number}", self.name, self.address)
        managers = {
            "failCgroupV1": False,
            "cgroupRoot": f"/{self.name}" if self._number else "/",
            "kubeReserved": {"cpu": f"{CPU_RESERVED_MILLIS}m", "memory": f"{MEMORY_RESERVED_MIB}Mi"},
            "reservedMemory": [{"numaNode": 0, "limits": {"memory": f"{MEMORY_RESERVED_MIB + MEMORY_EVICTION_MIB}Mi"}}],
        }
        config.write_text(json.dumps(kubelet_config(control_plane, self.folder, server, self.address, managers)))
        credentials = kubeconfig(
            self.folder / "kubelet.kubeconfig",
            control_plane.server,
            control_plane.pki.ca,
            control_plane.pki.client(f"system:node:{self.name}", "system:nodes"),
        )
        self._spawn(
            "kubelet",
            program("kubelet"),
            f"--config={config}",
            f"--kubeconfig={credentials}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
        )
        wait_for(f"node {self.name} to be Ready", lambda: self._is_ready(control_plane), READY_TIMEOUT_S)
        if self._number:
            return
        proxy = self.folder / "kube-proxy.json"
        proxy.write_text(json.dumps(proxy_config(control_plane, self.name, self.address)))
        self._spawn("kube-proxy", program("kube-proxy"), f"--config={proxy}")

    def add_devices(self, control_plane: ControlPlane, resource: str = "nvidia.com/gpu", count: int = 1) -> None:
        """Advertise simulated devices on NUMA node 0; return when they are allocatable."""
        self._spawn("device-plugin", program("device-plugin"), f"-resource={resource}", f"-count={count}")

        def offered() -> bool:
            allocatable = control_plane.kube.get("nodes", self.name)["status"]["allocatable"]
            return bool(allocatable.get(resource) == str(count))

        wait_for(f"{count} x {resource}", offered)

    def stop(self) -> None:
        """Stop all containers and processes, and undo the changes to the machine."""
        for process in reversed([p for p in self._processes if p.name not in ("containerd", "mounts")]):
            process.stop()
        if self._socket.exists():
            self._end_containers()
        for process in reversed(self._processes):
            process.stop()
        _unmount_below(self.folder)
        for hierarchy in _hierarchies():
            _remove_cgroups(hierarchy / (self.name if self._number else "kubepods"))

    def _end_containers(self) -> None:
        for task in self.ctr("tasks", "ls", "-q", check=False).split():
            self.ctr("tasks", "kill", "-s", "KILL", task, check=False)
        wait_for("containers to end", lambda: not self._running_tasks())
        for task in self.ctr("tasks", "ls", "-q", check=False).split():
            self.ctr("tasks", "rm", "-f", task, check=False)
        for container in self.ctr("containers", "ls", "-q", check=False).split():
            self.ctr("containers", "rm", container, check=False)

    def _running_tasks(self) -> list[str]:
        lines = self.ctr("tasks", "ls", check=False).splitlines()[1:]
        return [line for line in lines if "RUNNING" in line]

    def _spawn(self, name: str, *argv: str | Path) -> Process:
        process = Process(name, (*self._entering(), *argv), self.logs)
        process.start()
        self._processes.append(process)
        return process

    def _entering(self) -> tuple[str, ...]:
        """Command prefix that enters this node's mount namespace."""
        return () if self._mounts is None else ("nsenter", f"--mount=/proc/{self._mounts.pid}/ns/mnt", "--")

    def _is_ready(self, control_plane: ControlPlane) -> bool:
        for process in self._processes:
            process.check()
        node = control_plane.kube.find("nodes", self.name)
        conditions = (node or {}).get("status", {}).get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _run(*argv: str | Path, check: bool = True, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    words = [str(word) for word in argv]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}{done.stdout}")
    return done.stdout


def _hierarchies() -> list[Path]:
    """The roots of the machine's control groups: one per controller in version 1, a single one in version 2."""
    return [CGROUPS] if (CGROUPS / "cgroup.controllers").exists() else list(CGROUPS.iterdir())


def _unmount_below(folder: Path) -> None:
    """Unmount the mounts that killed containers leave behind; they would prevent removing the folder."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for path in reversed(mounted):
        if Path(path).is_relative_to(folder):
            _run("umount", "--lazy", path, check=False)


def _remove_cgroups(top: Path) -> None:
    if top.is_dir():
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                Path(folder).rmdir()
            except OSError:
                return  # a process in it is still ending; the next run reuses the folder
