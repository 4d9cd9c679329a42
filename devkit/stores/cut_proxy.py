"""A TCP proxy on loopback that closes each connection after N bytes of a response, to simulate a bad network."""

from __future__ import annotations

import socket
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock, Thread


@dataclass
class CutProxy:
    """The proxy at `host`, and the bytes of all responses that it has forwarded."""

    host: str
    num_bytes: int = 0


@contextmanager
def cut_proxy(target: str, after: int) -> Iterator[CutProxy]:
    """Proxy for `target`, a host and port. `after`: response bytes per connection."""
    host, _, port = target.rpartition(":")
    lock = Lock()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, int(port))) as server:
                thread = Thread(target=self._forward, args=(server,), daemon=True)
                thread.start()
                left = after
                while left and (chunk := server.recv(min(left, 1 << 16))):
                    left -= len(chunk)
                    with lock:
                        proxy.num_bytes += len(chunk)
                    with suppress(OSError):
                        self.request.sendall(chunk)
                with suppress(OSError):
                    self.request.shutdown(socket.SHUT_RDWR)
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)
                thread.join()

        def _forward(self, server: socket.socket) -> None:
            with suppress(OSError):
                while chunk := self.request.recv(1 << 16):
                    server.sendall(chunk)
                server.shutdown(socket.SHUT_WR)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy = CutProxy(f"127.0.0.1:{server.server_address[1]}")
    accepting = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    accepting.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        accepting.join()
