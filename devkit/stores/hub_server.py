"""A model hub on loopback: listings and files of repositories, with redirects to a second host, ranges and faults.

It implements the APIs of Hugging Face and ModelScope.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote

from ballast.tiny import BUILT_IN

COMMIT = "1234567890abcdef1234567890abcdef12345678"
BUILT_IN_NAME = "org/tiny:Q8_0"
"""The name by which `built_in_files` are pulled."""


def built_in_files() -> dict[str, bytes]:
    """The built-in model as a repository: weights, and the files that belong to them."""
    files = {f"tiny-{BUILT_IN_NAME.partition(':')[2]}.gguf": BUILT_IN.gguf.read_bytes()}
    return files | {file.name: file.read_bytes() for file in BUILT_IN.config_dir.iterdir()}


class HubServer:
    """Serves `files` as the repository `org/tiny`, and records requests."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.token: str | None = None
        self.answer: dict[str, Any] = {}
        """Replaces parts of the listing."""
        self.statuses: list[int] = []
        """Status codes of the next replies; later replies succeed."""
        self.headers: dict[str, str] = {}
        """Headers of those replies."""
        self.raw: bytes | None = None
        """Replaces the bytes of the listing."""
        self.redirect: str | None = None
        """The redirect target for every file."""
        self.takes_ranges = True
        self.range_status = 206
        self.break_after: int | None = None
        """Aborts every body transfer after this many bytes."""
        self.change: Callable[[bytes], bytes] = lambda body: body
        """Transforms the content of a file before it is sent."""
        self.ranges: list[tuple[str, int]] = []
        """Path and first byte of every body sent."""
        self.requested_bytes = 0
        """Total size of all bodies."""
        self.hold_at: int | None = None
        """Byte offset in a file at which transfers wait for `let_go`, then end."""
        self.held = Event()
        self._going = Event()
        self.leaked: list[str] = []
        """Tokens that the second host has received."""

    def let_go(self) -> None:
        """Let the waiting transfer end."""
        self.held.clear()
        self._going.set()

    def hold(self) -> None:
        """Wait for `let_go`, for at most a minute."""
        self._going.clear()
        self.held.set()
        self._going.wait(60)

    def listing(self) -> dict[str, Any]:
        siblings = [
            {
                "rfilename": name,
                "size": len(body),
                "blobId": hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest(),
            }
            | (
                {"lfs": {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}}
                if name.endswith(".gguf")
                else {}
            )
            for name, body in self.files.items()
        ]
        return {"id": "org/tiny", "modelId": "org/tiny", "sha": COMMIT, "siblings": siblings} | self.answer

    def scope_listing(self) -> dict[str, Any]:
        """The listing in ModelScope's format."""
        files = [
            {
                "Name": name.rpartition("/")[2],
                "Path": name,
                "Type": "blob",
                "Size": len(body),
                "Sha256": hashlib.sha256(body).hexdigest(),
                "IsLFS": name.endswith(".gguf"),
                "Revision": COMMIT,
            }
            for name, body in self.files.items()
        ]
        folder = {"Name": "folder", "Path": "folder", "Type": "tree", "Size": 0, "Sha256": "", "IsLFS": False}
        return {"Code": 200, "Success": True, "Message": "", "Data": {"Files": [folder, *files]}} | self.answer


@contextmanager
def hub_server(
    files: dict[str, bytes], host: str = "127.0.0.1", store: str = "localhost"
) -> Iterator[tuple[HubServer, str]]:
    """The hub and its endpoint. Weights come from a second host, `store`, which is an alias of the same server."""
    hub = HubServer(files)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            is_store = self.path.startswith("/store/")
            token = self.headers.get("Authorization")
            if is_store and (token is not None or "Cookie" in self.headers):
                hub.leaked.append(token or self.headers["Cookie"])
            if hub.token is not None and not is_store and token != f"Bearer {hub.token}":
                self._reply(401, b"", {"X-Error-Code": "RepoNotFound"})
            elif hub.statuses:
                self._reply(hub.statuses.pop(0), b"", hub.headers)
            elif self.path.startswith("/api/models/org/tiny/revision/main?"):
                self._reply(200, json.dumps(hub.listing()).encode() if hub.raw is None else hub.raw)
            elif self.path == "/api/v1/models/org/tiny/repo/files?Revision=master&Recursive=true":
                self._reply(200, json.dumps(hub.scope_listing()).encode() if hub.raw is None else hub.raw)
            elif is_store:
                self._body(self.path.removeprefix("/store/"))
            elif found := re.fullmatch(
                "/(?:org/tiny/resolve/[0-9a-f]{40}|models/org/tiny/resolve/master)/(.+)", self.path
            ):
                if hub.redirect is not None:
                    self._reply(302, b"", {"Location": hub.redirect})
                elif found[1].endswith(".gguf"):
                    self._reply(302, b"", {"Location": f"http://{store}:{server.server_port}/store/{found[1]}"})
                else:
                    self._body(found[1])
            else:
                self._reply(404, b"", {"X-Error-Code": "RepoNotFound"})

        def _body(self, name: str) -> None:
            body = hub.change(hub.files[unquote(name)])
            requested = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            begin, end = (
                (int(requested[1]), min(int(requested[2]) + 1, len(body)))
                if requested and hub.takes_ranges
                else (0, len(body))
            )
            hub.ranges.append((name, begin))
            hub.requested_bytes += end - begin
            self.send_response(hub.range_status if requested and hub.takes_ranges else 200)
            if requested and hub.takes_ranges:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(body)}")
            self.send_header("Content-Length", str(end - begin))
            self.end_headers()
            stop = end if hub.break_after is None else min(end, begin + hub.break_after)
            for at in range(begin, stop, 1 << 16):
                piece = body[at : min(at + (1 << 16), stop)]
                if hub.hold_at is not None and at <= hub.hold_at < at + len(piece):
                    self.wfile.write(piece[: hub.hold_at - at])
                    hub.hold()
                    self.close_connection = True
                    break
                try:
                    self.wfile.write(piece)
                except OSError:
                    self.close_connection = True
                    break
            if stop < end:
                self.close_connection = True

        def _reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):  # the client may close the connection early
                self.wfile.write(body)

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub, f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
