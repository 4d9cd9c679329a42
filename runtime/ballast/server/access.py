"""Who may call the API's port, and under which path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from ballast.server import page
from ballast.server.keys import KeyGuard, Keys
from ballast.server.middleware import REQUEST_ID_HEADERS, RootPath

OPEN_PATHS = frozenset({"/livez", "/readyz", *page.FILES})
"""Need no key: probes have none, and neither has a browser that has yet to show the page where one is typed in."""


@dataclass(frozen=True, slots=True)
class Access:
    """What stands before an application."""

    keys: Keys | None = None
    """None: everyone may call."""
    cors_origins: Sequence[str] = ()
    root_path: str = ""

    def guard(self, app: ASGIApp) -> ASGIApp:
        """The application behind it."""
        if self.keys is not None:
            app = KeyGuard(app, self.keys, OPEN_PATHS)
        # Browsers ask for leave without a key, and read a refusal only where they have it: CORS comes first.
        if self.cors_origins:
            app = CORSMiddleware(
                app,
                allow_origins=self.cors_origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                expose_headers=("Retry-After", *REQUEST_ID_HEADERS),
            )
        return RootPath(app, self.root_path) if self.root_path else app
