"""The HTTP applications: routes, error handlers and middleware."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp

from ballast.errors import CapacityError, EngineDeadError, RequestError
from ballast.server.http.access import Access
from ballast.server.http.dialect_errors import DialectErrors
from ballast.server.http.error_response import error_response, http_error_reply
from ballast.server.http.middleware import BodyLimit, RequestScope
from ballast.server.openapi import document
from ballast.server.requests.cancellation import ClientGoneError
from ballast.server.routes import (
    anthropic,
    chat_page,
    health,
    llama_cpp,
    ollama,
    openai,
    other_servers,
    responses,
    tokens,
)
from ballast.server.service import Service
from ballast.server.telemetry.tracing import Tracer
from ballast.version import __version__
from ballast.wire.errors import RequestTimeoutError

EXPECTED_ERRORS = (RequestError, CapacityError, EngineDeadError, RequestTimeoutError, HTTPException)

KEYLESS_PATHS = frozenset(chat_page.FILES)
"""A browser needs the page to enter a key."""


def api_routers(*, with_admin: bool) -> tuple[APIRouter, ...]:
    """The routes of the API's port. `with_admin`: includes metrics and debugging, if there is no admin port."""
    return (
        openai.router,
        anthropic.router,
        responses.router,
        tokens.router,
        llama_cpp.router,
        ollama.router,
        other_servers.router,
        chat_page.router,
        health.everywhere,
        *((health.admin,) if with_admin else ()),
    )


def admin_routers() -> tuple[APIRouter, ...]:
    """The routes of the admin port."""
    return (health.everywhere, health.admin)


def create_app(
    routers: Sequence[APIRouter], service: Service, access: Access, max_body_bytes: int, tracer: Tracer | None = None
) -> ASGIApp:
    """The application of one port, with its middleware. `tracer`: creates spans of its requests."""
    app = api_app(routers, access.root_path)
    app.state.service = service
    limits = service.limits
    bounded = BodyLimit(app, max_body_bytes, limits.body_timeout_s, limits.whole_body_timeout_s)
    guarded = access.guard(bounded, KEYLESS_PATHS)
    return RequestScope(DialectErrors(guarded, access.root_path), service.ended, tracer)


def api_app(routers: Sequence[APIRouter], root_path: str = "") -> FastAPI:
    """Routes and error handlers, without a service yet. Enough to generate the OpenAPI document."""
    app = FastAPI(
        title="Ballast",
        version=__version__,
        redirect_slashes=False,
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        servers=[{"url": root_path}] if root_path else None,
        exception_handlers={
            **dict.fromkeys((ClientDisconnect, ClientGoneError), _record_client_gone),
            **dict.fromkeys((*EXPECTED_ERRORS, Exception), _answer_error),
        },
    )
    app.openapi = lru_cache(maxsize=1)(lambda: document(app))  # type: ignore[method-assign]  # as FastAPI advises
    for router in routers:
        app.include_router(router)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        error.detail = f"{error.detail}: {request.method} {request.url.path}"
    return error_response(http_error_reply(error))


async def _record_client_gone(request: Request, _: Exception) -> Response:
    """The client disconnected before the reply. This response is never sent."""
    request.state.record.outcome = "client_gone"
    return Response(status_code=499)
