"""Access to the API's port: keys, CORS and the path prefix of a proxy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from ballast.server.http.keys import KeyGuard, Keys
from ballast.server.http.middleware import REQUEST_ID_HEADERS, RootPath


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of a port."""

    keys: Keys | None = None
    """None: no key is needed."""
    cors_origins: Sequence[str] = ()
    root_path: str = ""

    def guard(self, app: ASGIApp, open_paths: frozenset[str] = frozenset()) -> ASGIApp:
        """The application behind these rules. `open_paths` need no key."""
        if self.keys is not None:
            app = KeyGuard(app, self.keys, open_paths)
        # CORS is outermost: preflight requests carry no key, and browsers can read a refusal only with CORS headers.
        if self.cors_origins:
            app = CORSMiddleware(
                app,
                allow_origins=self.cors_origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                expose_headers=("Retry-After", *REQUEST_ID_HEADERS),
            )
        return RootPath(app, self.root_path) if self.root_path else app
