"""Makes the shipped files: `python -m tools.tiny_model.export WEIGHTS.npz TOKENIZER.json DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tokenizers

from ballast.tiny.model import write_model
from ballast.tiny.tokenizer import tokenizer_of
from tools.tiny_model.shape import QUANT, SHAPE


def main(weights: Path, tokenizer: Path, directory: Path) -> None:
    with np.load(weights) as file:
        tensors = [(name, file[name].astype(np.float32)) for name in file.files]
    backend = tokenizers.Tokenizer.from_file(str(tokenizer))
    model = write_model(directory, SHAPE, tokenizer_of(backend), tensors, mla="split", quant=QUANT)
    print(f"{model.gguf}: {model.gguf.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
