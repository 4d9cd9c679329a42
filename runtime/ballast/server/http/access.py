"""Access to a port: hosts, origins, keys, and the path prefix of a proxy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from ballast.server.http.hosts import HostGuard
from ballast.server.http.keys import KeyGuard, Keys
from ballast.server.http.middleware import IGNORED_FIELDS_HEADER, MAX_TOKENS_HEADER, REQUEST_ID_HEADERS, RootPath
from ballast.server.http.origins import OriginGuard

PROBED_PATHS = frozenset({"/livez", "/readyz", "/health", "/v1/health", "/ping"})
"""Open to all clients: a probe has no key and may use any host name or address. The replies only show that the server
is running, and the requests change nothing."""


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of a port."""

    allowed_hosts: Sequence[str]
    """See `HostGuard`."""
    keys: Keys | None = None
    """None: no key is required."""
    cors_origins: Sequence[str] = ()
    root_path: str = ""

    def guard(self, app: ASGIApp, keyless_paths: frozenset[str] = frozenset()) -> ASGIApp:
        """The application behind these rules. `keyless_paths` and PROBED_PATHS need no key."""
        if self.keys is not None:
            app = KeyGuard(app, self.keys, PROBED_PATHS | keyless_paths)
        app = OriginGuard(app, self.cors_origins, PROBED_PATHS)
        app = HostGuard(app, self.allowed_hosts, PROBED_PATHS)
        # CORS is outermost: preflight requests carry no key, and browsers can read an error only with CORS headers.
        if self.cors_origins:
            app = CORSMiddleware(
                app,
                allow_origins=self.cors_origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                expose_headers=(
                    "Retry-After",
                    "Retry-After-Ms",
                    IGNORED_FIELDS_HEADER,
                    MAX_TOKENS_HEADER,
                    *REQUEST_ID_HEADERS,
                ),
            )
        return RootPath(app, self.root_path) if self.root_path else app
