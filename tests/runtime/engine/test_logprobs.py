"""Log probabilities: equal to a plain softmax, and prompts are scored as if generated, in any batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.sampling.logprobs import LOWEST, TokenLogprobs
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.model.metadata import read_spec
from ballast.weights.gguf import open_gguf
from devkit.compiled_sampler import compiled_logprobs
from devkit.models.written import write_tiny_model


def test_log_probabilities_match_a_softmax_in_order_with_ties_by_id():
    logits = np.random.default_rng(1).normal(0, 5, 1000).astype(np.float32)
    logits[[7, 3]] = logits.max() + 1
    exact = logits.astype(np.float64) - np.log(np.sum(np.exp(logits.astype(np.float64))))
    scores = compiled_logprobs(logits, 11, 5)
    assert scores.logprob == pytest.approx(exact[11], abs=1e-5)
    assert [token for token, _ in scores.top[:2]] == [3, 7]
    assert [token for token, _ in scores.top] == sorted(range(1000), key=lambda n: (-logits[n], n))[:5]
    assert [logprob for _, logprob in scores.top] == pytest.approx([exact[token] for token, _ in scores.top], abs=1e-5)


def test_an_impossible_token_has_a_finite_log_probability():
    logits = np.full(4, -np.inf, np.float32)
    logits[2] = 5.0
    scores = compiled_logprobs(logits, 0, 9)
    assert scores.logprob == LOWEST
    assert scores.top[0] == (2, 0.0)
    assert {logprob for _, logprob in scores.top[1:]} == {LOWEST}


@pytest.fixture(scope="module")
def make_core(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., EngineCore]:
    directory: Path = tmp_path_factory.mktemp("tiny")
    gguf_model = open_gguf(write_tiny_model(directory, arch="v2", mla="split", quant="q4_k").gguf)
    spec = read_spec(gguf_model, None)

    def make(*, max_batch_size: int = 4, chunk_size: int = 8, cache_lens: int = 4096) -> EngineCore:
        settings = EngineSettings(
            cache_lens=cache_lens,
            max_batch_size=max_batch_size,
            max_new_tokens=64,
            chunk_size=chunk_size,
            prefill_chunk_size=2 * chunk_size,
            max_queue=64,
            block_tokens=16,
        )
        return EngineCore(load_runner(gguf_model, spec, spec.vocab_size, settings), scheduler_config(settings))

    return make


def run(core: EngineCore, requests: list[Request]) -> list[tuple[list[TokenLogprobs], list[TokenLogprobs]]]:
    """(scores of the prompt, scores of the tokens) of each request."""
    scores_of: list[tuple[list[TokenLogprobs], list[TokenLogprobs]]] = [([], []) for _ in requests]
    for seq, request in enumerate(requests):
        core.add(seq, request, seed=seq)
    while core.stats().running + core.stats().waiting:
        result = core.step()
        assert not result.failed
        for event in result.prefilled:
            assert not scores_of[event.seq][1], "a prompt's scores come before its first token"
            scores_of[event.seq][0].extend(event.scores)
        for token in result.events:
            assert token.logprobs is not None
            assert token.logprobs.token_id == token.token_id
            scores_of[token.seq][1].append(token.logprobs)
    return scores_of


def request(prompt: list[int], max_tokens: int, *, score: bool) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, logprobs=3)
    return Request("test", tuple(prompt), sampling, prompt_logprobs=sampling.logprobs if score else None)


PROMPTS = [[(7 * n + seed) % 250 for n in range(size)] for seed, size in [(1, 50), (2, 9), (1, 33), (3, 1), (1, 50)]]


def test_a_prompt_is_scored_as_if_it_had_been_generated(make_core: Callable[..., EngineCore]):
    core = make_core()
    generated = [tokens for _, tokens in run(core, [request(prompt, 12, score=False) for prompt in PROMPTS])]
    longer = [prompt + [each.token_id for each in tokens] for prompt, tokens in zip(PROMPTS, generated, strict=True)]
    scored = run(core, [request(prompt, 1, score=True) for prompt in longer])
    for prompt, (scores, _), tokens in zip(PROMPTS, scored, generated, strict=True):
        assert len(scores) == len(prompt) + 12 - 1, "every token except the first has a score, cached or not"
        assert scores[-12:] == tokens, "bit for bit"


def test_scores_do_not_depend_on_batch_chunks_or_preemption(make_core: Callable[..., EngineCore]):
    requests = [request(prompt, 10, score=True) for prompt in PROMPTS]
    alone = [run(make_core(), [each])[0] for each in requests]
    assert run(make_core(), requests) == alone
    assert run(make_core(max_batch_size=2, chunk_size=3), requests) == alone
    tight = make_core(cache_lens=80)
    assert run(tight, requests) == alone
    assert tight.stats().preemptions > 0
