"""Throughput of the library compared with the engine alone: the cost of tokenizing prompts and decoding texts around
the same steps.

python benchmarks/engine/library.py [MODEL.gguf] [--tokenizer DIR] [--prompts 256] [--tokens 32] [--batch 16]
    [--rounds 5]

Both process the same prompts with the same settings, alternately: `LLM.generate` from texts to texts, and `Engine`
alone from token ids to token ids, with all requests submitted immediately. Prints one JSON line. `share` is the
library's tokens per second divided by the engine's, the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from pathlib import Path

from ballast import LLM, SamplingParams
from ballast.engine.engine import Engine
from ballast.engine.request import Request
from ballast.engine.request import SamplingParams as EngineParams
from ballast.host.isa import chosen_isa
from devkit.bench_record import bench_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json, for a file without a vocabulary")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    prompts = [f"What is {n} + {n % 7}?" for n in range(options.prompts)]
    params = SamplingParams(temperature=0, max_tokens=options.tokens, ignore_eos=True)
    shape = {
        "cache_lens": (options.batch + 1) * 256,
        "max_new_tokens": 256 if options.tokens <= 256 else options.tokens,
    }
    with LLM(options.model, tokenizer=options.tokenizer, max_num_seqs=options.batch, **shape) as llm:
        ids = [output.prompt_token_ids for output in llm.generate(prompts, params, use_tqdm=False)]  # warms both up
        engine = llm._model.engine
        rounds = []
        for _ in range(options.rounds):
            begin = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            library_s = time.perf_counter() - begin
            engine_s = llm._model.wait(run_alone(engine, ids, options.tokens))
            rounds.append((library_s, engine_s))
    shares = [engine_s / library_s for library_s, engine_s in rounds]
    total = options.prompts * options.tokens
    print(
        bench_record(
            "engine/library",
            f"{options.model.name if options.model else 'built-in'}, {chosen_isa()}",
            prompts=options.prompts,
            tokens=options.tokens,
            batch=options.batch,
            rounds=options.rounds,
            library_tokens_per_s=round(total / statistics.median(each[0] for each in rounds)),
            engine_tokens_per_s=round(total / statistics.median(each[1] for each in rounds)),
            share=round(statistics.median(shares), 4),
            lowest_share=round(min(shares), 4),
            load_average=round(os.getloadavg()[0], 1),
        )
    )


async def run_alone(engine: Engine, prompts: list[tuple[int, ...]], tokens: int) -> float:
    """Seconds in which the engine answers all prompts. They are submitted immediately, up to the limit of its queue."""
    begin = time.perf_counter()
    room = asyncio.Semaphore(engine.limits.max_queue)

    async def one(number: int, ids: tuple[int, ...]) -> None:
        async with room:
            sampling = EngineParams(max_tokens=tokens, temperature=0.0)
            async for _ in engine.submit(Request(str(number), ids, sampling)):
                pass

    await asyncio.gather(*(one(number, ids) for number, ids in enumerate(prompts)))
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
