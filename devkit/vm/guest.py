"""An emulated machine (QEMU without KVM) with several NUMA nodes, on a network that only this machine sees."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from devkit.cluster.process import Process
from devkit.cluster.waiting import wait_for
from devkit.vm.disk import BootFiles

HOST, ADDRESS = "10.56.0.1", "10.56.0.2"
TAP = "ballast0"
AGENT_PORT = 7000
NODES, MIB_PER_NODE = 2, 2048
BOOT_TIMEOUT_S = 180
PYTHON_ENV = {"PYTHONPATH": "/opt/ballast", "PYTHONDONTWRITEBYTECODE": "1"}


class Guest:
    """Two nodes with some CPUs each. Changes to the disk are discarded when it stops."""

    def __init__(self, files: BootFiles, logs: Path, cpus_per_node: int) -> None:
        self.console = logs / "qemu.log"
        self._process = Process("qemu", _qemu(files, cpus_per_node), logs)

    def start(self) -> None:
        """Return when it accepts commands. The tap device is created in the caller's network namespace."""
        for command in (
            "ip link set lo up",
            f"ip tuntap add dev {TAP} mode tap",
            f"ip addr add {HOST}/24 dev {TAP}",
            f"ip link set {TAP} up",
        ):
            subprocess.run(command.split(), check=True, timeout=30)
        self._process.start()
        wait_for("the guest's agent", self._answers, BOOT_TIMEOUT_S, interval_s=0.5)

    def stop(self) -> None:
        self._process.kill()
        subprocess.run(["ip", "link", "del", TAP], check=False, timeout=30)

    def run(self, *argv: str, timeout_s: float = 300, check: bool = True, env: Mapping[str, str] | None = None) -> str:
        """Run a command and return its output. Raises RuntimeError if it fails, unless `check` is false."""
        requested = {"argv": argv, "timeout_s": timeout_s, "env": {**PYTHON_ENV, **(env or {})}}
        done = json.loads(self._http("POST", "/run", json.dumps(requested).encode(), timeout_s + 30))
        if check and done["code"]:
            raise RuntimeError(f"in the guest, {' '.join(argv)} ended with {done['code']}:\n{done['output']}")
        return str(done["output"])

    def start_process(self, name: str, argv: Sequence[str]) -> int:
        """Start a program in the background, with output to `log(name)`. Returns its process id in the guest."""
        requested = {"name": name, "argv": argv, "env": PYTHON_ENV}
        return int(json.loads(self._http("POST", "/start", json.dumps(requested).encode()))["pid"])

    def is_running(self, pid: int) -> bool:
        return bool(self.run("sh", "-c", f"grep -s '^State:.[^Z]' /proc/{pid}/status || true"))

    def end_process(self, pid: int) -> None:
        """Kill the process; return when it is gone."""
        self.run("sh", "-c", f"kill -KILL {pid} || true")
        wait_for(f"process {pid} to end", lambda: not self.is_running(pid), 30, interval_s=0.5)

    def log(self, name: str) -> str:
        return self.read(f"/var/log/{name}.log")

    def read(self, path: str) -> str:
        return self._http("GET", path).decode(errors="replace")

    def write(self, path: str, content: bytes) -> None:
        self._http("PUT", path, content)

    def _answers(self) -> bool:
        self._process.check()
        try:
            return bool(self.run("true", timeout_s=20) == "")
        except (OSError, urllib.error.URLError):
            return False

    def _http(self, method: str, path: str, body: bytes | None = None, timeout_s: float = 120) -> bytes:
        request = urllib.request.Request(f"http://{ADDRESS}:{AGENT_PORT}{path}", body, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout_s) as answer:
            content: bytes = answer.read()
            return content


def _qemu(files: BootFiles, cpus_per_node: int) -> list[str | Path]:
    argv: list[str | Path] = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-nographic"]
    argv += ["-no-reboot", "-m", str(NODES * MIB_PER_NODE)]
    argv += ["-smp", f"{NODES * cpus_per_node},sockets={NODES},cores={cpus_per_node},threads=1"]
    for node in range(NODES):
        first = node * cpus_per_node
        argv += ["-object", f"memory-backend-ram,id=m{node},size={MIB_PER_NODE}M"]
        argv += ["-numa", f"node,nodeid={node},memdev=m{node},cpus={first}-{first + cpus_per_node - 1}"]
    argv += ["-numa", "dist,src=0,dst=1,val=21"]
    argv += ["-drive", f"file={files.disk},format=raw,if=virtio,snapshot=on"]
    argv += ["-netdev", f"tap,id=net0,ifname={TAP},script=no,downscript=no", "-device", "virtio-net-pci,netdev=net0"]
    boot = f"console=ttyS0 quiet panic=-1 net.ifnames=0 GUEST_ADDRESS={ADDRESS}/24 GUEST_GATEWAY={HOST}"
    boot += f" GUEST_PORT={AGENT_PORT}"
    return [*argv, "-kernel", files.kernel, "-initrd", files.initramfs, "-append", boot]
