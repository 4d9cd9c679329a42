"""Share of the engine's own speed that clients get over HTTP, greedy and sampled.

    python benchmarks/serving/served_share.py [MODEL.gguf] [--model_path DIR] [--streams 1 4 16] [--tokens N]
                                              [--only_served] [any option of `ballast serve`]

Without a file, uses a tiny model. Its steps are so short that the cost of HTTP is largest. The engine alone is
benchmarks/engine/decode.py in a process of its own, before the server. A file without a vocabulary needs --model_path.
Sampling is as DeepSeek-R1 recommends: temperature 0.6, top_p 0.95. Prints one JSON line per number of streams.
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
from devkit.bench_record import bench_record
from devkit.servers.process import ServerProcess

DECODE = Path(__file__).resolve().parent.parent / "engine" / "decode.py"
PROMPT_TOKENS = 64
TIMEOUT_S = 230
GOALS = {"tiny": 0.70, "file": 0.95}
SAMPLINGS = {"": {"temperature": 0.0}, ", sampled": {"temperature": 0.6, "top_p": 0.95}}
"""Fields that a request adds, by decode.py's name for the sampling."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--model_path", help="directory with config.json and the tokenizer files")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each stream")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds for each number of streams; the record has the median"
    )
    parser.add_argument("--only_served", action="store_true", help="do not measure the engine alone")
    options, serve = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as directory:
        tiny = write_tiny_model(Path(directory) / "tiny")
        path = options.model or tiny.gguf
        alone = {} if options.only_served else engine_alone(path, options.streams, options.tokens)
        for streams, served, cpu_us in asyncio.run(over_http(path, options, serve)):
            name = f"{path.name if options.model else 'tiny'}: {streams} streams of {options.tokens} tokens"
            shares = {}
            if alone:
                shares = {
                    "engine_tokens_per_s": alone[streams],
                    "share": round(served[""] / alone[streams], 3),
                    "goal_share": GOALS["file" if options.model else "tiny"],
                }
            print(
                bench_record(
                    "serving/served_share",
                    name,
                    options=" ".join(serve),
                    served_tokens_per_s=round(served[""], 1),
                    sampled_tokens_per_s=round(served[", sampled"], 1),
                    sampled_over_greedy=round(served[", sampled"] / served[""], 3),
                    server_cpu_us_per_token=round(cpu_us),
                    **shares,
                ),
                flush=True,
            )


def engine_alone(path: Path, streams: list[int], tokens: int) -> dict[int, float]:
    """Tokens per second of greedy decoding, by the number of streams."""
    counts = ["--batch", *map(str, streams), "--steps", str(tokens), "--prompt", str(PROMPT_TOKENS), "--prefill"]
    ran = subprocess.run(
        [sys.executable, str(DECODE), str(path), *counts], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    records = map(json.loads, ran.stdout.splitlines())
    return {each["batch"]: each["tokens_per_s"] for each in records if not each["case"].endswith("sampled")}


async def over_http(
    path: Path, options: argparse.Namespace, serve: list[str]
) -> list[tuple[int, dict[str, float], float]]:
    """For each number of streams: tokens per second by sampling while all of them decode, and CPU microseconds of the
    server per token."""
    most, tokens = max(options.streams), options.tokens
    limits = ("--max_batch_size", str(most), "--max_new_tokens", str(tokens), "--chunk_size", "512")
    cache = ("--cache_lens", str(most * (tokens + PROMPT_TOKENS + 64) + 2048))
    model = ("--gguf_path", str(path), *(("--model_path", options.model_path) if options.model_path else ()))
    results = []
    with ServerProcess(*model, *limits, *cache, *serve) as server:
        for streams in options.streams:
            rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in SAMPLINGS}
            for _ in range(options.rounds):
                for name, sampling in SAMPLINGS.items():
                    rounds[name].append(await one_round(server, streams, tokens, sampling))
            speeds = {name: sorted(speed for speed, _ in each)[len(each) // 2] for name, each in rounds.items()}
            results.append((streams, speeds, min(cpu_us for _, cpu_us in rounds[""])))
    return results


async def one_round(
    server: ServerProcess, streams: int, tokens: int, sampling: dict[str, float]
) -> tuple[float, float]:
    """(tokens per second, CPU microseconds of the server per token) while all streams decode."""
    all_begun, one_ended = asyncio.Semaphore(0), asyncio.Event()

    async def stream(number: int) -> None:
        body = json.dumps(
            {
                "prompt": [5 + (number * 37 + n * 11) % 900 for n in range(PROMPT_TOKENS)],
                "stream": True,
                "max_tokens": tokens,
                "ignore_eos": True,
                "seed": number,
                **sampling,
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
