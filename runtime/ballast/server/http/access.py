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
"""Answer whoever asks: a probe has no key, and asks under whatever name or address it knows. They say nothing more than
that the server is there, and change nothing."""


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of a port."""

    allowed_hosts: Sequence[str]
    """As `HostGuard` has them."""
    keys: Keys | None = None
    """None: no key is needed."""
    cors_origins: Sequence[str] = ()
    root_path: str = ""

    def guard(self, app: ASGIApp, keyless_paths: frozenset[str] = frozenset()) -> ASGIApp:
        """The application behind these rules. `keyless_paths` need no key, as PROBED_PATHS do not."""
        if self.keys is not None:
            app = KeyGuard(app, self.keys, PROBED_PATHS | keyless_paths)
        app = OriginGuard(app, self.cors_origins, PROBED_PATHS)
        app = HostGuard(app, self.allowed_hosts, PROBED_PATHS)
        # CORS is outermost: preflight requests carry no key, and browsers can read a refusal only with CORS headers.
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
