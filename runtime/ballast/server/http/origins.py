"""Rejects requests from pages of other origins, unless CORS allows them.

A browser sends some requests of any page without a preflight, and only hides the reply from the page. By then the
server has done the work. The Origin header, which pages cannot change, contains the page's origin.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ballast.errors import shown
from ballast.server.http.error_response import error_response
from ballast.server.http.hosts import ANY, Authority
from ballast.wire.errors import ErrorReply, error_body

_ORIGIN = re.compile(r"(https?)://(.+)", re.IGNORECASE)
_DEFAULT_PORTS = {"http": 80, "https": 443}


class OriginGuard:
    """Passes on requests from no page, from this server's own page and from allowed origins; others get a 403."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str], open_paths: frozenset[str]) -> None:
        """`allowed`: other origins whose pages may call, * for any. `open_paths` accept any page."""
        self._app = app
        self._allowed = allowed
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"] in self._open_paths or ANY in self._allowed:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        foreign = [
            origin for origin in headers.getlist("origin") if not self._may_call(origin, headers, scope["scheme"])
        ]
        if not foreign:
            await self._app(scope, receive, send)
            return
        problem = (
            f"Origin: {shown(foreign[0])} differs from this server's, which was called as "
            f"Host: {shown(headers.get('host', ''))}; to allow pages of this origin, add it to --cors_origins"
        )
        reply = ErrorReply(403, error_body(problem, error_type="permission_error", code="origin_not_allowed"))
        await error_response(reply)(scope, receive, send)

    def _may_call(self, origin: str, headers: Headers, scheme: str) -> bool:
        # Behind a proxy that changes Host, only the browser knows the origin. Pages cannot set Sec-Fetch-Site.
        return (
            origin in self._allowed
            or headers.get("sec-fetch-site") == "same-origin"
            or is_same_origin(origin, headers.get("host", ""), scheme)
        )


def is_same_origin(origin: str, host: str, scheme: str) -> bool:
    """Whether a page of `origin` came from the server with this Host header. `scheme` is the server's; in front of
    http, a proxy may use https."""
    found = _ORIGIN.fullmatch(origin)
    page, own = Authority.parse(found[2]) if found else None, Authority.parse(host)
    if found is None or page is None or own is None or (scheme == "https" and found[1].lower() != "https"):
        return False
    default = _DEFAULT_PORTS[found[1].lower()]
    return (page.name, page.port or default) == (own.name, own.port or default)
