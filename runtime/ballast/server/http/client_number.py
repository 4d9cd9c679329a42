"""Numbers that identify clients for fair-share rounds. The server stores nothing about a client for this."""

from __future__ import annotations

import hashlib
import ipaddress

from starlette.types import Scope

_NETWORK_BITS = 64
"""Prefix length of an IPv6 network, because one client may use all addresses in it."""


def client_number(identity: bytes) -> int:
    """A number for a key's digest or a network, in 64 bits with a sign; the same in every process."""
    return int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "big", signed=True)


def network_of(scope: Scope) -> bytes:
    """The IPv4 address, or the network of the IPv6 address, that a request comes from; empty if unknown."""
    client = scope.get("client")
    if not client:
        return b""
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0])
    except ValueError:
        return str(client[0]).encode()
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return address.packed[: _NETWORK_BITS // 8] if mapped is None else mapped.packed
    return address.packed
