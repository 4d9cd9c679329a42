"""The tokenizer of a model whose file has no vocabulary: prompts and replies are token ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from ballast.errors import RequestError
from ballast.text.tokenizer import Tokenizer

WHY = (
    "this model's file has no vocabulary, so it takes and gives token ids: send `prompt` as a list of ids to "
    "/v1/completions, or start the server with --model_path and a directory that holds the model's tokenizer.json"
)


class IdsOnly(Tokenizer):
    """Knows how many ids there are, and which end a generation. No token has a text; what needs one raises
    RequestError."""

    has_vocabulary = False

    def __init__(self, num_ids: int, eos_ids: Sequence[int]) -> None:
        self.vocab_size = num_ids
        self.bos_id = None
        self.eos_id = None
        self.eos_ids = frozenset(eos_ids)
        self.added_ids = frozenset()
        self.add_bos = False

    def encode(self, text: str, *, parse_special: bool = True, add_bos: bool = False) -> list[int]:
        """Refused."""
        _refuse()

    def protect(self, value: Any) -> Any:
        """Nothing to protect from."""
        return value

    def encode_prompt(self, prompt: str) -> list[int]:
        """Refused."""
        _refuse()

    def fewest_tokens(self, text: str) -> int:
        """Not known."""
        return 0

    def decode(self, ids: Iterable[int], skip_control: bool = True) -> str:
        """Refused."""
        _refuse()

    def token_bytes(self, token_id: int) -> bytes:
        """Nothing; raises RequestError for an id that the model has not."""
        if not 0 <= token_id < self.vocab_size:
            raise RequestError(f"token id {token_id} is not known: ids go from 0 to {self.vocab_size - 1}")
        return b""

    def is_control(self, token_id: int) -> bool:
        """None is known to be."""
        return False

    def id_of(self, text: str) -> int | None:
        """No spelling is known."""
        return None


def _refuse() -> NoReturn:
    raise RequestError(WHY, code="no_vocabulary")
