"""A SOCKS proxy (RFC 1928) that maps a cluster's hosts to this machine. Unlike an HTTP proxy, it gets the address that
the client dials even if the Host header names a different one."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from io import BufferedIOBase
from socketserver import StreamRequestHandler

from devkit.cluster.server_thread import ServerThread

CHUNK_BYTES = 65536
CONNECT_TIMEOUT_S = 10
SUCCEEDED, UNREACHABLE = b"\x05\x00", b"\x05\x04"
_NO_ADDRESS = b"\x00\x01" + bytes(6)

Find = Callable[[str, int], "tuple[str, int] | None"]
"""Maps a host and port of the cluster to an address on this machine, or None."""


class SocksProxy(ServerThread):
    """Connects clients to the address that `find` returns."""

    scheme = "socks5"

    def __init__(self, find: Find) -> None:
        super().__init__(_handler(find))


def _handler(find: Find) -> type[StreamRequestHandler]:
    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # one end has disconnected
                self._connect()

        def _connect(self) -> None:
            _, num_methods = _read(self.rfile, 2)
            _read(self.rfile, num_methods)
            self.wfile.write(b"\x05\x00")  # no authentication
            found = find(*_destination(self.rfile))
            if found is None:
                self.wfile.write(UNREACHABLE + _NO_ADDRESS)
                return
            with socket.create_connection(found, CONNECT_TIMEOUT_S) as server:
                server.settimeout(None)
                self.wfile.write(SUCCEEDED + _NO_ADDRESS)
                back = threading.Thread(target=_copy, args=(server, self.connection), daemon=True)
                back.start()
                _copy(self.connection, server)
                back.join()

    return Handler


def _destination(stream: BufferedIOBase) -> tuple[str, int]:
    """The host and port of a connect request. Raises ConnectionError if the client disconnects early."""
    _version, _command, _reserved, kind = _read(stream, 4)
    if kind == 3:
        host = _read(stream, *_read(stream, 1)).decode("ascii")
    else:
        host = str(ipaddress.ip_address(_read(stream, 4 if kind == 1 else 16)))
    return host, int.from_bytes(_read(stream, 2), "big")


def _read(stream: BufferedIOBase, size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise ConnectionError(f"the client disconnected after {len(found)} of {size} bytes")
    return found


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends, then close the target's write side."""
    with suppress(OSError):
        while chunk := source.recv(CHUNK_BYTES):
            target.sendall(chunk)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
