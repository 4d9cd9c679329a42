"""Share of the engine's own speed that clients get: decode for 16 streams over HTTP, against the engine alone.

    python benchmarks/serving/served_share.py [MODEL.gguf] [--model_path DIR] [--streams 16] [--tokens N]

Without a file, a tiny model, whose steps are so short that HTTP weighs most. The engine alone is
benchmarks/engine/decode.py in a process of its own, before the server. A file without a vocabulary needs --model_path.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ballast.tiny import write_tiny_model
from support.bench_record import bench_record
from support.servers.process import ServerProcess

DECODE = Path(__file__).resolve().parent.parent / "engine" / "decode.py"
PROMPT_TOKENS = 64
TIMEOUT_S = 230
GOALS = {"tiny": 0.70, "file": 0.95}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--model_path", help="directory with config.json and the tokenizer files")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        tiny = write_tiny_model(Path(directory) / "tiny")
        path = options.model or tiny.gguf
        alone = engine_alone(path, options.streams, options.tokens)
        served, cpu_us = asyncio.run(over_http(path, options.model_path, options.streams, options.tokens))
    print(
        bench_record(
            "serving/served_share",
            f"{path.name if options.model else 'tiny'}: {options.streams} streams of {options.tokens} tokens",
            engine_tokens_per_s=alone,
            served_tokens_per_s=round(served, 1),
            share=round(served / alone, 3),
            goal_share=GOALS["file" if options.model else "tiny"],
            server_cpu_us_per_token=round(cpu_us),
        )
    )


def engine_alone(path: Path, streams: int, tokens: int) -> float:
    counts = ["--batch", str(streams), "--steps", str(tokens), "--prompt", str(PROMPT_TOKENS), "--prefill"]
    ran = subprocess.run(
        [sys.executable, str(DECODE), str(path), *counts], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    speed: float = json.loads(ran.stdout)["tokens_per_s"]
    return speed


async def over_http(path: Path, model_path: str | None, streams: int, tokens: int) -> tuple[float, float]:
    """(tokens per second, CPU microseconds of the server per token) while all streams decode."""
    limits = ("--max_batch_size", str(streams), "--max_new_tokens", str(tokens), "--chunk_size", "512")
    cache = ("--cache_lens", str(streams * (tokens + PROMPT_TOKENS + 64) + 2048))
    model = ("--gguf_path", str(path), *(("--model_path", model_path) if model_path else ()))
    with ServerProcess(*model, *limits, *cache) as server:
        all_begun, one_ended = asyncio.Semaphore(0), asyncio.Event()

        async def stream(number: int) -> None:
            body = json.dumps(
                {
                    "prompt": [5 + (number * 37 + n * 11) % 900 for n in range(PROMPT_TOKENS)],
                    "stream": True,
                    "temperature": 0,
                    "max_tokens": tokens,
                    "ignore_eos": True,
                }
            ).encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            head = (
                "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await reader.readuntil(b"data: ")
            all_begun.release()
            rest = await reader.read()
            one_ended.set()
            writer.close()
            assert b"data: [DONE]" in rest, rest[-500:]

        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
            for number in range(streams):
                group.create_task(stream(number))
            for _ in range(streams):
                await all_begun.acquire()
            begin, before = time.perf_counter(), await asyncio.to_thread(server.metrics)
            await one_ended.wait()
            seconds, after = time.perf_counter() - begin, await asyncio.to_thread(server.metrics)
        name = "ballast_generation_tokens_total"
        made = after[name] - before[name]
        cpu_s = after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
        return made / seconds, cpu_s / made * 1e6


if __name__ == "__main__":
    main()
