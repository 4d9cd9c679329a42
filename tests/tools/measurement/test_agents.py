"""The benchmark of agents' conversations: what it sends, and what it makes of the answers."""

from __future__ import annotations

import argparse
import json
import random
from itertools import pairwise

import pytest

from benchmarks.serving.agents import (
    TOOLS,
    Answer,
    Client,
    Conversation,
    Others,
    Ruler,
    ServerError,
    figures,
    latencies,
    main,
    measure,
    said_in,
    spread,
)
from devkit.models.written import tiny_model
from devkit.servers.process import ServerProcess

OPTIONS = ("--device", "cpu", "--cpu_threads", "1", "--max_batch_size", "4", "--max_new_tokens", "256", "--cache_lens")


def conversation(num_turns: int = 9, num_tokens: int = 9_000) -> Conversation:
    """One whose words have a token per letter, with answers of 10 tokens."""
    found = Conversation(random.Random(1), Ruler(100.0, 6.0), num_turns, num_tokens)
    for _ in range(num_turns):
        letters = sum(len(str(message.get("content"))) for message in found.next_prompt())
        found.answers.append(Answer(0.1, "a reply", prompt_tokens=100 + letters, cached_tokens=0))
    return found


def test_a_conversation_grows_by_results_and_a_question_each_third_turn() -> None:
    roles = [message["role"] for message in conversation().messages]
    called = ["assistant", "tool", "assistant", "tool"]
    assert roles == ["system", "user", *called, "assistant", "user", *called, "assistant", "user", *called]


def test_prompts_grow_evenly_to_the_number_of_tokens() -> None:
    sizes = [answer.prompt_tokens for answer in conversation().answers]
    assert sizes == pytest.approx([1000 * turn for turn in range(1, 10)], abs=100)


def test_calls_are_those_of_a_declared_tool_and_results_name_them() -> None:
    messages = conversation().messages
    declared = TOOLS[0]["function"]
    for message, after in pairwise(messages):
        for call in message.get("tool_calls", ()):
            assert call["function"]["name"] == declared["name"]
            assert list(json.loads(call["function"]["arguments"])) == declared["parameters"]["required"]
            assert after["tool_call_id"] == call["id"]


def test_a_prompt_that_is_sent_again_differs_in_the_first_word_alone() -> None:
    talk = conversation()
    whole, again = talk.messages[: talk.prompts[4]], talk.again(4)
    assert again[1:] == whole[1:]
    first, other = (message["content"].partition(" ") for message in (whole[0], again[0]))
    assert first[2] == other[2]
    assert first[0] != other[0]
    assert len(first[0]) == len(other[0])


def test_the_same_seed_gives_the_same_conversation() -> None:
    assert conversation().messages == conversation().messages


@pytest.mark.parametrize(
    ("count", "turns"), [(None, [*range(1, 20)]), (40, [*range(1, 20)]), (3, [1, 10, 19]), (1, [10]), (0, [])]
)
def test_turns_that_are_processed_again_are_spread_from_the_second_to_the_last(
    count: int | None, turns: list[int]
) -> None:
    assert spread(20, count) == turns


def test_figures_compare_medians_and_count_cached_tokens() -> None:
    continued = [Answer(seconds, "", 100, 90) for seconds in (0.3, 0.1, 0.2)]
    found = figures(continued, [Answer(2.0, "", 100, 1), Answer(1.0, "", 300, 1), Answer(4.0, "", 100, 0)])
    assert (found["first_token_p50_s"], found["again_p50_s"], found["share_of_again"]) == (0.2, 2.0, 0.1)
    assert (found["cached_share"], found["again_cached_share"]) == (0.9, 0.004)
    assert figures(continued, [])["share_of_again"] is None


def test_latencies_are_in_milliseconds() -> None:
    found = latencies("others", [0.01, 0.02, 0.06])
    assert found == {"others_itl_p50_ms": 20, "others_itl_p99_ms": 60, "others_itl_mean_ms": 30}
    assert latencies("others", [])["others_itl_mean_ms"] is None


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        ({"content": "a"}, "a"),
        ({"role": "assistant", "content": None}, ""),
        ({"reasoning_content": "b"}, "b"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": ""}}]}, "f"),
        ({"tool_calls": [{"function": {"arguments": "{"}}]}, "{"),
    ],
    ids=str,
)
def test_text_of_any_kind_is_a_first_token(delta: dict[str, object], text: str) -> None:
    assert said_in({"choices": [{"delta": delta}]}) == text
    assert said_in({"choices": [], "usage": {}}) == ""


def test_a_recurrent_model_continues_its_conversations() -> None:
    file = tiny_model(arch="qwen3next", mla="split", quant="q4_k").gguf
    options = argparse.Namespace(
        turns=5, tokens=1000, reply=8, again=2, others=1, server="ballast", name="tiny", command="", version="",
        model="tiny.gguf", gpu="",
    )  # fmt: skip
    with ServerProcess("--gguf_path", str(file), *OPTIONS, "4096", "--block_tokens", "16") as server:
        client = Client(server.url)
        others = Others(client, 1)
        with others.running():
            record = json.loads(measure(options, client, others, Ruler.of(client, random.Random(1)), [0.001], 2))
        with pytest.raises(ServerError, match=r"400.*messages"):
            client.ask([], 1)
    assert record["case"] == "tiny: 2 at once, 5 turns to 1000 tokens"
    assert record["last_prompt_tokens"] == pytest.approx(1000, abs=150)
    assert record["cached_share"] > 0.5
    assert record["again_cached_share"] == 0
    assert record["again_turns"] == [2, 5]
    assert record["others_again_itl_p50_ms"] > 0
    assert record["model"] == "tiny.gguf"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--turns", "1"), "--turns=1: the figures are of the second turn and later ones"),
        (("--tokens", "300"), "--tokens=300: 20 turns with their replies need 2560 or more"),
    ],
)
def test_sizes_that_no_conversation_can_have_are_refused(
    options: tuple[str, str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["agents.py", *options])
    with pytest.raises(SystemExit):
        main()
    assert message in capsys.readouterr().err
