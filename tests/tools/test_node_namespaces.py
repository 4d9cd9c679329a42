"""tools/node-namespaces.sh: files that a node writes to the machine's folders disappear with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools/node-namespaces.sh"
LEFT = (
    "/run/containerd/s-of-a-test",
    "/run/netns/cni-of-a-test",
    "/var/lib/cni/of-a-test",
    "/var/lib/kubelet/pki-of-a-test",
    "/var/log/containers/of-a-test",
)


def can_unshare() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "--net", "--mount", "true"], check=False).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="creating namespaces requires root")
def test_files_that_a_node_writes_to_host_folders_are_removed_with_it() -> None:
    folders = [Path(path).parent for path in LEFT]
    before = {folder: sorted(folder.iterdir()) if folder.exists() else None for folder in folders}
    write = f"mkdir {' '.join(LEFT)}; ls -d {' '.join(LEFT)}; readlink /proc/self/ns/net; exit 7"
    done = subprocess.run([SCRIPT, "sh", "-c", write], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 7, done.stderr
    *written, network = done.stdout.split()
    assert written == list(LEFT)
    assert network != str(Path("/proc/self/ns/net").readlink())
    assert {folder: sorted(folder.iterdir()) if folder.exists() else None for folder in folders} == before
