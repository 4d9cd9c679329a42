"""Runs a check in the current network namespace, where loopback is still down: offline.py NAME FOLDER

NAME is a module in this folder; its function `check(folder)` gets the folder with the client's packages.
"""

import fcntl
import importlib
import socket
import struct
import sys
from pathlib import Path

SIOCSIFFLAGS, IFF_UP = 0x8914, 1

if __name__ == "__main__":
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))
    links = [name for _, name in socket.if_nameindex()]
    assert links == ["lo"], f"expected a separate network namespace with only lo, found {', '.join(links)}"
    importlib.import_module(sys.argv[1]).check(Path(sys.argv[2]))
