"""Time to the built-in model's first answer, and its decode speed for one client.

    python benchmarks/serving/built_in.py [--tokens N]

`first_reply`: from the start of `ballast serve` without options to the last byte of its greeting, as in `make demo`
without the setup. `decode`: one stream over HTTP, from its first token to its last.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from devkit.bench_record import bench_record
from devkit.servers.process import ServerProcess

TIMEOUT_S = 120
GOAL_FIRST_REPLY_S, GOAL_TOKENS_PER_S = 10, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1000)
    options = parser.parse_args()
    started = time.monotonic()
    with ServerProcess("--max_new_tokens", str(options.tokens)) as server:
        ready = time.monotonic()
        hello = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0.3}
        reply = "".join(
            chunk["delta"].get("content") or "" for chunk in stream(f"{server.url}/v1/chat/completions", hello)
        )
        answered = time.monotonic()
        # Without --min_tokens, the model would end its reply early and there would be little to time.
        story = {"prompt": "Count to 25", "temperature": 0, "max_tokens": options.tokens, "min_tokens": options.tokens}
        times = [
            time.monotonic() for chunk in stream(f"{server.url}/v1/completions", story) if chunk["text"] is not None
        ]
    print(
        bench_record(
            "serving/built_in",
            "first reply",
            seconds_to_ready=round(ready - started, 2),
            seconds_to_whole_reply=round(answered - started, 2),
            goal_s=GOAL_FIRST_REPLY_S,
            reply=reply,
        )
    )
    print(
        bench_record(
            "serving/built_in",
            f"decode: one stream of {options.tokens} tokens over HTTP",
            tokens_per_s=round((options.tokens - 1) / (times[-1] - times[0]), 1),
            goal_tokens_per_s=GOAL_TOKENS_PER_S,
        )
    )


def stream(url: str, body: dict[str, Any]) -> Iterator[Any]:
    """The first choice of every chunk."""
    request = urllib.request.Request(
        url, json.dumps(body | {"stream": True}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        for line in response:
            data = line.decode().removeprefix("data: ").strip()
            if data and data != "[DONE]":
                yield from json.loads(data)["choices"][:1]


if __name__ == "__main__":
    main()
