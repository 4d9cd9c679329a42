"""Checks the Host header of requests, and rejects requests for other hosts.

A browser lets a page contact only the host that it came from. The owner of a domain can point it to this machine after
the page is loaded (DNS rebinding): the page could then read this server's replies, but its requests still carry the
page's host. Such a host has a name in the public DNS. IP addresses, localhost and the names that container runtimes
give to their host are not in the public DNS, so they are always allowed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ballast.errors import shown
from ballast.server.http.error_response import error_response
from ballast.wire.errors import ErrorReply, error_body

ANY = "*"

LOCAL_NAMES = frozenset(
    {
        "localhost",
        *("host.docker.internal", "gateway.docker.internal", "kubernetes.docker.internal", "host.containers.internal"),
        *("host.lima.internal", "host.orb.internal", "host.rancher-desktop.internal"),
        *("host.minikube.internal", "host.k3d.internal"),
    }
)
"""Names of this machine: its own name, and names that containers on it use. `internal` and `localhost` are reserved
top-level domains, so no web page has such a host."""

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\s\[\]:@/?#\\]+)(?::(\d{0,5}))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Authority:
    """A host with its port, as in a Host header or an origin."""

    name: str
    """In lower case, without a trailing dot. IPv6 is in brackets."""
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Authority | None:
        """The authority in `text`; None if it is invalid."""
        found = _AUTHORITY.fullmatch(text)
        return found and cls(found[1].lower().removesuffix("."), int(found[2]) if found[2] else None)


def default_hosts(host: str, address: str, *, wants_key: bool) -> Sequence[str]:
    """The allowed hosts of a server with the option `host` that listens on the IP `address`.

    If it listens on all addresses, it may have any name: of a Service, a container or a gateway. If every request needs
    a key, pages of other hosts have none, and the name does not matter.
    """
    return (ANY,) if wants_key or ipaddress.ip_address(address).is_unspecified else (host,)


class HostGuard:
    """Passes on requests for an allowed host, and answers others with a 421."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str], open_paths: frozenset[str]) -> None:
        """`allowed`: names, *.NAME for all subdomains, * for any. `open_paths` accept any host."""
        self._app = app
        self._allowed = allowed
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            refusal = self._refusal(Headers(scope=scope).getlist("host"), scope["http_version"])
            if refusal is not None:
                await error_response(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, given: Sequence[str], http_version: str) -> ErrorReply | None:
        if not given and http_version == "1.0":
            return None  # health checks of load balancers; no browser leaves Host out
        if len(given) != 1:
            problem = f"a request of HTTP/{http_version} must have one Host header, and this one has {len(given)}"
            return ErrorReply(400, error_body(problem, error_type="invalid_request_error", code="invalid_host"))
        if is_allowed(given[0], self._allowed):
            return None
        problem = f"Host: {shown(given[0])} is not a host of this server; to allow it, add it to --allowed_hosts"
        return ErrorReply(421, error_body(problem, error_type="invalid_request_error", code="host_not_allowed"))


def is_allowed(host: str, allowed: Sequence[str]) -> bool:
    """Whether a Host header matches one of the `allowed` names. Ports are ignored: proxies change them, and pages
    cannot choose them."""
    if ANY in allowed:
        return True
    found = Authority.parse(host)
    return found is not None and (
        found.name in LOCAL_NAMES
        or found.name.endswith(".localhost")
        or _is_address(found.name)
        or any(_covers(pattern.lower().removesuffix("."), found.name) for pattern in allowed)
    )


def _covers(pattern: str, name: str) -> bool:
    return name.endswith(pattern[1:]) and name != pattern[1:] if pattern.startswith("*.") else name == pattern


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
