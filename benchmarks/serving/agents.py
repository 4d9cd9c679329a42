"""First-token times of agents' conversations over HTTP, compared with processing each conversation again.

    python benchmarks/serving/agents.py [--conversations 1 4] [--turns 20] [--tokens 40000] [--reply 64] [--others 1]
        [--again NUMBER] [--alone 8] [--port PORT] [--server ballast|llama] [--name TEXT] [--command "..."]
        [--version TEXT] [--model TEXT] [--gpu TEXT] [-- OPTIONS of ballast serve]

A conversation has tools. Each turn sends all of it: the reply comes back as the assistant's message, with a call and
its result, or in each third turn with a new question. So it grows to `--tokens`. The conversations of a case take
their turns at the same time. Then the same prompts are sent once more with another first word, so that a cache serves
at most what the template writes before it: those of `--again` turns from the second to the last, all by default, each
for all conversations at once. Meanwhile `--others` requests decode; their inter-token latency is also measured for
`--alone` seconds before the conversations begin.

Replies are `--reply` letters, so that also a model of random weights writes text. The server needs /tokenize and a chat
template with tools, and runs on this machine. Without --port, the program starts Ballast. It prints one JSON line per
number of conversations.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import mean
from typing import Any

from benchmarks.serving.arrivals import percentile
from devkit.bench_record import bench_record
from devkit.servers.process import JSON, ServerProcess, events_of

Message = dict[str, Any]

SEED = 20261129
TIMEOUT_S = 600.0
LETTERS = " aeioulmnrsd"
"""The letters of all texts. The vocabularies of tools/synthetic_model.py have no longer tokens of these."""
WORD_LETTERS = 5
RULED_WORDS = (50, 250)
"""Lengths of the two texts that show how many tokens a word has."""
TURNS_PER_QUESTION = 3
CALL_TOKENS = 64
"""About the tokens that a turn has besides its reply and its text."""
OTHER_TOKENS = 256
"""Tokens of each request that decodes meanwhile."""
FACTS = ("command", "version", "model", "gpu")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Reads a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "description": "Where it is."}},
                "required": ["path"],
            },
        },
    }
]


class ServerError(Exception):
    """What the server answered in place of a reply."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed reply."""

    first_s: float
    """Until its first token, in seconds."""
    text: str
    prompt_tokens: int
    cached_tokens: int


class Client:
    """Sends chat requests to a server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._bias = {str(ids[0]): 100 for letter in LETTERS if len(ids := self._encoded(letter)) == 1}
        """So large that replies consist of these letters and do not end."""

    def _encoded(self, text: str) -> list[int]:
        with self._post("/tokenize", {"content": text, "add_special": False}) as response:
            ids: list[int] = json.load(response)["tokens"]
        return ids

    def ask(self, messages: Sequence[Message], num_tokens: int) -> Answer:
        """A greedy reply of `num_tokens` tokens."""
        begin = time.perf_counter()
        first_s, text, usage = None, "", None
        for event in self.events(messages, num_tokens):
            if said := said_in(event):
                first_s = time.perf_counter() - begin if first_s is None else first_s
                text += said
            usage = event.get("usage") or usage
        if first_s is None or usage is None:
            raise ServerError(f"{self.url}: a reply without {'text' if usage else 'usage'}")
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Answer(first_s, text, usage["prompt_tokens"], cached)

    def events(self, messages: Sequence[Message], num_tokens: int) -> Iterator[dict[str, Any]]:
        """The events of a reply that ends only by its length."""
        body = {
            "messages": messages,
            "tools": TOOLS,
            "max_tokens": num_tokens,
            "temperature": 0,
            "logit_bias": self._bias,
            "chat_template_kwargs": {"enable_thinking": False},
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with self._post("/v1/chat/completions", body) as response:
            for event in events_of(response):
                if "error" in event:
                    raise ServerError(f"{self.url}: {event['error']}")
                yield event

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), JSON)
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            with error:
                raise ServerError(f"{request.full_url}: {error.code} {error.read(500)!r}") from error


def said_in(event: dict[str, Any]) -> str:
    """The text of an event of any kind."""
    text = ""
    for choice in event.get("choices", ()):
        delta = choice.get("delta", {})
        text += delta.get("content") or delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            text += call["function"].get("name") or call["function"].get("arguments") or ""
    return text


@dataclass(frozen=True, slots=True)
class Ruler:
    """How many tokens texts have."""

    base: float
    """Of a prompt without text."""
    per_word: float

    @classmethod
    def of(cls, client: Client, rng: random.Random) -> Ruler:
        """What two requests show."""
        few, many = RULED_WORDS
        one, two = (client.ask(opening(rng, words(rng, number)), 1).prompt_tokens for number in RULED_WORDS)
        per_word = (two - one) / (many - few)
        return cls(one - few * per_word, per_word)

    def words_for(self, num_tokens: float) -> int:
        return max(1, round(num_tokens / self.per_word))


def words(rng: random.Random, count: int) -> str:
    return " ".join("".join(rng.choices(LETTERS[1:], k=WORD_LETTERS)) for _ in range(count))


def opening(rng: random.Random, question: str) -> list[Message]:
    """The first messages. No other prompt begins with their first word."""
    return [{"role": "system", "content": words(rng, 8)}, {"role": "user", "content": question}]


@dataclass(slots=True)
class Conversation:
    """Messages that grow by what an agent adds to them."""

    rng: random.Random
    ruler: Ruler
    num_turns: int
    num_tokens: int
    """Of the last prompt."""
    messages: list[Message] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    """The number of messages in each turn's prompt."""
    answers: list[Answer] = field(default_factory=list)
    repeated: list[Answer] = field(default_factory=list)
    """To prompts that were processed again."""

    def next_prompt(self) -> list[Message]:
        """The prompt of the next turn."""
        turn = len(self.prompts)
        so_far = self.answers[-1].prompt_tokens if self.answers else self.ruler.base
        text = words(self.rng, self.ruler.words_for(self.num_tokens * (turn + 1) / self.num_turns - so_far))
        if not self.messages:
            self.messages += opening(self.rng, text)
        else:
            reply: Message = {"role": "assistant", "content": self.answers[-1].text}
            if turn % TURNS_PER_QUESTION:
                path = json.dumps({"path": words(self.rng, 1)})
                call = {"id": f"call_{turn}", "type": "function", "function": {"name": "read_file", "arguments": path}}
                result = {"role": "tool", "tool_call_id": call["id"], "content": text}
                self.messages += [reply | {"tool_calls": [call]}, result]
            else:
                self.messages += [reply, {"role": "user", "content": text}]
        self.prompts.append(len(self.messages))
        return list(self.messages)

    def converse(self, client: Client, reply_tokens: int) -> None:
        """All turns."""
        for _ in range(self.num_turns):
            self.answers.append(client.ask(self.next_prompt(), reply_tokens))

    def process_again(self, client: Client, turn: int) -> None:
        """That turn's prompt, which no cache can serve."""
        self.repeated.append(client.ask(self.again(turn), 1))

    def again(self, turn: int) -> list[Message]:
        """The prompt of that turn, counted from 0, with another first word."""
        system, *others = self.messages[: self.prompts[turn]]
        _, _, rest = system["content"].partition(" ")
        return [{**system, "content": f"{words(self.rng, 1)} {rest}"}, *others]


class Others:
    """Requests that decode all the time, and their inter-token latencies."""

    def __init__(self, client: Client, count: int) -> None:
        self._client = client
        self._count = count
        self._is_over = threading.Event()
        self._gaps: list[float] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """They have begun to decode. Raises ServerError at the end if one of them failed."""
        with ThreadPoolExecutor(max(1, self._count)) as pool:
            decoding = [pool.submit(self._decode, number) for number in range(self._count)]
            try:
                while decoding and not self._gaps and not any(each.done() for each in decoding):
                    time.sleep(0.01)
                yield
            finally:
                self._is_over.set()
                for each in decoding:
                    each.result()

    def gaps_during(self, work: Callable[[], object]) -> list[float]:
        """In seconds, ascending."""
        begin = len(self._gaps)
        work()
        return sorted(self._gaps[begin:])

    def _decode(self, number: int) -> None:
        rng = random.Random(f"{SEED} other {number}")
        while not self._is_over.is_set():
            last = None
            for event in self._client.events(opening(rng, words(rng, 8)), OTHER_TOKENS):
                now = time.perf_counter()
                if said_in(event):
                    if last is not None:
                        self._gaps.append(now - last)
                    last = now
                if self._is_over.is_set():
                    return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, nargs="+", default=[1, 4], help="at once, a case for each number")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=40_000, help="tokens of the last prompt")
    parser.add_argument("--reply", type=int, default=64, help="tokens of each reply")
    parser.add_argument("--others", type=int, default=1, help="requests that decode meanwhile")
    parser.add_argument("--again", type=int, help="turns whose prompts are processed again")
    parser.add_argument("--alone", type=float, default=8.0, help="seconds without conversations")
    parser.add_argument("--port", type=int, help="of a running server on this machine")
    parser.add_argument("--server", choices=("ballast", "llama"), default="ballast", help="for the record")
    parser.add_argument("--name", default="", help="prefix of the record's case, for example the model's shape")
    for fact in FACTS:
        parser.add_argument(f"--{fact}", default="", help="for the record")
    given, rest = sys.argv[1:], []
    if "--" in given:
        at = given.index("--")
        given, rest = given[:at], given[at + 1 :]
    options = parser.parse_args(given)
    if options.turns < 2:
        parser.error(f"--turns={options.turns}: the figures are of the second turn and later ones")
    fewest = options.turns * (options.reply + CALL_TOKENS)
    if options.tokens < fewest:
        parser.error(f"--tokens={options.tokens}: {options.turns} turns with their replies need {fewest} or more")
    with ExitStack() as stack:
        if options.port is None:
            options.port = stack.enter_context(ServerProcess(*rest)).port
            options.command = " ".join(["ballast serve", *rest])
        client = Client(f"http://127.0.0.1:{options.port}")
        others = Others(client, options.others)
        stack.enter_context(others.running())
        ruler = Ruler.of(client, random.Random(SEED))
        alone = others.gaps_during(lambda: time.sleep(options.alone))
        for count in options.conversations:
            print(measure(options, client, others, ruler, alone, count), flush=True)


def measure(
    options: argparse.Namespace, client: Client, others: Others, ruler: Ruler, alone: Sequence[float], count: int
) -> str:
    """The record of `count` conversations at once. `alone` are the others' latencies without them."""
    talks = [
        Conversation(random.Random(f"{SEED} {count} {number}"), ruler, options.turns, options.tokens)
        for number in range(count)
    ]
    turns = spread(options.turns, options.again)
    beside = others.gaps_during(lambda: at_once(lambda talk: talk.converse(client, options.reply), talks))

    def process_again() -> None:
        for turn in turns:
            at_once(partial(Conversation.process_again, client=client, turn=turn), talks)

    beside_again = others.gaps_during(process_again)
    continued = [answer for talk in talks for answer in talk.answers[1:]]
    repeated = [answer for talk in talks for answer in talk.repeated]
    size = f"{count} at once, {options.turns} turns to {options.tokens} tokens"
    return bench_record(
        "serving/agents",
        f"{options.name}: {size}" if options.name else size,
        server=options.server,
        **figures(continued, repeated),
        again_turns=[turn + 1 for turn in turns],
        last_prompt_tokens=max(talk.answers[-1].prompt_tokens for talk in talks),
        others=options.others,
        **latencies("others_alone", alone),
        **latencies("others", beside),
        **latencies("others_again", beside_again),
        **{fact: value for fact in FACTS if (value := getattr(options, fact))},
    )


def spread(num_turns: int, count: int | None) -> list[int]:
    """`count` of the turns from the second to the last, at equal distances, so that their median is that of all."""
    last = num_turns - 1
    if count is None or count >= last:
        return list(range(1, num_turns))
    return sorted({round(1 + (last - 1) * (n / (count - 1) if count > 1 else 0.5)) for n in range(count)})


def at_once(work: Callable[[Conversation], None], talks: Sequence[Conversation]) -> None:
    """Do it for all conversations in threads. Raises what one of them raises."""
    with ThreadPoolExecutor(len(talks)) as pool:
        for each in [pool.submit(work, talk) for talk in talks]:
            each.result()


def figures(continued: Sequence[Answer], repeated: Sequence[Answer]) -> dict[str, float | None]:
    """First-token times of turns that continue and of prompts that are processed again."""
    firsts = sorted(answer.first_s for answer in continued)
    again = sorted(answer.first_s for answer in repeated)
    p50, again_p50 = percentile(firsts, 0.5), percentile(again, 0.5)
    return {
        "first_token_p50_s": p50,
        "first_token_p90_s": percentile(firsts, 0.9),
        "first_token_max_s": percentile(firsts, 1.0),
        "again_p50_s": again_p50,
        "again_max_s": percentile(again, 1.0),
        "share_of_again": round(p50 / again_p50, 4) if p50 and again_p50 else None,
        "cached_share": cached_share(continued),
        "again_cached_share": cached_share(repeated),
    }


def cached_share(answers: Sequence[Answer]) -> float | None:
    """Of the prompts' tokens."""
    total = sum(answer.prompt_tokens for answer in answers)
    return round(sum(answer.cached_tokens for answer in answers) / total, 4) if total else None


def latencies(name: str, gaps: Sequence[float]) -> dict[str, float | None]:
    """Inter-token latencies, which are ascending seconds."""
    return {
        f"{name}_itl_p50_ms": percentile(gaps, 0.5, 1000),
        f"{name}_itl_p99_ms": percentile(gaps, 0.99, 1000),
        f"{name}_itl_mean_ms": round(1000 * mean(gaps), 3) if gaps else None,
    }


if __name__ == "__main__":
    try:
        main()
    except ServerError as error:
        raise SystemExit(str(error)) from error
