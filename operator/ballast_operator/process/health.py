"""The HTTP server that the kubelet and Prometheus ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from ballast_operator.process.metrics import Metrics


class HealthServer:
    """Serves /livez, /readyz and /metrics."""

    def __init__(
        self,
        metrics: Metrics,
        why_dead: Callable[[], str | None],
        why_unready: Callable[[], Awaitable[str | None]],
        host: str,
        port: int,
    ) -> None:
        """`why_dead`: why the process should be restarted, or None. `why_unready`: why it could not act on services."""
        self._metrics, self._why_dead, self._why_unready = metrics, why_dead, why_unready
        self._host, self._port = host, port
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen. Returns the port. Raises OSError."""
        app = web.Application()
        app.add_routes(
            [web.get("/livez", self._livez), web.get("/readyz", self._readyz), web.get("/metrics", self._page)]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        port: int = self._runner.addresses[0][1]
        return port

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _livez(self, _: web.Request) -> web.Response:
        reason = self._why_dead()
        return web.json_response({"status": reason or "alive"}, status=503 if reason else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = await self._why_unready()
        return web.json_response({"status": reason or "ready"}, status=503 if reason else 200)

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.page(), headers={"Content-Type": self._metrics.content_type})
