"""Clients for Node: installed from the npm registry by their lock files, and checked without a network.

A check is a program of tests/clients/node. This interpreter runs it in a network namespace that has only loopback. It
starts the servers that it needs there. Processes that it leaves behind end with the namespace.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements" / "clients"
ENVIRONMENTS = ROOT / "build" / "clients"
CHECKS = ROOT / "tests" / "clients" / "node"
TIMEOUT_S = 600

_OFFLINE = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
_AS_NOBODY_ELSE = ("--user", "--map-root-user", *_OFFLINE)
"""The same for users other than root."""


class UnavailableError(Exception):
    """A requirement of a check is missing. The message says how to get it."""


def names() -> list[str]:
    """The pinned clients."""
    return sorted(file.parent.name for file in REQUIREMENTS.glob("*/package-lock.json"))


def check(name: str) -> bool:
    """Whether a client's check passes. If it cannot run, the reason goes to standard error."""
    try:
        command = [*_offline(), sys.executable, str(CHECKS / "offline.py"), name.replace("-", "_"), str(install(name))]
    except (UnavailableError, subprocess.SubprocessError) as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        return False
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, timeout=TIMEOUT_S, check=False, env=environment).returncode == 0


def install(name: str) -> Path:
    """The folder of a client's packages, exactly as pinned. Their install scripts do not run.

    Raises UnavailableError without npm or if the registry does not provide them.
    """
    pinned, directory = REQUIREMENTS / name, ENVIRONMENTS / name
    stamp = directory / ".requirements"
    want = hashlib.sha256((pinned / "package-lock.json").read_bytes() + platform.machine().encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == want:
        return directory
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError("npm is missing; install Node 20 or newer, or name the clients to check")
    directory.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    for file in ("package.json", "package-lock.json"):
        shutil.copyfile(pinned / file, directory / file)
    ci = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel", "error"]
    if subprocess.run(
        ci, cwd=directory, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ).returncode:
        raise UnavailableError(f"npm could not install {pinned.relative_to(ROOT)}; its output is above")
    stamp.write_text(want)
    return directory


@cache
def _offline() -> tuple[str, ...]:
    """The command that runs another command in a separate network namespace."""
    for options in (_OFFLINE, _AS_NOBODY_ELSE):
        command = ("unshare", *options, "--")
        try:
            tried = subprocess.run([*command, "true"], capture_output=True, check=False, timeout=TIMEOUT_S)
        except FileNotFoundError:
            break
        if tried.returncode == 0:
            return command
    raise UnavailableError(
        "cannot create a network namespace, without which it might reach the internet; run as root, or allow users to "
        "create namespaces (sysctl kernel.unprivileged_userns_clone=1), with util-linux's unshare"
    )
