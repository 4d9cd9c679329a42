"""Evaluates the built-in model through Ballast's HTTP server: `python -m tools.tiny_model.evaluate`.

Sends every question to /v1/chat/completions as a client does: tools as `tools`, and calls read from `tool_calls`.
Starts a server with the shipped file, or uses the one at --url.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ballast.text.chat_template import ChatTemplate
from ballast.tiny.builtin import BUILT_IN
from ballast.tiny.tokenizer import BOS, EOS
from devkit.servers.process import ServerProcess
from tools.tiny_model.corpus.conversation import Call, messages
from tools.tiny_model.corpus.exam import Item, Reply, examination

SEED = 7
BARS = {
    "copying": 0.95,
    "counting": 0.95,
    "addition": 0.95,
    "tool calls": 0.90,
    "tool calls, new tools": 0.90,
    "valid JSON": 0.90,
    "right JSON": 0.90,
    "about Ballast": 0.90,
}
"""Required scores of the tasks. Other scores are only printed."""
_MOST_TOKENS = 160
_AT_ONCE = 16
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, and the reasoning before it."""

    reply: Reply
    thought: str | None
    is_whole: bool
    """Whether the model ended the reply before the token limit."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="URL of a running server, without /v1")
    parser.add_argument("--gguf", type=Path, default=BUILT_IN.gguf)
    parser.add_argument("--config", type=Path, default=BUILT_IN.config_dir, help="directory of its tokenizer files")
    parser.add_argument(
        "--items", type=int, default=200, help="items of each task; questions about Ballast are always used completely"
    )
    parser.add_argument("--wrong", type=int, default=0, help="number of wrong replies to show per task")
    options = parser.parse_args()
    items = list(examination(SEED, options.items))
    if options.url:
        return report(items, ask(options.url, items), options.wrong)
    with ServerProcess(*server_options(options.gguf, options.config)) as server:
        return report(items, ask(server.url, items), options.wrong)


def server_options(gguf: Path, config: Path = BUILT_IN.config_dir) -> Sequence[str]:
    """Server options for the evaluation. Completions show the tokens of tool calls."""
    paths = ("--gguf_path", str(gguf), "--model_path", str(config))
    return (*paths, "--max_batch_size", str(_AT_ONCE))


def ask(url: str, items: Sequence[Item]) -> list[Answer]:
    """The greedy answer to each item."""

    def one(item: Item) -> Answer:
        body: dict[str, Any] = {
            "messages": messages(item.conversation),
            "thinking": item.think,
            "temperature": 0,
            "max_tokens": _MOST_TOKENS,
        }
        if item.conversation.tools:
            body["tools"] = [{"type": "function", "function": tool} for tool in item.conversation.tools]
        choice = _post(f"{url}/v1/chat/completions", body)["choices"][0]
        message = choice["message"]
        calls = tuple(map(_call, message.get("tool_calls") or ()))
        reply = Reply(message["content"] or "", calls)
        return Answer(reply, message.get("reasoning_content"), choice["finish_reason"] != "length")

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(one, items))


def complete(url: str, prompts: Sequence[str]) -> list[str]:
    """The greedy text after each prompt, including special tokens."""

    def one(prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": _MOST_TOKENS, "temperature": 0}
        return str(_post(f"{url}/v1/completions", body)["choices"][0]["text"])

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(one, prompts))


def _call(made: dict[str, Any]) -> Call:
    """A call as a client reads it. Arguments that are no JSON object count as missing."""
    function = made["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = None
    return Call(function["name"], arguments)


def rendered(item: Item) -> str:
    """The prompt that the server renders for the item."""
    return _template().render(
        messages(item.conversation), tools=item.conversation.tools, options={"thinking": item.think}
    )


@cache
def _template() -> ChatTemplate:
    config = json.loads((BUILT_IN.config_dir / "tokenizer_config.json").read_text(encoding="utf-8"))
    return ChatTemplate(config["chat_template"], bos_token=BOS, eos_token=EOS)


def is_right(item: Item, answer: Answer) -> bool:
    """Whether the reply is right, complete, and has reasoning exactly if it was requested."""
    return answer.is_whole and bool(answer.thought) == item.think and item.is_right(answer.reply)


def report(items: Sequence[Item], answers: Sequence[Answer], num_wrong: int = 0) -> int:
    """Prints a line per task. Returns how many tasks missed their required score."""
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for item, answer in zip(items, answers, strict=True):
        asked[item.task] += 1
        if is_right(item, answer):
            right[item.task] += 1
        elif (wrong := wrong + Counter([item.task]))[item.task] <= num_wrong:
            print(f"{item.task}: {item.conversation.turns[-1].user!r}\n    {answer}")
    missed = 0
    for task, total in asked.items():
        share, bar = right[task] / total, BARS.get(task)
        missed += bar is not None and share < bar
        print(json.dumps({"task": task, "right": right[task], "asked": total, "share": round(share, 4), "bar": bar}))
    return missed


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        return json.load(response)


if __name__ == "__main__":
    raise SystemExit(main())
