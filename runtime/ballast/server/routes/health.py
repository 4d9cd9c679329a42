"""Liveness, readiness, metrics and debugging."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ballast.engine.engine import EngineState
from ballast.errors import RETRY_AFTER_S, EngineDeadError
from ballast.server.openapi import describes
from ballast.server.routes.context import service_of
from ballast.server.telemetry.numa_report import to_json as numa_json
from ballast.version import __version__
from ballast.wire.json_text import to_json
from ballast.wire.schemas import EngineView, NumaView, Status, Version

everywhere = APIRouter()
"""Routes on every port."""
admin = APIRouter()
"""Routes on the admin port, or on the API's port without one."""

# The NUMA nodes of memory rarely change, and reading them walks every page of the process.
METRICS_MAX_AGE_S = 60.0
DEBUG_MAX_AGE_S = 5.0


@everywhere.get("/livez", **describes(Status, unready=Status, is_open=True))
async def livez(request: Request) -> Response:
    """200 unless a restart would help: the engine makes progress, is idle, or is loading."""
    service = service_of(request)
    engine = service.engine
    silence_s = engine.snapshot().silence_s
    if engine.failure is not None:
        return _status(503, status="dead", reason=str(EngineDeadError.because_of(engine.failure)))
    if silence_s > service.limits.max_silence_s:
        return _status(503, status="hangs", reason=f"no progress for {silence_s:.0f} s while it holds requests")
    return _status(200, status="alive")


@everywhere.get("/readyz", **describes(Status, unready=Status, is_open=True))
async def readyz(request: Request) -> Response:
    """200 from when the model is loaded and has computed a token until the server stops."""
    engine = service_of(request).engine
    if engine.state is EngineState.READY:
        return _status(200, status="ready")
    return _status(503, status=engine.state.value, progress=round(engine.load_progress, 4))


@everywhere.get("/version", **describes(Version))
async def version() -> Response:
    """The program's version."""
    return _status(200, version=__version__)


@admin.get("/metrics", **describes("text/plain"))
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    service = service_of(request)
    await service.numa.report(METRICS_MAX_AGE_S)
    page, content_type = service.metrics.expose(request.headers.get("accept", ""))
    return Response(page, headers={"Content-Type": content_type})


@admin.get("/debug/state", **describes(EngineView))
async def debug_state(request: Request) -> Response:
    """Running and waiting requests, tokens before each kept recurrent state, and the engine's numbers; never any text.

    At most 100 waiting requests and 100 states, those used last first."""
    service = service_of(request)
    numbers = service.engine.snapshot().numbers()
    return _status(
        200,
        state=service.engine.state.value,
        device=service.model.config.machine.device,
        devices=numbers.pop("devices"),
        planned_bytes=service.model.planned_bytes,
        load_progress=numbers.pop("load_progress"),
        preparing=service.tokenize_queue.threads.num_waiting,
        switched_off=numbers.pop("switched_off"),
        snapshot_positions=numbers.pop("snapshot_positions"),
        kv_tiers=numbers.pop("tiers"),
        step_costs={
            lane: [{"tokens": tokens, "seconds": seconds} for tokens, seconds in points]
            for lane, points in numbers.pop("step_costs").items()
        },
        numbers=numbers,
        requests=service.engine.describe(),
    )


@admin.get("/debug/numa", **describes(NumaView))
async def debug_numa(request: Request) -> Response:
    """CPUs of this process and NUMA nodes of its weights, from /proc."""
    report, age_s = await service_of(request).numa.report(DEBUG_MAX_AGE_S)
    return _status(200, **numa_json(report, age_s))


def _status(code: int, **body: Any) -> Response:
    headers = {"Retry-After": str(RETRY_AFTER_S)} if code == 503 else {}
    return Response(to_json(body), code, headers, media_type="application/json")
