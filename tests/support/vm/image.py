"""The image of the guest's pods: its own Debian and the runtime in one layer, written without a container engine."""

from __future__ import annotations

import hashlib
import json
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
    *("boot", "opt/images", "opt/node", "opt/vm", "usr/bin/containerd*", "usr/bin/ctr", "usr/lib/cni"),
    *("usr/lib/modules", "usr/sbin/runc", "var/cache", "var/lib/apt", "var/lib/dpkg"),
)
"""What the guest needs and its pods do not."""
TAR_TIMEOUT_S = 300


def write_image(tree: Path, archive: Path) -> None:
    """A docker archive with two images of one layer, from the guest's files in `tree`."""
    command = tree / "usr" / "local" / "bin" / "ballast"
    command.write_text(COMMAND)
    command.chmod(0o755)
    archive.parent.mkdir(exist_ok=True)
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
