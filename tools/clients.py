"""Runs other people's clients against a server on the built-in model, each in a virtual environment of its own.

    python tools/clients.py [NAME ...]

Their requirements are pinned in requirements/clients/, because they exclude each other.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from ballast.testing.server_process import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements" / "clients"
ENVIRONMENTS = ROOT / "build" / "clients"
CHECKS = ROOT / "tests" / "clients"
TIMEOUT_S = 300
# Its template writes tools.
SERVER = ("--chat_template", "deepseek-v3.1", "--max_batch_size", "8")


def main(names: list[str]) -> int:
    failed = []
    for name in names or sorted(file.stem for file in REQUIREMENTS.glob("*.txt")):
        python = environment(name)
        check = CHECKS / f"check_{name.split('-')[0]}.py"
        with ServerProcess(*SERVER) as server:
            ended = subprocess.run([str(python), str(check), server.url], timeout=TIMEOUT_S, check=False)
            server.wait_until_empty()
        if ended.returncode:
            failed.append(name)
    if failed:
        print(f"clients: {', '.join(failed)} failed", file=sys.stderr)
    return 1 if failed else 0


def environment(name: str) -> Path:
    """The Python of a virtual environment that holds exactly what is pinned for a client."""
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
