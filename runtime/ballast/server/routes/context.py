"""The first and last lines that all routes share."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from ballast.server.requests.record import Record
from ballast.server.service import Service
from ballast.wire.json_text import to_json


def service_of(request: Request) -> Service:
    """The service of the application."""
    service: Service = request.app.state.service
    return service


def begin(request: Request, endpoint: str) -> tuple[Service, Record]:
    """The service, and the request's record with `endpoint` as its label in metrics."""
    service = service_of(request)
    record: Record = request.state.record
    record.endpoint = endpoint
    record.ignored.refuse_unknown = service.model.config.server.unknown_fields == "refuse"
    return service, record


def json_response(value: Any) -> Response:
    """A response with a short body. Bodies that may be long must be written off the event loop."""
    return Response(to_json(value), media_type="application/json")
