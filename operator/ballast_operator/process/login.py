"""The credentials of the watches, read again each time the API server rejects them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import kopf

from ballast_operator.cluster.connect import read_configuration
from ballast_operator.errors import ConnectError

log = logging.getLogger(__name__)

MAX_DELAY_S = 10.0
"""Maximum delay between attempts, and so until the watches notice that the API server is back."""
QUIET_S = 60.0
"""Credentials that worked for this long are read again without a delay when they are rejected."""


class Backoffs:
    """Increasing delays in seconds between attempts to reach the API server, without end."""

    def __iter__(self) -> Iterator[float]:
        delay_s = 0.5
        while True:
            yield delay_s * random.uniform(1.0, 1.2)  # noqa: S311
            delay_s = min(MAX_DELAY_S, 2 * delay_s)


class Credentials(kopf.ConnectionInfo):
    """Credentials that never compare equal to others.

    kopf stops if it gets credentials equal to rejected ones, but a rejection may be temporary.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Login:
    """kopf's login handler. kopf calls it at the start and after each rejection."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_s: float | None = None
        self._delays = iter(Backoffs())

    async def __call__(self, **_: Any) -> Credentials:
        """The credentials to try next. Waits first, longer each time, while they are rejected."""
        if self._last_s is None or self._clock() - self._last_s > QUIET_S:
            self._delays = iter(Backoffs())
        else:
            await asyncio.sleep(next(self._delays))
        while True:
            try:
                found = await _read()
            except ConnectError as error:
                log.warning("no credentials for the watches", extra={"error": str(error)})
                await asyncio.sleep(next(self._delays))
            else:
                self._last_s = self._clock()
                return found


async def _read() -> Credentials:
    configuration = await read_configuration()
    header = await configuration.get_api_key_with_prefix("BearerToken") or ""
    scheme, _space, token = header.partition(" ")
    return Credentials(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=configuration.ca_cert_data,
        insecure=not configuration.verify_ssl,
        scheme="Bearer" if scheme.lower() == "bearer" else scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )
