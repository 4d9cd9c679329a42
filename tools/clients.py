"""Runs third-party clients against one server with the built-in model, each in a virtual environment of its own.

    python tools/clients.py [NAME ...]

Their requirements are pinned in requirements/clients/, since they conflict with each other.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.servers.process import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements" / "clients"
ENVIRONMENTS = ROOT / "build" / "clients"
CHECKS = ROOT / "tests" / "clients"
TIMEOUT_S = 900
AT_ONCE = 2
"""Most of their time goes into being installed and imported."""
# Its template writes tools.
SERVER = ("--chat_template", "deepseek-v3.1", "--max_batch_size", "8")


def main(names: list[str]) -> int:
    names = names or sorted(file.stem for file in REQUIREMENTS.glob("*.txt"))
    with ServerProcess(*SERVER) as server, ThreadPoolExecutor(AT_ONCE) as pool:
        passed = list(pool.map(lambda name: check(name, server.url), names))
        server.wait_until_empty()
    failed = [name for name, ok in zip(names, passed, strict=True) if not ok]
    print(f"{len(names) - len(failed)} passed, {len(failed)} failed")
    if failed:
        print(f"clients: {', '.join(failed)} failed", file=sys.stderr)
    return 1 if failed else 0


def check(name: str, url: str) -> bool:
    """Whether a client's checks against the server pass."""
    script = CHECKS / f"check_{name.split('-')[0]}.py"
    return subprocess.run([str(environment(name)), str(script), url], timeout=TIMEOUT_S, check=False).returncode == 0


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
