"""The real server and engine with a model that has scripted replies, as a process.

    python -m devkit.servers.script_server --port 0 [any option of `ballast serve`]

The reply to a prompt that contains `say NAME` is the script of that name and an end token. The reply to any other
prompt is `hello`. Each letter of a prompt is one token.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ballast import cli
from ballast.config.options import Config
from ballast.families.registry import DEFAULT_FORM, FAMILIES
from ballast.log import configure_logging
from ballast.model.batch import Batch
from ballast.model.runner import Runner
from ballast.prepared_model import PreparedModel
from ballast.server.serve_command import run
from ballast.server.telemetry.numa_report import NumaProbe
from ballast.text.loading import load_text
from ballast.text.tokenizer import Tokenizer
from devkit.models.vocabulary import byte_metadata
from devkit.servers.fixed_lengths import with_fixed_lengths

CONTEXT_LENGTH = 65536

TAGS = (
    *("<｜User｜>", "<｜Assistant｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
    *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
)
"""Other text that templates write."""

_V3_CALL = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


def _calls(*calls: str) -> str:
    return f"<｜tool▁calls▁begin｜>{''.join(calls)}<｜tool▁calls▁end｜>"


def _bare(city: str, note: str) -> str:
    parameters = f"<parameter=city>\n{city}\n</parameter>\n<parameter=note>\n{note}\n</parameter>\n"
    return f"<tool_call>\n<function=weather>\n{parameters}</function>\n</tool_call>"


PARIS = '{"city": "Paris", "note": "中 \\"x\\""}'
_NOTE = '中 "x"'
PAINTED = "The wall is red."
ROME = '{\n  "city": "Rome"\n}'

SCRIPTS: Mapping[str, str] = {
    "hello": "hello",
    "thought": "Let me see.\n</think>\n\nIt is 4.",
    "tagged": "<think>\nLet me see.\n</think>\n\nIt is 4.",
    "endless": "Let me see. Let me see.",
    "call": _calls(_V3_CALL.format(name="weather", arguments=PARIS)),
    "calls": "I look it up.\n\n"
    + _calls(_V3_CALL.format(name="weather", arguments=PARIS), _V3_CALL.format(name="weather", arguments=ROME)),
    "thoughtful": "Where?\n</think>" + _calls(_V3_CALL.format(name="weather", arguments=PARIS)),
    "v31": _calls(f"<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{PARIS}<｜tool▁call▁end｜>"),
    "broken": _calls("<｜tool▁call▁begin｜>no call<｜tool▁call▁end｜>"),
    "scribble": _calls(_V3_CALL.format(name="weather", arguments="not json")),
    "undeclared": _calls(_V3_CALL.format(name="forecast", arguments=PARIS)),
    "twice": 2 * (_calls(_V3_CALL.format(name="weather", arguments=PARIS)) + "And so on."),
    "ends": "I looked.<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "spaced": _calls(_V3_CALL.format(name="wea__ther", arguments=PARIS)),
    "freeform": _calls(_V3_CALL.format(name="patch", arguments='{"input": "*** Begin Patch\\n+ä"}')),
    "object": '{"a": 1}',
    "paint": _calls('<｜tool▁call▁begin｜>paint<｜tool▁sep｜>{"colour": "red", "sure": true}<｜tool▁call▁end｜>'),
    "painted": PAINTED,
    "final": _calls(f'<｜tool▁call▁begin｜>final_answer<｜tool▁sep｜>{{"answer": "{PAINTED}"}}<｜tool▁call▁end｜>'),
    "code": 'Thought: I paint.\n<code>\nprint(paint("red", True))\n</code>',
    "answer": f'<code>\nfinal_answer("{PAINTED}")\n</code>',
    "edit": 'wall.py\n```python\n<<<<<<< SEARCH\ncolour = "green"\n=======\ncolour = "red"\n>>>>>>> REPLACE\n```',
    "on_channels": "<|channel|>analysis<|message|>Let me see.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>It is 4.",
    "channel_call": "<|channel|>analysis<|message|>Where?<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    f"<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{PARIS}<|call|>",
    "named_thought": "[THINK]Let me see.[/THINK]It is 4.",
    "named_call": f"[THINK]Where?[/THINK]I look.[TOOL_CALLS]weather[ARGS]{PARIS}",
    "bare_call": f"Where?\n</think>\n\nI look.\n\n{_bare('Paris', _NOTE)}",
    "bare_calls": f"Where?\n{_bare('Paris', _NOTE)}\n{_bare('Rome', 'x')}",
    "bare_broken": "Where?\n</think>\n\n<tool_call>\nno call\n</tool_call>",
    "emoji": "One 👩‍👩‍👧‍👦, two 中文.",
}


_OTHERS = {
    "gpt-oss": ("gpt_oss", "gpt-4o"),
    "mistral-small-4": ("mistral", "tekken"),
    "qwen3.6": ("qwen3", "qwen35"),
}
"""Template → its family, and how its vocabulary splits text."""


class ScriptModel(Runner):
    """A Runner that derives the next token from the sequence's tokens in its own KV memory."""

    def __init__(self, tokenizer: Tokenizer, block_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._block_tokens = block_tokens
        self._tokens: dict[int, int] = {}
        end = tokenizer.eos_id
        assert end is not None
        self._scripts = {name: [*tokenizer.encode(text), end] for name, text in SCRIPTS.items()}

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Logits [sampled, vocabulary], one-hot."""
        alive()
        self._tokens.update(zip(batch.slots.tolist(), batch.token_ids.tolist(), strict=True))
        logits = np.zeros((batch.sampled.size, self._tokenizer.vocab_size), np.float32)
        rows = np.searchsorted(batch.query_indptr, batch.sampled, side="right") - 1
        for n, (row, at) in enumerate(zip(rows, batch.sampled, strict=True)):
            blocks = batch.kv_indices[batch.kv_indptr[row] : batch.kv_indptr[row + 1]].tolist()
            logits[n, self._next_token(self._sequence(blocks, int(batch.positions[at]) + 1))] = 100.0
        return logits

    def _sequence(self, blocks: Sequence[int], length: int) -> list[int]:
        size = self._block_tokens
        return [self._tokens[blocks[n // size] * size + n % size] for n in range(length)]

    def _next_token(self, sequence: list[int]) -> int:
        names = re.findall(r"say (\w+)", self._tokenizer.decode(sequence))
        script = self._scripts[next((name for name in reversed(names) if name in self._scripts), "hello")]
        message = next(n for n in reversed(range(len(script))) if sequence[len(sequence) - n :] == script[:n])
        return script[message]


def serve(config: Config, make_model: Callable[[Tokenizer, Config], Runner], context_length: int) -> int:
    """Serve, until stopped, a model whose vocabulary consists of bytes and DeepSeek's special tokens."""
    configure_logging(config.log)
    metadata = byte_metadata(user_defined=(*DEFAULT_FORM.spellings.values(), *TAGS))
    if (other := _OTHERS.get(config.model.chat_template or "")) is not None:
        family = FAMILIES[other[0]]
        tokens = dict.fromkeys((*family.reply.spellings.values(), *family.ends, *family.vocabulary))
        metadata = byte_metadata(other[1], user_defined=tuple(tokens))
    text = load_text(None, metadata, "bytes.gguf", config.model.chat_template)

    def load(_report: Callable[[float], None]) -> Runner:
        return make_model(text.tokenizer, config)

    run(PreparedModel(with_fixed_lengths(config), text, load, "script", context_length), NumaProbe())
    return 0


def _script_model(tokenizer: Tokenizer, config: Config) -> Runner:
    return ScriptModel(tokenizer, config.scheduling.block_tokens)


if __name__ == "__main__":
    sys.exit(cli.exit_code(lambda: serve(cli.serve_config(sys.argv[1:]), _script_model, CONTEXT_LENGTH)))
