"""Clients that send requests to a Service continuously, each in its own way, and a record of their failures."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

REQUEST_TIMEOUT_S = 60
JOIN_TIMEOUT_S = 2 * REQUEST_TIMEOUT_S
TOKENS = 24


@dataclass(frozen=True, slots=True)
class Kind:
    """How a client sends requests."""

    streams: bool
    keeps: bool
    """Whether it reuses its connection."""
    pause_s: float = 0.0
    """Pause between two requests."""

    @property
    def name(self) -> str:
        return f"{'stream' if self.streams else 'whole'}, {'kept' if self.keeps else 'new'}, {self.pause_s:g} s"


KINDS = (
    *(Kind(streams, keeps) for streams in (False, True) for keeps in (False, True)),
    Kind(streams=False, keeps=True, pause_s=0.5),
)


@dataclass
class Traffic:
    """Counts of replies by kind of client; final when the clients have ended."""

    served: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    """Kind of client and error, for every request without a complete reply."""


@contextmanager
def traffic(address: str) -> Iterator[Traffic]:
    """Run one client of each kind that repeatedly requests chat completions at `address` until the block ends."""
    found = Traffic()
    stop = threading.Event()
    threads = [threading.Thread(target=_ask, args=(address, kind, found, stop)) for kind in KINDS]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        stop.set()
        for thread in threads:
            thread.join(JOIN_TIMEOUT_S)
            assert not thread.is_alive(), "a client hangs"


def _ask(address: str, kind: Kind, found: Traffic, stop: threading.Event) -> None:
    limits = httpx.Limits(max_keepalive_connections=None if kind.keeps else 0)
    with httpx.Client(timeout=REQUEST_TIMEOUT_S, trust_env=False, limits=limits) as client:
        while not stop.wait(kind.pause_s):
            try:
                _one_reply(client, address, kind.streams)
            except (httpx.HTTPError, AssertionError) as error:
                found.failures.append(f"{kind.name}: {error!r}")
                stop.wait(1)
            else:
                found.served[kind.name] += 1


def _one_reply(client: httpx.Client, address: str, streams: bool) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": TOKENS, "ignore_eos": True}
    with client.stream("POST", address, json={**body, "stream": streams}) as reply:
        text = reply.read().decode()
    assert reply.status_code == 200, f"{reply.status_code} {text}"
    if streams:
        assert text.rstrip().endswith("data: [DONE]"), text[-300:]
        text = text.rstrip().splitlines()[-3].removeprefix("data: ")
    (choice,) = json.loads(text)["choices"]
    assert choice["finish_reason"] == "length", choice
