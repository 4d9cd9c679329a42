"""What the guarded process of tokenizers does: tries the parts of a tokenizer.json, and encodes with it."""

from __future__ import annotations

import json
import os
from typing import Any

import tokenizers

from ballast.text.tokenizer import LocalEncoder

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads take address space, which is limited

_encoders: dict[str, LocalEncoder] = {}
"""By its key, the one that was used last."""


def answer(task: Any) -> Any:
    """What `ballast.text.foreign.tokenizer` asks for."""
    match task:
        case ["try", text]:
            return tokenizers.Tokenizer.from_str(text).get_vocab_size()
        case ["ids around nothing", post_processor]:
            model = {"type": "BPE", "vocab": {}, "merges": []}
            whole = {"version": "1.0", "added_tokens": [], "model": model, "post_processor": post_processor}
            return tokenizers.Tokenizer.from_str(json.dumps(whole)).encode("").ids[:1000]
        case ["encode", key, texts, parse_special]:
            # Unknown after the process was restarted. None requests the tokenizer itself.
            return _encoders[key](texts, parse_special=parse_special) if key in _encoders else None
        case ["encode", key, texts, parse_special, text]:
            _encoders.clear()
            _encoders[key] = LocalEncoder(tokenizers.Tokenizer.from_str(text))
            return _encoders[key](texts, parse_special=parse_special)
