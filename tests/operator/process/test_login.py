"""How watches get credentials, and how long they wait for them."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from kubeconfig import write_credentials

from ballast_operator.process.login import MAX_DELAY_S, QUIET_S, Backoffs, Login


def test_watches_retry_rejected_credentials_and_accept_replaced_ones(credentials: Path) -> None:
    times = iter((0.0, 0.0, 1.0, QUIET_S * 3, QUIET_S * 3))
    login = Login(lambda: next(times))

    async def scene() -> None:
        write_credentials(credentials, 1, "one")
        first, again = await login(), await login()
        assert (first.token, again.token) == ("one", "one")
        assert first != again
        write_credentials(credentials, 1, "two")
        assert (await login()).token == "two"

    asyncio.run(scene())


def test_delays_between_attempts_grow_and_never_end():
    delays = list(itertools.islice(Backoffs(), 50))
    assert delays[0] < 1
    assert all(delay <= MAX_DELAY_S * 1.2 for delay in delays)
    assert min(delays[-10:]) >= MAX_DELAY_S
