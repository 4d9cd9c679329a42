"""The built-in chat page at / and the numbers that it shows. Static files, read once; the page loads nothing from other
hosts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from importlib import resources

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from ballast.server.openapi import describes
from ballast.server.routes.context import service_of
from ballast.wire.json_text import to_json

router = APIRouter()

_SCRIPT = "text/javascript; charset=utf-8"
_STYLE = "text/css; charset=utf-8"
_MEDIA_TYPES = {"css": _STYLE, "js": _SCRIPT, "woff2": "font/woff2"}

_STATIC = resources.files("ballast.server.routes").joinpath("static")


def _packages() -> Iterable[str]:
    """Third-party files, by their names below `vendor`."""
    listed: dict[str, object] = json.loads(_STATIC.joinpath("vendor", "packages.json").read_text(encoding="utf-8"))
    return listed


_SCRIPTS = (
    *("address", "answer", "cards", "chat", "chat_list", "chats", "composer", "conversation", "elements", "examples"),
    *("files", "key", "long", "markdown", "math", "occupancy", "sent", "server", "settings", "summary", "too_long"),
    "versions",
)

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/style.css": ("style.css", _STYLE),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
    **{f"/page/{name}.js": (f"{name}.js", _SCRIPT) for name in _SCRIPTS},
    **{f"/page/vendor/{name}": (f"vendor/{name}", _MEDIA_TYPES[name.rpartition(".")[2]]) for name in _packages()},
}
"""Path → (file, media type). They contain nothing about the model or its users, and need no key."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    # The page's scripts never turn text into markup, and the browser must not allow it.
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Occupancy(BaseModel):
    """The load of the server."""

    model: str
    batch_slots: int
    running: int
    waiting: int
    kv_capacity_tokens: int
    kv_used_tokens: int
    kv_cached_tokens: int
    max_model_tokens: int
    """Most tokens of a conversation, including its reply."""


@router.get("/occupancy", **describes(Occupancy))
async def occupancy(request: Request) -> Response:
    """The load of the server: the numbers of /metrics that people need most."""
    service = service_of(request)
    now = service.engine.snapshot()
    reply = Occupancy(
        model=service.endpoints.names.names[0],
        batch_slots=now.batch_slots,
        running=now.running,
        waiting=now.waiting,
        kv_capacity_tokens=now.capacity_tokens,
        kv_used_tokens=now.used_tokens,
        kv_cached_tokens=now.cached_tokens,
        max_model_tokens=service.engine.limits.max_model_tokens,
    )
    return Response(to_json(reply.model_dump()), headers={"Cache-Control": "no-store"}, media_type="application/json")


def _add_file(path: str, name: str, media_type: str) -> None:
    content = _STATIC.joinpath(name).read_bytes()
    headers = {**HEADERS, "ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"'}

    @router.get(path, include_in_schema=False)
    async def file(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)


for _path, (_name, _media_type) in FILES.items():
    _add_file(_path, _name, _media_type)
