"""The real server and engine with a model that performs a coding agent's task, as a process.

    python -m devkit.servers.agent_server --port 0 --chat_template deepseek-v3.1 [any option of `ballast serve`]

`agent_script.py` defines the replies. Each letter of a prompt is one token.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ballast import cli
from ballast.config.options import Config
from ballast.model.batch import Batch
from ballast.model.runner import Runner
from ballast.text.tokenizer import Tokenizer
from devkit.servers.agent_script import reply
from devkit.servers.script_server import serve

CONTEXT_LENGTH = 1 << 18
"""Agents' prompts have up to 150,000 letters."""

log = logging.getLogger(__name__)


class AgentModel(Runner):
    """A Runner that reads a sequence's prompt once, from its own KV memory, and then continues with the reply."""

    def __init__(self, tokenizer: Tokenizer, num_slots: int, block_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._block_tokens = block_tokens
        self._tokens = np.zeros(num_slots, np.int32)
        self._rest: dict[int, list[int]] = {}
        """By slot of a reply's token or of the prompt's last token: the reply's remaining tokens."""

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Logits [sampled, vocabulary], one-hot."""
        alive()
        self._tokens[batch.slots] = batch.token_ids
        for slot in batch.slots.tolist():
            self._rest.pop(slot, None)
        logits = np.zeros((batch.sampled.size, self._tokenizer.vocab_size), np.float32)
        rows = np.searchsorted(batch.query_indptr, batch.sampled, side="right") - 1
        for n, (row, at) in enumerate(zip(rows, batch.sampled, strict=True)):
            slots = self._slots(batch, int(row), int(batch.positions[at]) + 1)
            rest = self._rest.get(int(slots[-2])) if slots.size > 1 else None
            rest = rest[1:] if rest and rest[0] == batch.token_ids[at] else self._reply(slots)
            self._rest[int(slots[-1])] = rest
            logits[n, rest[0] if rest else self._end] = 100.0
        return logits

    def _slots(self, batch: Batch, row: int, length: int) -> NDArray[np.int64]:
        """Slots [length] of a sequence's tokens."""
        blocks = batch.kv_indices[batch.kv_indptr[row] : batch.kv_indptr[row + 1]].astype(np.int64)
        positions = np.arange(length)
        return blocks[positions // self._block_tokens] * self._block_tokens + positions % self._block_tokens

    def _reply(self, slots: NDArray[np.int64]) -> list[int]:
        prompt = self._tokenizer.decode(self._tokens[slots].tolist())
        try:
            message = reply(prompt)
        except ValueError as error:
            log.warning("the script cannot continue", extra={"error": str(error)})
            message = f"The script cannot continue: {error}"
        return [*self._tokenizer.encode(message), self._end]

    @property
    def _end(self) -> int:
        assert self._tokenizer.eos_id is not None
        return self._tokenizer.eos_id


def _agent_model(tokenizer: Tokenizer, config: Config) -> Runner:
    block_tokens = config.scheduling.block_tokens
    assert config.scheduling.cache_lens is not None, "--cache_lens must be given"
    num_slots = (config.scheduling.cache_lens // block_tokens + 2) * block_tokens
    return AgentModel(tokenizer, num_slots, block_tokens)


if __name__ == "__main__":
    sys.exit(cli.exit_code(lambda: serve(cli.serve_config(sys.argv[1:]), _agent_model, CONTEXT_LENGTH)))
