"""An agent's conversation with a model that has recurrent state. Each turn continues from a snapshot, although the
template renders earlier turns differently from how they were generated."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from ballast.engine.core import EngineCore
from ballast.engine.limits import Limits
from ballast.engine.request import Request, SamplingParams
from ballast.engine.runner import with_changes
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.generation.request_builder import RequestBuilder
from ballast.model.metadata import read_spec
from ballast.text.loading import load_text
from ballast.tiny import TinyYarn
from ballast.tiny.presets import V4
from ballast.weights.gguf import open_gguf
from ballast.wire.openai.request import ChatCompletionRequest
from devkit.generate import generate
from devkit.long import if_long, times
from devkit.models.written import MakeTiny

NUM_TURNS = 16
LONGER = {"v4": replace(V4, yarn=TinyYarn(factor=16.0, original_context=512, is_plain=True))}
"""Shapes with room for the conversation, where a preset has none."""
CACHE_LENS = 8192
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}
WORDS = ("ship", "hold", "water", "stones", "upright", "wind", "sails", "a", "the", "of", "and", "takes", "on", "in")


class Agent:
    """An engine, and the text of a conversation with it."""

    def __init__(self, written: MakeTiny, arch: str, *, keeps_snapshots: bool = True) -> None:
        self.arch = arch
        gguf = open_gguf(written(arch=arch, mla="split", quant="q4_k", overrides=LONGER.get(arch)).gguf)
        spec = read_spec(gguf, None)
        self.settings = EngineSettings(
            cache_lens=CACHE_LENS, max_batch_size=2, chunk_size=256, prefill_chunk_size=256, max_new_tokens=64,
            max_queue=8, block_tokens=16,
        )  # fmt: skip
        text = load_text(None, gguf.metadata, gguf.path.name)
        self.runner = load_runner(gguf, spec, text.tokenizer.vocab_size, self.settings)
        limits = Limits(max_new_tokens=64, max_model_tokens=CACHE_LENS, max_batch_size=2, max_queue=8)
        self.text = text
        self.builder = RequestBuilder(text, limits, keeps_snapshots=keeps_snapshots)

    def core(self, *, prefix_cache: bool = True) -> EngineCore:
        return EngineCore(self.runner, with_changes(scheduler_config(self.settings), prefix_cache=prefix_cache))

    def request(self, messages: list[dict[str, Any]]) -> Request:
        # The prompt ends with empty reasoning, which later prompts omit.
        fields = {"messages": messages, "tools": [TOOL], "max_tokens": 24, "enable_thinking": False}
        body = ChatCompletionRequest.model_validate(fields)
        (request,) = self.builder.chat(body).requests("agent")
        greedy = SamplingParams(max_tokens=24, temperature=0.0)
        return Request(
            "agent",
            request.prompt_ids,
            greedy,
            snapshots_at=request.snapshots_at,
            snapshot_before=request.snapshot_before,
        )

    def said(self, token_ids: tuple[int, ...]) -> str:
        return self.text.tokenizer.decode(token_ids)


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


Turn = tuple[Request, tuple[int, ...], int]
"""The request, the ids of the reply and the number of cached tokens."""


def converse(agent: Agent, core: EngineCore) -> list[Turn]:
    """All turns. The reply is sent back as
    content, with reasoning and a call, like a parsed reply."""
    rng = random.Random(3)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": words(rng, 250)},
        {"role": "user", "content": words(rng, 30)},
    ]
    turns = []
    for number in range(1, NUM_TURNS + 1):
        request = agent.request(messages)
        (reply,) = generate(core, [request], first_seq=number)
        turns.append((request, reply.token_ids, reply.cached_tokens))
        reasoning = words(rng, 15) if number % 4 else ""
        answer = {"role": "assistant", "content": agent.said(reply.token_ids), "reasoning_content": reasoning}
        if number % 3:
            function = {"name": "search", "arguments": '{"for":   "' + words(rng, 3) + '"}'}
            call = {"id": f"call_{number}", "type": "function", "function": function}
            result = {"role": "tool", "tool_call_id": call["id"], "content": words(rng, 60)}
            messages += [answer | {"tool_calls": [call]}, result]
        else:
            messages += [answer, {"role": "user", "content": words(rng, 20)}]
    return turns


@pytest.fixture(scope="module", params=["qwen3next", "v4", *if_long("glm53flash", "qwen38flashnext")])
def agent(written: MakeTiny, request: pytest.FixtureRequest) -> Agent:
    return Agent(written, request.param)


@pytest.fixture(scope="module")
def core(agent: Agent) -> EngineCore:
    return agent.core()


@pytest.fixture(scope="module")
def turns(agent: Agent, core: EngineCore) -> list[Turn]:
    return converse(agent, core)


def test_turns_continue_where_the_template_repeats_the_prompt(core: EngineCore, turns: list[Turn]) -> None:
    later = turns[1:]
    num_prompt = sum(len(request.prompt_ids) for request, _, _ in later)
    num_computed = num_prompt - sum(cached for _, _, cached in later)
    assert len(turns[-1][0].prompt_ids) > 2_000
    assert num_computed <= 0.15 * num_prompt, f"{num_computed} of {num_prompt} tokens were recomputed"
    assert core.stats().prefix_cut_tokens < 0.02 * num_prompt
    assert all(request.snapshots_at and request.snapshot_before for request, _, _ in turns)


def test_the_text_is_that_of_a_server_without_a_cache(agent: Agent, turns: list[Turn]) -> None:
    fresh = agent.core(prefix_cache=False)
    assert len({ids for _, ids, _ in turns}) > NUM_TURNS // 2, "the replies are too similar to prove anything"
    for number, (request, ids, _) in list(enumerate(turns, 1))[:: times(3, 1)]:
        (reply,) = generate(fresh, [request], first_seq=number)
        assert (reply.token_ids, reply.cached_tokens) == (ids, 0)


@pytest.mark.parametrize("agent", ["qwen3next"], indirect=True)
def test_without_its_positions_more_is_computed(agent: Agent, turns: list[Turn], written: MakeTiny) -> None:
    without = Agent(written, agent.arch, keeps_snapshots=False)
    found = converse(without, without.core())
    assert not any(request.snapshots_at for request, _, _ in found)
    assert sum(cached for _, _, cached in found) < sum(cached for _, _, cached in turns)
