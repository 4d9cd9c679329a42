"""First-token times of conversations that continue, with and without tiers for evicted KV blocks.

python benchmarks/serving/conversations.py [--conversations 8] [--turns 20] [--first TOKENS] [--tokens 40000]
    [--reply 32] [--tiers none,host,disk] [--kv-bytes 32GiB] [--folder DIR] [--rounds 1] [-- OPTIONS of ballast serve]

Agents' conversations take turns: each request sends the whole conversation and some more, and the conversation grows to
`--tokens`. The first message is `--first` tokens longer than the tokens that each turn adds. Meanwhile one request
decodes without end and shows the effect on other requests. Choose `--cache_lens` so that the cache holds one or two
conversations. Each tier runs on a server of its own, in the order of `--tiers`, for `--rounds` rounds. The texts of all
tiers must be equal, or the program fails. Prints one JSON line per tier and round. The times do not include the first
turn of each conversation, which cannot be cached.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from devkit.bench_record import bench_record
from devkit.servers.process import JSON, ServerProcess, events_of

FIRST_TOKENS = 200
"""Number of token ids that prompts use. Every vocabulary has them, and none of them ends a text."""
TIMEOUT_S = 3600


@dataclass
class Measured:
    """Figures of one tier, in seconds unless a name says otherwise."""

    first_tokens: list[float] = field(default_factory=list)
    between_tokens: list[float] = field(default_factory=list)
    """Inter-token latencies of the request that decodes meanwhile."""
    cached_tokens: int = 0
    prompt_tokens: int = 0
    digest: str = ""
    rss_gib: list[float] = field(default_factory=list)
    """After each turn of all conversations."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=40_000)
    parser.add_argument("--reply", type=int, default=32)
    parser.add_argument("--tiers", default="none,host,disk")
    parser.add_argument("--kv-bytes", default="32GiB")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    given, rest = sys.argv[1:], []
    if "--" in given:
        at = given.index("--")
        given, rest = given[:at], given[at + 1 :]
    options = parser.parse_args(given)
    digests = set()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for number in range(options.rounds):
            for tier in options.tiers.split(","):
                found = measure(options, tier, Path(folder) / f"kv-{number}", rest)
                digests.add(found.digest)
                print(record(options, tier, found, rest), flush=True)
    if len(digests) > 1:
        raise SystemExit("the tiers gave different texts")


def record(options: argparse.Namespace, tier: str, found: Measured, rest: list[str]) -> str:
    times = sorted(found.first_tokens)
    begin = f"from {options.first} " if options.first else ""
    size = f"{options.conversations} conversations of {options.turns} turns {begin}to {options.tokens} tokens"
    return bench_record(
        "serving/conversations",
        f"{size}, beside the cache: {tier}",
        server_options=" ".join(rest),
        first_token_p50_s=round(median(times), 4),
        first_token_p99_s=round(times[min(len(times) - 1, int(len(times) * 0.99))], 4),
        others_token_p50_ms=round(1000 * median(found.between_tokens), 3) if found.between_tokens else None,
        cached_share=round(found.cached_tokens / found.prompt_tokens, 4),
        rss_first_gib=round(found.rss_gib[0], 3),
        rss_last_gib=round(found.rss_gib[-1], 3),
    )


def measure(options: argparse.Namespace, tier: str, folder: Path, rest: list[str]) -> Measured:
    ways: dict[str, list[str]] = {
        "none": ["--kv_host_bytes", "0"],
        "host": ["--kv_host_bytes", options.kv_bytes],
        "disk": ["--kv_host_bytes", "0", "--kv_disk_dir", str(folder), "--kv_disk_bytes", options.kv_bytes],
    }
    found, digest = Measured(), hashlib.sha256()
    rng = random.Random(1)
    growth = max(1, (options.tokens - options.first) // options.turns - options.reply)
    message: list[list[int]] = [[] for _ in range(options.conversations)]
    with ServerProcess(*rest, *ways[tier]) as server:
        is_over = threading.Event()
        other = threading.Thread(target=decode_until, args=(server, is_over, found.between_tokens))
        other.start()
        try:
            for turn in range(options.turns):
                for each in message:
                    new = growth if turn else growth + options.first
                    each += [rng.randrange(10, FIRST_TOKENS) for _ in range(new)]
                    begin = time.perf_counter()
                    events = stream(server, {"prompt": each, "max_tokens": options.reply})
                    text = next(events)["choices"][0]["text"]
                    usage: dict[str, Any] = {}
                    if turn:
                        found.first_tokens.append(time.perf_counter() - begin)
                    for event in events:
                        usage = event.get("usage") or usage
                        text += "".join(choice["text"] for choice in event["choices"])
                    digest.update(text.encode())
                    if turn:
                        found.prompt_tokens += usage["prompt_tokens"]
                        found.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
                    # The conversation continues with the same ids for any reply, so the requests are the same for all
                    # tiers.
                    each += [rng.randrange(10, FIRST_TOKENS) for _ in range(options.reply)]
                found.rss_gib.append(resident_gib(server.process.pid))
        finally:
            is_over.set()
            other.join()
    found.digest = digest.hexdigest()
    return found


def resident_gib(pid: int) -> float:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 2**20


def decode_until(server: ServerProcess, is_over: threading.Event, between: list[float]) -> None:
    while not is_over.is_set():
        last = None
        for _ in stream(server, {"prompt": [11, 12, 13], "max_tokens": 256}):
            now = time.perf_counter()
            if last is not None:
                between.append(now - last)
            last = now
            if is_over.is_set():
                return


def stream(server: ServerProcess, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a greedy completion that ends only by its length."""
    whole = body | {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(whole).encode(), JSON)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        yield from events_of(response)


if __name__ == "__main__":
    main()
