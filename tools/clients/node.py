"""Clients that run on Node: installed from the npm registry as their lock files say, and checked without a network.

A check is a program of tests/clients/node, run by this interpreter in a network of its own that has loopback alone. It
starts the servers that it needs there. What it leaves running ends with it.
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
"""The same without being root."""


class UnavailableError(Exception):
    """What a check needs is not there; says how to get it."""


def names() -> list[str]:
    """The clients that are pinned."""
    return sorted(file.parent.name for file in REQUIREMENTS.glob("*/package-lock.json"))


def check(name: str) -> bool:
    """Whether a client's check passes. Says on standard error why it cannot be tried."""
    try:
        command = [*_offline(), sys.executable, str(CHECKS / "offline.py"), name.replace("-", "_"), str(install(name))]
    except (UnavailableError, subprocess.SubprocessError) as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        return False
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    return subprocess.run(command, timeout=TIMEOUT_S, check=False, env=environment).returncode == 0


def install(name: str) -> Path:
    """The folder of a client's packages, exactly as pinned. No script of theirs is run.

    Raises UnavailableError without npm and where the registry does not give them.
    """
    pinned, directory = REQUIREMENTS / name, ENVIRONMENTS / name
    stamp = directory / ".requirements"
    want = hashlib.sha256((pinned / "package-lock.json").read_bytes() + platform.machine().encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == want:
        return directory
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError("npm is not there; install Node 20 or newer, or name the clients to be checked")
    directory.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    for file in ("package.json", "package-lock.json"):
        shutil.copyfile(pinned / file, directory / file)
    ci = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel", "error"]
    if subprocess.run(
        ci, cwd=directory, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ).returncode:
        raise UnavailableError(f"npm could not install {pinned.relative_to(ROOT)}; its lines are above")
    stamp.write_text(want)
    return directory


@cache
def _offline() -> tuple[str, ...]:
    """The command that runs another one in a network of its own."""
    for options in (_OFFLINE, _AS_NOBODY_ELSE):
        command = ("unshare", *options, "--")
        try:
            tried = subprocess.run([*command, "true"], capture_output=True, check=False, timeout=TIMEOUT_S)
        except FileNotFoundError:
            break
        if tried.returncode == 0:
            return command
    raise UnavailableError(
        "no network of its own can be made for it, and with another it might reach the internet; be root, or let users "
        "make namespaces (sysctl kernel.unprivileged_userns_clone=1), with util-linux's unshare"
    )
