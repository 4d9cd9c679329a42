"""The guest's disk, kernel and initial file system, built from Debian's packages and the project's wheel.

    python -m devkit.vm.disk

Writes the boot files to build/numa and ~/.cache/ballast/numa-vm, from the wheel in build/dist.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from devkit.cluster.binaries import ROOT, program
from devkit.vm.image import add_images

SUITE = "bookworm"
PACKAGES = ("python3", "ca-certificates", "kmod", "iproute2", "containerd", "containernetworking-plugins")
"""Packages of the guest."""
NODE_PROGRAMS = ("kubelet", "device-plugin")
"""Kubernetes programs of the guest, in /opt/node."""
COMMANDS = ("qemu-system-x86_64", "debootstrap", "mkfs.ext4", "apt-get", "dpkg-deb", "ip", "iptables", "unshare")
INSTALL = "apt-get install --no-install-recommends qemu-system-x86 debootstrap e2fsprogs iproute2 iptables"
DISK_MODULES = ("virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_blk")
"""Kernel modules for the disk, in load order."""
DISK_BYTES = 6 * 2**30
"""Size of the sparse disk file; about 2 GB are written."""
STEP_TIMEOUT_S = 900
HERE = Path(__file__).parent
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ballast" / "numa-vm"
FOLDER = ROOT / "build" / "numa"

FIRST_INIT = """\
#!/bin/busybox sh
/bin/busybox mkdir -p /dev /root
/bin/busybox mount -t devtmpfs dev /dev
for module in {modules}; do /bin/busybox insmod /modules/$module.ko; done
while [ ! -b /dev/vda ]; do /bin/busybox usleep 50000; done
/bin/busybox mount -t ext4 /dev/vda /root
exec /bin/busybox switch_root /root /opt/vm/init.sh
"""


@dataclass(frozen=True, slots=True)
class BootFiles:
    """The files that a machine boots from."""

    kernel: Path
    initramfs: Path
    disk: Path


def missing_here() -> list[str]:
    """Requirements for building and booting a disk that this machine does not meet; empty if there are none."""
    missing = [] if os.geteuid() == 0 else ["root: file systems and namespaces are made"]
    missing += [f"the command {name}" for name in COMMANDS if shutil.which(name) is None]
    if not Path("/dev/net/tun").exists():
        missing.append("/dev/net/tun: the guest's network")
    return [*missing, f"(on Debian: {INSTALL})"] if missing else []


def boot_files() -> BootFiles:
    """The paths that build() writes to."""
    return BootFiles(KEPT / "kernel" / "vmlinuz", KEPT / "kernel" / "initramfs", FOLDER / "disk.img")


def build(wheel: Path) -> None:
    """Write the boot files; Debian's part is cached in ~/.cache/ballast."""
    files, tree = boot_files(), KEPT / "debian"
    complete, contents = KEPT / "complete", " ".join((SUITE, *PACKAGES))
    if not complete.exists() or complete.read_text() != contents:
        shutil.rmtree(KEPT, ignore_errors=True)
        _say("Debian's packages")
        _debian(tree)
        _kernel(KEPT / "kernel", tree)
        complete.write_text(contents)
    _say("the disk")
    _project(tree, wheel)
    _say("the images of its pods")
    add_images(tree)
    FOLDER.mkdir(parents=True, exist_ok=True)
    files.disk.unlink(missing_ok=True)
    with files.disk.open("wb") as file:
        file.truncate(DISK_BYTES)
    _run("mkfs.ext4", "-q", "-O", "^has_journal", "-d", tree, files.disk)


def _debian(tree: Path) -> None:
    tree.mkdir(parents=True)
    _run("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, tree)
    for part in ("usr/share/doc", "usr/share/locale", "usr/share/man", "var/cache/apt", "var/lib/apt/lists"):
        shutil.rmtree(tree / part, ignore_errors=True)


def _kernel(folder: Path, tree: Path) -> None:
    folder.mkdir(parents=True)
    shown = _run("apt-cache", "depends", "linux-image-cloud-amd64").splitlines()
    names = [line.split()[-1] for line in shown if "Depends: linux-image-" in line]
    _run("apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", names[0], "busybox-static", cwd=folder)
    for package in folder.glob("*.deb"):
        _run("dpkg-deb", "-x", package, folder / "packages")
        package.unlink()
    packages = folder / "packages"
    next((packages / "boot").glob("vmlinuz-*")).rename(folder / "vmlinuz")
    shutil.copytree(packages / "lib" / "modules", tree / "lib" / "modules")
    (modules,) = (tree / "lib" / "modules").iterdir()
    _run("chroot", tree, "/sbin/depmod", modules.name)
    first = folder / "first"
    (first / "modules").mkdir(parents=True)
    (first / "bin").mkdir()
    busybox = packages / "bin" / "busybox"
    shutil.copy(busybox, first / "bin" / "busybox")
    for name in DISK_MODULES:
        shutil.copy(next(modules.rglob(f"{name}.ko")), first / "modules")
    (first / "init").write_text(FIRST_INIT.format(modules=" ".join(DISK_MODULES)))
    (first / "init").chmod(0o755)
    archive = f"cd {first} && {busybox} find . | {busybox} cpio -o -H newc > {folder / 'initramfs'}"
    _run("sh", "-c", archive)
    shutil.rmtree(packages)


def _project(tree: Path, wheel: Path) -> None:
    for part in ("ballast", "node", "vm"):
        shutil.rmtree(tree / "opt" / part, ignore_errors=True)
    install: list[str | Path] = [
        ROOT / ".venv/bin/uv",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--compile-bytecode",
        "--target",
        tree / "opt" / "ballast",
    ]
    _run(*install, "--require-hashes", "-r", ROOT / "requirements" / "cpu.txt")
    _run(*install, wheel)
    (tree / "opt" / "vm").mkdir()
    for name in ("agent.py", "init.sh"):
        shutil.copy(HERE / name, tree / "opt" / "vm")
    (tree / "opt" / "vm" / "init.sh").chmod(0o755)
    (tree / "opt" / "node").mkdir()
    for name in NODE_PROGRAMS:
        shutil.copy(program(name), tree / "opt" / "node", follow_symlinks=False)
    shutil.copy(program(NODE_PROGRAMS[0]).resolve(), tree / "opt" / "node")


def _run(*argv: str | Path, cwd: Path = ROOT) -> str:
    words = [str(word) for word in argv]
    done = subprocess.run(words, capture_output=True, text=True, timeout=STEP_TIMEOUT_S, cwd=cwd, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def _say(what: str) -> None:
    print(f"         {what}", flush=True)


def main() -> None:
    """Write the boot files, or list what is missing for them."""
    if missing := missing_here():
        sys.exit("the machine with two NUMA nodes cannot run here; missing:\n  " + "\n  ".join(missing))
    (wheel,) = (ROOT / "build" / "dist").glob("*.whl")
    build(wheel)


if __name__ == "__main__":
    main()
