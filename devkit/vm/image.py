"""The image of the guest's pods: a separate Debian and the runtime in one layer, written without a container engine."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

RUNTIME_IMAGE, PAUSE_IMAGE = "localhost/ballast-runtime:numa", "localhost/ballast-pause:numa"
COMMAND = """\
#!/bin/sh
exec python3 -m ballast "$@"
"""
ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONPATH": "/opt/ballast",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}
NOT_IN_IT = (
    *("boot", "opt/node", "opt/vm", "usr/bin/containerd*", "usr/bin/ctr", "usr/lib/cni"),
    *("usr/lib/modules", "usr/sbin/runc", "var/cache", "var/lib/apt", "var/lib/dpkg", "var/lib/node"),
)
"""Packages that only the guest needs, not its pods."""
STORE = Path("/var/lib/node/containerd/root")
"""The image store of the guest's containerd."""
UNPACK = """\
set -e
mount -t proc proc "$1/proc"
mount -t tmpfs tmpfs "$1/run"
cat > "$1/run/config.toml" << 'END'
version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri"]
END
touch "$1/run/image.tar"
mount --bind "$2" "$1/run/image.tar"
chroot "$1" containerd --config /run/config.toml --root "$3" --state /run/state --address /run/socket >> "$2.log" 2>&1 &
for _ in $(seq 300); do
  if chroot "$1" ctr -a /run/socket version >> "$2.log" 2>&1; then break; fi
  sleep 0.1
done
chroot "$1" ctr -a /run/socket -n k8s.io images import /run/image.tar >> "$2.log" 2>&1
kill $!
wait $! || true
"""
"""Lets the guest's containerd unpack images on the host, in seconds instead of minutes. Arguments: the guest's files,
the archive and STORE."""
TAR_TIMEOUT_S, UNPACK_TIMEOUT_S = 300, 300


def add_images(tree: Path) -> None:
    """Build the images from the guest's files in `tree`, and add them to its containerd store."""
    shutil.rmtree(tree / STORE.relative_to("/"), ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "images.tar"
        _write(tree, archive)
        own = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private")
        unpack: list[str | Path] = [*own, "sh", "-c", UNPACK, "sh", tree, archive, STORE]
        if subprocess.run(unpack, timeout=UNPACK_TIMEOUT_S, check=False).returncode:
            raise RuntimeError(f"containerd did not import the images:\n{Path(f'{archive}.log').read_text()[-4000:]}")


def _write(tree: Path, archive: Path) -> None:
    """Write a docker archive with two images of one layer."""
    command = tree / "usr" / "local" / "bin" / "ballast"
    command.write_text(COMMAND)
    command.chmod(0o755)
    with tempfile.TemporaryDirectory() as folder:
        layer = Path(folder) / "layer.tar"
        exclude = [f"--exclude=./{path}" for path in NOT_IN_IT]
        subprocess.run(["tar", "-C", tree, *exclude, "-cf", layer, "."], check=True, timeout=TAR_TIMEOUT_S)
        with layer.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        commands = {RUNTIME_IMAGE: ["ballast"], PAUSE_IMAGE: ["sleep", "infinity"]}
        listed = []
        with tarfile.open(archive, "w") as tar:
            tar.add(layer, "layer.tar")
            for image, words in commands.items():
                name = f"{image.partition('/')[2].partition(':')[0]}.json"
                _add(tar, name, _config(words, digest))
                listed.append({"Config": name, "RepoTags": [image], "Layers": ["layer.tar"]})
            _add(tar, "manifest.json", listed)


def _config(command: list[str], layer_digest: str) -> object:
    env = [f"{name}={value}" for name, value in ENV.items()]
    return {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": env, "Entrypoint": command, "User": "10001:10001"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
    }


def _add(tar: tarfile.TarFile, name: str, content: object) -> None:
    written = json.dumps(content).encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(written)
    tar.addfile(entry, BytesIO(written))
