"""Run third-party clients against servers on this machine, each in its own virtual environment.

    python -m tools.clients [NAME ...]

One server has the built-in model, which follows grammars but does not act as an agent. The other server's model follows
a script (devkit/servers/script_server.py). Clients can connect only to loopback.

Their requirements are pinned in requirements/clients/ in separate files, because they conflict with each other. Clients
for Node are in node.py.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from devkit.servers.process import ServerProcess
from tools.clients import node

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements" / "clients"
ENVIRONMENTS = ROOT / "build" / "clients"
CHECKS = ROOT / "tests" / "clients"
TIMEOUT_S = 900
AT_ONCE = 2
"""Number of clients that run concurrently. Most of the time is spent on installation and import."""
# The template of this model supports tools.
SERVER = ("--chat_template", "deepseek-v3.1", "--max_batch_size", "8")
SCRIPT = ("devkit.servers.script_server",)
KEY = "a-key"
"""Headers that the scripted server requires, so that it rejects clients that do not send them."""
NOWHERE = "http://127.0.0.1:9"
OFFLINE = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), NOWHERE),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
    "DO_NOT_TRACK": "1",
}
"""The environment of clients. tests/clients/run.py also restricts Python clients to loopback."""


def main(names: list[str]) -> int:
    known = [*node.names(), *sorted(file.stem for file in REQUIREMENTS.glob("*.txt"))]
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"clients: unknown: {', '.join(unknown)}; known clients: {', '.join(known)}", file=sys.stderr)
        return 2
    names = names or known
    with servers() as urls, ThreadPoolExecutor(AT_ONCE) as pool:
        passed = list(pool.map(lambda name: check(name, urls), names))
    failed = [name for name, ok in zip(names, passed, strict=True) if not ok]
    print(f"{len(names) - len(failed)} passed, {len(failed)} failed")
    if failed:
        print(f"clients: {', '.join(failed)} failed", file=sys.stderr)
    return 1 if failed else 0


@contextmanager
def servers() -> Iterator[tuple[str, ...]]:
    """URLs of the server with the built-in model, of the scripted server, and of a server with default options for the
    examples. At the end, none may hold a request."""
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write(KEY)
        keys.flush()
        keyed = ("--api_key_file", keys.name, "--admin_port", "0")
        with (
            ServerProcess(*SERVER) as built_in,
            ServerProcess(*SERVER, *keyed, module=SCRIPT) as scripted,
            ServerProcess() as plain,
        ):
            yield built_in.url, scripted.url, plain.url
            for server in (built_in, scripted, plain):
                server.wait_until_empty()


def check(name: str, urls: tuple[str, ...]) -> bool:
    """Whether a client's checks against the servers pass."""
    if name in node.names():
        return node.check(name)
    command = [str(environment(name)), str(CHECKS / "run.py"), name.split("-")[0], *urls]
    return subprocess.run(command, timeout=TIMEOUT_S, check=False, env={**os.environ, **OFFLINE}).returncode == 0


def environment(name: str) -> Path:
    """The Python of a virtual environment with exactly the pinned requirements of a client."""
    pinned = REQUIREMENTS / f"{name}.txt"
    directory = ENVIRONMENTS / name
    python, stamp = directory / "bin" / "python", directory / ".requirements"
    want = hashlib.sha256(pinned.read_bytes()).hexdigest()
    if not (stamp.is_file() and stamp.read_text() == want):
        uv = str(ROOT / ".venv" / "bin" / "uv")
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(directory)], check=True)
        sync = [uv, "pip", "sync", "--quiet", "--require-hashes", "--python", str(python), str(pinned)]
        subprocess.run(sync, check=True, timeout=TIMEOUT_S)
        stamp.write_text(want)
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
