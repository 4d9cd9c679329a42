"""Cost of prompts for requests that decode, and for requests that wait behind other prompts.

python benchmarks/engine/prompts_beside.py MODEL.gguf [--prompt 4096] [--count 3] [--long 32768] [--without_costs]
       [any option of `ballast serve`]

Three requests decode (temperature 0.6, top_p 0.95). Then prompts arrive one after another, and finally a short prompt
arrives behind a long one. Everything is first measured alone. Step costs are measured at start, as in a server. Prompts
are random token ids, so the file needs no vocabulary. Prints one JSON line per case.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ballast import cli
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.engine.startup.step_costs import with_measured_costs
from ballast.model.metadata import read_spec
from ballast.plan import plan_for, planned, planned_settings
from ballast.weights.gguf import open_gguf
from devkit.bench_record import bench_record

SHORT = 200
CONTEXT = 64
"""Prompt tokens of the requests that decode."""
NUM_DECODERS = 3
LIMITS = ("--cache_lens", "49152", "--max_batch_size", str(NUM_DECODERS + 3), "--max_new_tokens", "1024")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--count", type=int, default=3, help="number of prompts that arrive while requests decode")
    parser.add_argument("--long", type=int, default=0, help="tokens of the long prompt before the short one")
    parser.add_argument(
        "--without_costs", action="store_true", help="schedule with a constant instead of measured costs"
    )
    parser.add_argument("--alone_s", type=float, default=3.0, help="seconds of decoding without prompts")
    options, serve = parser.parse_known_args()
    gguf_model = open_gguf(options.model)
    spec = read_spec(gguf_model, None)
    config = cli.serve_config(["--gguf_path", str(options.model), *LIMITS, *serve])
    plan = plan_for(config, gguf_model, spec)
    settings = planned_settings(planned(config, plan), plan)
    runner = load_runner(gguf_model, spec, spec.vocab_size, settings)
    rules = scheduler_config(settings)
    if not options.without_costs:
        rules = with_measured_costs(rules, runner, min(spec.context_length, settings.cache_lens), lambda: None)
    clients = Clients(EngineCore(runner, rules), spec.vocab_size)
    for case, figures in cases(clients, options):
        print(
            bench_record(
                "engine/prompts_beside",
                f"{options.model.name}: {case}",
                options=" ".join(serve),
                threads=settings.cpu_threads,
                devices=[f"{each.name}: {len(each.layers)} layers" for each in settings.devices],
                lanes=1 + rules.has_prefill_lane,
                chosen_by="a constant" if options.without_costs else "cost",
                prefill_chunk_size=settings.prefill_chunk_size,
                **figures,
            ),
            flush=True,
        )


class Clients:
    """Requests of one engine, and the arrival times of their tokens."""

    def __init__(self, core: EngineCore, vocabulary: int) -> None:
        self._core = core
        self._rng = np.random.default_rng(0)
        self._vocabulary = vocabulary
        self._seqs = itertools.count(1)
        self.tokens: defaultdict[int, list[float]] = defaultdict(list)
        self.arrived: dict[int, float] = {}

    def add(self, prompt_tokens: int, max_tokens: int) -> int:
        seq = next(self._seqs)
        prompt = tuple(self._rng.integers(0, self._vocabulary, prompt_tokens).tolist())
        params = SamplingParams(max_tokens=max_tokens, temperature=0.6, top_p=0.95)
        self._core.add(seq, Request(str(seq), prompt, params), seq)
        self.arrived[seq] = time.perf_counter()
        return seq

    def end(self, *seqs: int) -> None:
        for seq in seqs:
            self._core.abort(seq)
        while self._core.step().num_tokens:
            pass

    def run_until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            events = self._core.step().events
            now = time.perf_counter()
            for event in events:
                self.tokens[event.seq].append(now)

    def first_token_s(self, seq: int) -> float:
        return self.tokens[seq][0] - self.arrived[seq]

    def between(self, seqs: list[int], begin: float, end: float) -> list[float]:
        """Inter-token latencies in seconds of the given requests, for tokens that came between two times."""
        return [
            after - before
            for seq in seqs
            for before, after in itertools.pairwise(self.tokens[seq])
            if begin < after <= end
        ]


def cases(clients: Clients, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, object]]]:
    def first_token_s(num_tokens: int) -> float:
        seq = clients.add(num_tokens, 1)
        clients.run_until(lambda: bool(clients.tokens[seq]))
        return clients.first_token_s(seq)

    def alone(num_tokens: int) -> float:
        return min(first_token_s(num_tokens) for _ in range(2))

    prompt_alone_s, short_alone_s = alone(options.prompt), alone(SHORT)
    yield f"prompt {options.prompt} alone", {"ttft_s": round(prompt_alone_s, 3)}
    yield f"prompt {SHORT} alone", {"ttft_s": round(short_alone_s, 3)}

    decoders = [clients.add(CONTEXT, 1024) for _ in range(NUM_DECODERS)]
    clients.run_until(lambda: all(len(clients.tokens[seq]) > 4 for seq in decoders))
    begin = time.perf_counter()
    clients.run_until(lambda: time.perf_counter() - begin > options.alone_s)
    itl_alone = clients.between(decoders, begin, time.perf_counter())
    begin = time.perf_counter()
    firsts = [first_token_s(options.prompt) for _ in range(options.count)]
    end = time.perf_counter()
    itl = clients.between(decoders, begin, end)
    clients.end(*decoders)
    alone_rate = 1 / np.mean(itl_alone)
    rate = len(itl) / (end - begin) / NUM_DECODERS
    yield (
        f"{NUM_DECODERS} decode, {options.count} prompts of {options.prompt}",
        {
            "tokens_per_s_each_alone": round(float(alone_rate), 2),
            "tokens_per_s_each": round(rate, 2),
            "share_of_alone": round(float(rate / alone_rate), 3),
            "itl_p50_ms_alone": ms(itl_alone, 50),
            "itl_p99_ms_alone": ms(itl_alone, 99),
            "itl_p50_ms": ms(itl, 50),
            "itl_p99_ms": ms(itl, 99),
            "itl_p99_over_alone_p50": round(ms(itl, 99) / ms(itl_alone, 50), 2),
            "ttft_s": [round(each, 3) for each in firsts],
            "ttft_over_alone": round(float(np.median(firsts)) / prompt_alone_s, 2),
        },
    )
    if not options.long:
        return
    begin = time.perf_counter()
    long_seq = clients.add(options.long, 1)
    clients.run_until(lambda: time.perf_counter() - begin > 0.2)
    short_seq = clients.add(SHORT, 1)
    clients.run_until(lambda: bool(clients.tokens[long_seq] and clients.tokens[short_seq]))
    yield (
        f"prompt {SHORT} behind one of {options.long}",
        {
            "ttft_s": round(clients.first_token_s(short_seq), 3),
            "ttft_s_alone": round(short_alone_s, 3),
            "ttft_s_of_the_long": round(clients.first_token_s(long_seq), 3),
            "tokens_per_s_of_the_long": round(options.long / clients.first_token_s(long_seq)),
        },
    )


def ms(seconds: list[float], percentile: float) -> float:
    return round(float(np.percentile(seconds, percentile)) * 1e3, 2)


if __name__ == "__main__":
    main()
