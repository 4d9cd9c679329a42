"""Learns the built-in model's vocabulary from its corpus: `python -m tools.tiny_model.vocabulary FILE`."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ballast.tiny.tokenizer import TinyTokenizer, train_tokenizer
from tools.tiny_model.corpus.conversation import pieces
from tools.tiny_model.corpus.mixture import corpus
from tools.tiny_model.shape import VOCABULARY

SEED = 20
CONVERSATIONS = 60_000
_SPECIAL_OR_DIGIT = re.compile(r"<[｜|][^>]*[｜|]>|</?think>|\d")


def learn() -> TinyTokenizer:
    """Train byte-level BPE on text without digits, so that each digit is a token: easier for sums and copies."""
    return train_tokenizer("v3", _texts(), VOCABULARY)


def _texts() -> Iterator[str]:
    for conversation, think in itertools.islice(corpus(SEED), CONVERSATIONS):
        for piece in pieces(conversation, think=think):
            yield from filter(None, _SPECIAL_OR_DIGIT.split(piece.text))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(learn().backend.to_str(pretty=True), encoding="utf-8")
