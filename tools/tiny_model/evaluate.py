"""The built-in model's marks, asked of Ballast serving a file over HTTP: `python -m tools.tiny_model.evaluate`.

Starts a server on the shipped file, or asks the one at --url, which must serve with --model_path so that the tokens of
tool calls are visible text.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from tools.tiny_model.corpus.conversation import messages
from tools.tiny_model.corpus.exam import Item, examination

from ballast.testing.server_process import ServerProcess
from ballast.text.chat_template import ChatTemplate, force_think
from ballast.tiny.builtin import BUILT_IN
from ballast.tiny.tokenizer import BOS, EOS

SEED = 7
BARS = {
    "copying": 0.95,
    "counting": 0.95,
    "addition": 0.95,
    "tool calls": 0.90,
    "valid JSON": 0.90,
    "right JSON": 0.90,
    "about Ballast": 0.90,
}
_MOST_TOKENS = 160
_AT_ONCE = 16
_TIMEOUT_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server to ask, without /v1")
    parser.add_argument("--gguf", type=Path, default=BUILT_IN.gguf)
    parser.add_argument(
        "--items", type=int, default=200, help="of each task; about Ballast there are as many as there are"
    )
    parser.add_argument("--wrong", type=int, default=0, help="show so many wrong replies of each task")
    options = parser.parse_args()
    items = list(examination(SEED, options.items))
    if options.url:
        replies = ask(options.url, items)
    else:
        with ServerProcess(*server_options(options.gguf)) as server:
            replies = ask(server.url, items)
    return report(items, replies, options.wrong)


def server_options(gguf: Path) -> Sequence[str]:
    """Options for a server that the examination can be put to."""
    return ("--gguf_path", str(gguf), "--model_path", str(BUILT_IN.config_dir), "--max_batch_size", str(_AT_ONCE))


def ask(url: str, items: Sequence[Item]) -> list[str]:
    """The greedy reply to each item, as the chat template prompts for it."""

    def one(item: Item) -> str:
        body = {"prompt": rendered(item), "max_tokens": _MOST_TOKENS, "temperature": 0}
        return str(_post(f"{url}/v1/completions", body)["choices"][0]["text"])

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(one, items))


def rendered(item: Item) -> str:
    """The prompt, with the thought begun where the item wants one."""
    text = _template().render(messages(item.conversation), tools=item.conversation.tools)
    return force_think(text) if item.think else text


@cache
def _template() -> ChatTemplate:
    config = json.loads((BUILT_IN.config_dir / "tokenizer_config.json").read_text(encoding="utf-8"))
    return ChatTemplate(config["chat_template"], bos_token=BOS, eos_token=EOS)


def is_right(item: Item, reply: str) -> bool:
    """Whether the reply, less its thought, is right. A thought that does not end leaves none."""
    return item.is_right(reply.partition("</think>")[2].strip() if item.think else reply)


def report(items: Sequence[Item], replies: Sequence[str], num_wrong: int = 0) -> int:
    """Print a line a task; returns how many bars were missed."""
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for item, reply in zip(items, replies, strict=True):
        asked[item.task] += 1
        if is_right(item, reply):
            right[item.task] += 1
        elif (wrong := wrong + Counter([item.task]))[item.task] <= num_wrong:
            print(f"{item.task}: {item.conversation.turns[-1].user!r}\n    {reply!r}")
    missed = 0
    for task, total in asked.items():
        share = right[task] / total
        missed += share < BARS[task]
        print(
            json.dumps(
                {"task": task, "right": right[task], "asked": total, "share": round(share, 4), "bar": BARS[task]}
            )
        )
    return missed


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        return json.load(response)


if __name__ == "__main__":
    raise SystemExit(main())
