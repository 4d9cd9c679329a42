"""Runs in the guest: executes commands and stores files that the host sends over HTTP. Uses only the standard library.

    python3 agent.py PORT

POST /run {"argv", "env", "timeout_s"} → {"code", "output"}; POST /start {"name", "argv", "env"} → {"pid"}, with output
in /var/log/NAME.log; PUT and GET of any other path write and read that file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        requested = json.loads(self._body())
        env = {**os.environ, **requested.get("env", {})}
        self._answer(json.dumps(run(requested, env) if self.path == "/run" else start(requested, env)).encode())

    def do_PUT(self) -> None:
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._body())
        path.chmod(0o700)
        self._answer(b"")

    def do_GET(self) -> None:
        try:
            self._answer(Path(self.path).read_bytes())
        except OSError as error:
            self._answer(str(error).encode(), 404)

    def log_message(self, *_: object) -> None:
        """The console shows only the kernel's messages."""

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _answer(self, body: bytes, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def run(requested: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            requested["argv"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            timeout=requested["timeout_s"],
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"code": -1, "output": str(error)}
    return {"code": done.returncode, "output": done.stdout.decode(errors="replace")}


def start(requested: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    with Path(f"/var/log/{requested['name']}.log").open("ab") as log:
        child = subprocess.Popen(
            requested["argv"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
        )
    return {"pid": child.pid}


if __name__ == "__main__":
    ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
