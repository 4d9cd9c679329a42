"""HTTP requests to the running processes: on each pod's admin port, and through the Service."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from ballast_operator.names import ADMIN_PORT

QUICK_TIMEOUT_S = 3.0
NUMA_TIMEOUT_S = 20.0
"""A process walks all its pages to find their nodes, which takes seconds for hundreds of gigabytes."""
MAX_ANSWER_BYTES = 4 * 2**20


class ProbeError(Exception):
    """There was no usable answer. The message has the reason."""


class Prober:
    """Sends requests to pods and Services. `proxy`: the HTTP proxy to them, for an operator outside the cluster."""

    def __init__(self, proxy: str | None = None) -> None:
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def readiness(self, host: str, port: int = ADMIN_PORT) -> tuple[bool, Mapping[str, Any]]:
        """Whether /readyz reports that it is ready, and its JSON. Raises ProbeError."""
        status, answer = await self._get(host, port, "/readyz", QUICK_TIMEOUT_S)
        if status not in (200, 503):
            raise ProbeError(f"/readyz answered {status}")
        return status == 200, answer

    async def numa(self, host: str) -> Mapping[str, Any]:
        """The JSON of /debug/numa: the process's CPUs and memory. Raises ProbeError."""
        return await self._page(host, "/debug/numa", NUMA_TIMEOUT_S)

    async def state(self, host: str) -> Mapping[str, Any]:
        """The JSON of /debug/state: the engine's numbers. Raises ProbeError."""
        return await self._page(host, "/debug/state", QUICK_TIMEOUT_S)

    async def _page(self, host: str, path: str, timeout_s: float) -> Mapping[str, Any]:
        status, answer = await self._get(host, ADMIN_PORT, path, timeout_s)
        if status != 200:
            raise ProbeError(f"{path} answered {status}")
        return answer

    async def _get(self, host: str, port: int, path: str, timeout_s: float) -> tuple[int, Mapping[str, Any]]:
        url = f"http://{_in_url(host)}:{port}{path}"
        try:
            session = self._open()
            async with session.get(
                url, proxy=self._proxy, timeout=aiohttp.ClientTimeout(total=timeout_s), allow_redirects=False
            ) as reply:
                answer = json.loads(await _limited(reply))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ProbeError(f"{url}: {str(error) or type(error).__name__}") from None
        except (ValueError, RecursionError) as error:  # the answer may be nested as deep as it is long
            raise ProbeError(f"{url}: not a usable answer: {error}") from None
        if not isinstance(answer, dict):
            raise ProbeError(f"{url}: the answer is not an object")
        return reply.status, answer

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # A Service balances connections, not requests: so each probe opens a new one.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=50))
        return self._session


async def _limited(reply: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in reply.content.iter_chunked(65536):
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _in_url(host: str) -> str:
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host
