"""First-token times and throughput of many users over HTTP who send requests together or at random times.

    python benchmarks/serving/arrivals.py [CASE...] --port PORT [--server ballast|llama] [--rounds 3] [--seed N]
        [--name TEXT] [--command "..."] [--version TEXT] [--model TEXT] [--gpu TEXT]

A CASE is one of
    together:USERS:PROMPT:NEW         USERS requests of PROMPT tokens are sent together; each gets NEW tokens
    poisson:RATE:SECONDS[:LIMIT_S]    RATE requests per second arrive for SECONDS; goodput counts those whose first
                                      token comes within LIMIT_S (2)

Poisson arrivals have prompts of 50 to 2000 tokens (log-uniform) and replies of 20 to 200 tokens. Prompts are random
token ids. The same seed gives the same requests at the same times for both servers. All prompts of one run differ, so
no prefix cache can serve them. Requests are sampled at temperature 0.6 and top_p 0.95.

`--server llama` speaks to llama-server's /completion. Its other sampling settings stay at that server's defaults, which
are its fastest (top_k 40). The server must run on this machine. Without --port, the program starts Ballast with the
built-in model. It prints one JSON line per case; figures are lists with one value per round.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from devkit.bench_record import bench_record
from devkit.servers.process import ServerProcess

Server = Literal["ballast", "llama"]

PATHS: dict[Server, str] = {"ballast": "/v1/completions", "llama": "/completion"}
SAMPLING = {"temperature": 0.6, "top_p": 0.95, "ignore_eos": True, "stream": True}
PROMPT_TOKENS = (50, 2000)
REPLY_TOKENS = (20, 200)
FIRST_ID = 10
"""Lower ids are often special tokens."""
SEED = 20261127
DEFAULT_LIMIT_S = 2.0
REPLY_TIMEOUT_S = 500.0
REFUSED = (429, 503)
BUILT_IN_CASES = ["together:4:64:16", "poisson:4:3"]
BUILT_IN_VOCABULARY = 200


@dataclass(frozen=True, slots=True)
class Together:
    """Users who send their requests at the same time."""

    users: int
    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Poisson:
    """Users who arrive at random times."""

    rate: float
    seconds: float
    limit_s: float = DEFAULT_LIMIT_S


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, and when it is sent."""

    at_s: float
    prompt: list[int]
    new_tokens: int


@dataclass(slots=True)
class Reply:
    """Result of one request."""

    status: int
    """HTTP status; 0 if there was no answer."""
    token_times_s: list[float] = field(default_factory=list)
    """When each event with tokens came, counted from the arrival of the request."""
    num_tokens: int = 0
    error: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--port", type=int, help="of a running server on this machine")
    parser.add_argument("--server", choices=PATHS, default="ballast")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each case, with different requests")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--vocabulary", type=int, default=100_000, help="token ids of prompts are below this number")
    parser.add_argument("--name", default="", help="prefix of the record's case, for example the model's shape")
    parser.add_argument("--command", default="", help="the server's command line, for the record")
    parser.add_argument("--version", default="", help="the server's version, for the record")
    parser.add_argument("--model", default="", help="for the record")
    parser.add_argument("--gpu", default="", help="for the record")
    options = parser.parse_args()
    try:
        cases = [read_case(text) for text in options.cases or BUILT_IN_CASES]
    except ValueError as error:
        parser.error(str(error))
    with ExitStack() as stack:
        if options.port is None:
            if options.server != "ballast":
                parser.error("--server llama needs the --port of a running server")
            options.vocabulary, options.model = BUILT_IN_VOCABULARY, "built-in"
            options.port = stack.enter_context(ServerProcess("--max_batch_size", "16")).port
        failed = measure(options, cases)
    if failed:
        raise SystemExit(f"{failed} requests failed, see the records")


def measure(options: argparse.Namespace, cases: Sequence[Together | Poisson]) -> int:
    """Print one record per case. Returns the number of requests that failed."""
    asyncio.run(send(options.server, options.port, schedule(Together(2, 64, 8), -1, options.seed, options.vocabulary)))
    facts = {name: value for name in ("command", "version", "model", "gpu") if (value := getattr(options, name))}
    failed = 0
    for number, case in enumerate(cases):
        rounds, walls = [], []
        for repeat in range(options.rounds):
            arrivals = schedule(case, 1000 * number + repeat, options.seed, options.vocabulary)
            begin = time.perf_counter()
            replies = asyncio.run(send(options.server, options.port, arrivals))
            walls.append(time.perf_counter() - begin)
            for arrival, reply in zip(arrivals, replies, strict=True):
                if reply.status == 200 and not reply.error and reply.num_tokens != arrival.new_tokens:
                    reply.error = f"{reply.num_tokens} tokens instead of {arrival.new_tokens}"
            rounds.append(replies)
        figures = figures_of(case, rounds, walls)
        name = f"{options.name}: {title(case)}" if options.name else title(case)
        print(
            bench_record("serving/arrivals", name, server=options.server, seed=options.seed, **figures, **facts),
            flush=True,
        )
        failed += sum(has_failed(reply) for replies in rounds for reply in replies)
    return failed


def read_case(text: str) -> Together | Poisson:
    """Raises ValueError with a message for the user."""
    kind, *parts = text.split(":")
    try:
        if kind == "together" and len(parts) == 3:
            return Together(*map(int, parts))
        if kind == "poisson" and len(parts) in (2, 3):
            return Poisson(*map(float, parts))
    except ValueError:
        pass
    raise ValueError(f"{text}: expected together:USERS:PROMPT:NEW or poisson:RATE:SECONDS[:LIMIT_S]")


def title(case: Together | Poisson) -> str:
    """The case in the record."""
    if isinstance(case, Together):
        return f"{case.users} together, prompt {case.prompt_tokens}, reply {case.new_tokens}"
    return f"{case.rate:g}/s for {case.seconds:g} s, first token within {case.limit_s:g} s"


def schedule(case: Together | Poisson, number: int, seed: int, vocabulary: int) -> list[Arrival]:
    """The requests of one round, in the order of their arrival. `number` distinguishes rounds and cases."""
    chance = random.Random(f"{seed} {number}")

    def prompt(num_tokens: int) -> list[int]:
        return [chance.randrange(FIRST_ID, vocabulary) for _ in range(num_tokens)]

    if isinstance(case, Together):
        return [Arrival(0.0, prompt(case.prompt_tokens), case.new_tokens) for _ in range(case.users)]
    # A Poisson process in which exactly rate * seconds requests arrive: their times are uniform. So a short run has the
    # nominal load.
    times = sorted(chance.uniform(0.0, case.seconds) for _ in range(round(case.rate * case.seconds)))
    arrivals = []
    for at_s in times:
        prompt_tokens = round(math.exp(chance.uniform(*map(math.log, PROMPT_TOKENS))))
        arrivals.append(Arrival(at_s, prompt(prompt_tokens), chance.randint(*REPLY_TOKENS)))
    return arrivals


def body(server: Server, arrival: Arrival) -> dict[str, Any]:
    """The request that asks `server` for this reply."""
    if server == "ballast":
        return {**SAMPLING, "prompt": arrival.prompt, "max_tokens": arrival.new_tokens, "return_token_ids": True}
    own = {"n_predict": arrival.new_tokens, "cache_prompt": False, "return_tokens": True}
    return {**SAMPLING, "prompt": arrival.prompt, **own}


async def send(server: Server, port: int, arrivals: Sequence[Arrival]) -> list[Reply]:
    """Send each request at its time, without waiting for earlier replies."""
    requests = [request_bytes(PATHS[server], body(server, arrival)) for arrival in arrivals]
    begin = time.perf_counter()

    async def one(arrival: Arrival, request: bytes) -> Reply:
        await asyncio.sleep(max(0.0, begin + arrival.at_s - time.perf_counter()))
        return await ask(port, request, begin + arrival.at_s)

    return await asyncio.gather(*map(one, arrivals, requests))


def request_bytes(path: str, content: dict[str, Any]) -> bytes:
    text = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


async def ask(port: int, request: bytes, arrival: float) -> Reply:
    """One streamed request on a connection of its own."""
    events: list[tuple[float, bytes]] = []
    status = 0
    try:
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
            try:
                writer.write(request)
                status = int((await reader.readline()).split()[1])
                while line := await reader.readline():
                    if line.startswith((b"data: {", b"error: {")):
                        events.append((time.perf_counter() - arrival, line))
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError, IndexError) as error:
        return Reply(status, error=repr(error))
    return read_events(status, events)


def read_events(status: int, events: Sequence[tuple[float, bytes]]) -> Reply:
    """Parse the events of a reply after it has ended, so that the client takes little CPU time from the server."""
    reply = Reply(status, error="" if status in (200, *REFUSED) else http.client.responses.get(status, str(status)))
    for at_s, line in events:
        event = json.loads(line.partition(b": ")[2])
        if "error" in event or line.startswith(b"error"):
            reply.error = json.dumps(event)[:200]
        elif "tokens_predicted" in event and event.get("stop"):
            # llama-server's last event has the whole count: it sends no event for a token that ends within a character.
            reply.num_tokens = event["tokens_predicted"]
            reply.token_times_s = reply.token_times_s or [at_s]
        elif count := tokens_of(event):
            reply.token_times_s.append(at_s)
            reply.num_tokens += count
    return reply


def tokens_of(event: dict[str, Any]) -> int:
    """How many tokens an event of either server's stream brings."""
    if "choices" in event:
        return sum(len(choice.get("token_ids") or ()) for choice in event["choices"])
    return len(event.get("tokens", ()))


def figures_of(
    case: Together | Poisson, rounds: Sequence[Sequence[Reply]], walls: Sequence[float]
) -> dict[str, list[float] | int | str]:
    """The record's figures; `walls` are the seconds of each round."""
    replies = [reply for each in rounds for reply in each]
    failures = [reply.error or "no token" for reply in replies if has_failed(reply)]
    common: dict[str, list[float] | int | str] = {
        "refused": sum(reply.status in REFUSED for reply in replies),
        "failed": len(failures),
        **({"first_failure": failures[0]} if failures else {}),
    }
    if isinstance(case, Together):
        firsts = [first_tokens(each) for each in rounds]
        return {
            "first_token_slowest_s": [round(max(each), 3) for each in firsts if each],
            "first_token_median_s": [round(statistics.median(each), 3) for each in firsts if each],
            "tokens_per_s": [round(served_tokens(each) / wall, 1) for each, wall in zip(rounds, walls, strict=True)],
            **common,
        }
    each = [poisson_figures(case, *of) for of in zip(rounds, walls, strict=True)]
    return {name: [value for figures in each if (value := figures[name]) is not None] for name in each[0]} | common


def poisson_figures(case: Poisson, replies: Sequence[Reply], wall_s: float) -> dict[str, float | None]:
    """The figures of one round; None for those that need a served request if there was none."""
    first = first_tokens(replies)
    gaps = sorted(gap for reply in replies if not has_failed(reply) for gap in gaps_of(reply))
    good = sum(seconds <= case.limit_s for seconds in first)
    return {
        "arrived": len(replies),
        "first_token_p50_s": percentile(first, 0.5),
        "first_token_p90_s": percentile(first, 0.9),
        "first_token_max_s": percentile(first, 1.0),
        "itl_p50_ms": percentile(gaps, 0.5, 1000),
        "itl_p99_ms": percentile(gaps, 0.99, 1000),
        "goodput_per_s": round(good / wall_s, 3),
        "goodput_in_window_per_s": round(good / case.seconds, 3),
        "good_share": round(good / len(replies), 3) if replies else None,
        "wall_s": round(wall_s, 1),
        "tokens_per_s": round(served_tokens(replies) / wall_s, 1),
    }


def has_failed(reply: Reply) -> bool:
    """Neither served nor refused."""
    return reply.status not in REFUSED and (reply.status != 200 or bool(reply.error) or not reply.token_times_s)


def first_tokens(replies: Sequence[Reply]) -> list[float]:
    """Seconds to the first tokens of the requests that were served, in ascending order."""
    return sorted(reply.token_times_s[0] for reply in replies if reply.status == 200 and not has_failed(reply))


def served_tokens(replies: Sequence[Reply]) -> int:
    return sum(reply.num_tokens for reply in replies if not has_failed(reply))


def gaps_of(reply: Reply) -> list[float]:
    """Seconds between two events with tokens."""
    return [after - before for before, after in zip(reply.token_times_s, reply.token_times_s[1:], strict=False)]


def percentile(ascending: Sequence[float], share: float, scale: float = 1.0) -> float | None:
    """The value that `share` of the ascending values do not exceed (nearest rank); None without values."""
    if not ascending:
        return None
    return round(scale * ascending[max(0, math.ceil(share * len(ascending)) - 1)], 3)


if __name__ == "__main__":
    main()
