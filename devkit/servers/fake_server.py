"""The real server and engine with a fake model that is fast, slow or failing as requested, as a process.

    python -m devkit.servers.fake_server --step_s 0.01 --port 0 [any option of `ballast serve`]

Its replies spell the alphabet: the token after position p is letter number p mod 26. Each letter of a prompt is one
token. Replies always have max_tokens tokens.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ballast import cli
from ballast.config.options import Config
from ballast.log import configure_logging
from ballast.model.batch import Batch
from ballast.model.runner import Runner
from ballast.prepared_model import PreparedModel
from ballast.server.limits import ServerLimits
from ballast.server.serve_command import run
from ballast.server.telemetry.numa_report import NumaProbe
from ballast.text.loading import load_text
from devkit.models.vocabulary import byte_metadata
from devkit.servers.fixed_lengths import with_fixed_lengths

FIRST_BYTE_ID = 2
CONTEXT_LENGTH = 65536
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
HANG_S = 3600.0
CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"


class AlphabetModel(Runner):
    """A Runner that takes `step_s` per step, fails in step `fail_at` and hangs in step `hang_at`. Both count from 1,
    which is the warm-up step."""

    def __init__(self, vocab_size: int, step_s: float, fail_at: int | None = None, hang_at: int | None = None) -> None:
        self._vocab_size = vocab_size
        self._step_s = step_s
        self._fail_at = fail_at
        self._hang_at = hang_at
        self._num_steps = 0

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Logits [sampled, vocabulary], one-hot."""
        alive()
        self._num_steps += 1
        if self._num_steps == self._fail_at:
            raise FloatingPointError("the fake model failed as requested")
        if self._num_steps == self._hang_at:
            time.sleep(HANG_S)
        if self._step_s:
            time.sleep(self._step_s)
        logits = np.zeros((batch.sampled.size, self._vocab_size), np.float32)
        letters = FIRST_BYTE_ID + ord("a") + batch.positions[batch.sampled] % len(ALPHABET)
        logits[np.arange(batch.sampled.size), letters] = 100.0
        return logits


class MeasurableAlphabetModel(AlphabetModel):
    """Its steps are measured at start like those of real models, so that queue times can be predicted."""

    def __init__(self, vocab_size: int, step_s: float, fail_at: int | None = None, hang_at: int | None = None) -> None:
        super().__init__(vocab_size, step_s, fail_at, hang_at)
        self.vocabulary = vocab_size


def main(argv: Sequence[str]) -> int:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--step_s", type=float, default=0.0, help="duration of a step")
    parser.add_argument("--load_s", type=float, default=0.0, help="duration of loading")
    parser.add_argument("--fail_at", type=int, help="the step in which the model fails")
    parser.add_argument("--hang_at", type=int, help="the step that never ends")
    for limit in dataclasses.fields(ServerLimits):
        parser.add_argument(f"--{limit.name}", type=type(limit.default), default=limit.default, help="of ServerLimits")
    fake, rest = parser.parse_known_args(argv)
    return cli.exit_code(lambda: _serve(cli.serve_config(rest), fake))


def _serve(config: Config, fake: argparse.Namespace) -> int:
    configure_logging(config.log)
    metadata = byte_metadata() | {"tokenizer.chat_template": CHAT_TEMPLATE}
    text = load_text(None, metadata, "bytes.gguf")

    def load(report: Callable[[float], None]) -> Runner:
        with ThreadPoolExecutor(1) as threads:  # the interpreter would wait for it at exit
            for tenth, _ in enumerate(threads.map(time.sleep, [fake.load_s / 10] * 10)):
                report(tenth / 10)
        kind = MeasurableAlphabetModel if config.scheduling.max_queue_wait_s else AlphabetModel
        return kind(text.tokenizer.vocab_size, fake.step_s, fake.fail_at, fake.hang_at)

    limits = ServerLimits(**{limit.name: getattr(fake, limit.name) for limit in dataclasses.fields(ServerLimits)})
    model = PreparedModel(with_fixed_lengths(config), text, load, "alphabet", CONTEXT_LENGTH)
    run(model, NumaProbe(), limits)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
