"""Cost of HTTP: streamed tokens per second with a model that answers without delay. Prints one JSON line per case.

    python benchmarks/serving/http_overhead.py [--tokens N]

Server, engine and scheduler are the real ones. The client runs in this process and reads raw sockets, to use as little
CPU as possible.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

from devkit.bench_record import bench_record
from devkit.servers.process import FAKE, ServerProcess

STREAM_COUNTS = (1, 4, 16)
GOAL_TOKENS_PER_S = 2000  # over 16 streams on 2 cores
TIMEOUT_S = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1000, help="tokens of each stream")
    num_tokens = parser.parse_args().tokens
    limits = (
        "--max_batch_size",
        "16",
        "--max_new_tokens",
        str(num_tokens),
        "--cache_lens",
        str(20 * num_tokens + 4096),
    )
    with ServerProcess(*limits, module=FAKE) as server:
        asyncio.run(measure(server.port, 1, 50))  # warm-up
        for num_streams in STREAM_COUNTS:
            before = server.metrics()["process_cpu_seconds_total"]
            seconds, bytes_read = asyncio.run(measure(server.port, num_streams, num_tokens))
            cpu_s = server.metrics()["process_cpu_seconds_total"] - before
            total = num_streams * num_tokens
            figures = {
                "tokens_per_s": round(total / seconds),
                "server_cpu_us_per_token": round(cpu_s / total * 1e6, 1),
                "bytes_per_token": round(bytes_read / total),
            }
            if num_streams == STREAM_COUNTS[-1]:
                figures["goal_tokens_per_s"] = GOAL_TOKENS_PER_S
            print(
                bench_record("serving/http_overhead", f"{num_streams} streams of {num_tokens} tokens", **figures),
                flush=True,
            )


async def measure(port: int, num_streams: int, num_tokens: int) -> tuple[float, int]:
    """(seconds, bytes) of concurrent chat streams. Each stream is checked to be complete."""
    started = time.perf_counter()
    async with asyncio.timeout(TIMEOUT_S):
        sizes = await asyncio.gather(*(stream(port, n, num_tokens) for n in range(num_streams)))
    return time.perf_counter() - started, sum(sizes)


async def stream(port: int, number: int, num_tokens: int) -> int:
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": f"stream {number}"}],
            "stream": True,
            "temperature": 0,
            "max_tokens": num_tokens,
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    reply = await reader.read()
    writer.close()
    await writer.wait_closed()
    num_pieces = reply.count(b'"delta":{"content":')
    assert num_pieces == num_tokens, f"{num_pieces} pieces instead of {num_tokens}: {reply[:500]!r}"
    assert b"data: [DONE]" in reply
    return len(reply)


if __name__ == "__main__":
    main()
