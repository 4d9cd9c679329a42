"""The tokenizer of a model whose file has no vocabulary. Prompts and replies are token ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ballast.errors import RequestError
from ballast.families.registry import DEFAULT_FORM
from ballast.text.tokenizer import Tokenizer

WHY = (
    "this model's file has no vocabulary, so the server only accepts and returns token ids: send `prompt` as a list of "
    "ids to /v1/completions, or start the server with --model_path and a folder that holds the model's tokenizer.json"
)


class IdsOnly(Tokenizer):
    """Knows only the number of ids and the end tokens. Methods that need the text of a token
    raise RequestError."""

    has_vocabulary = False

    def __init__(self, num_ids: int, eos_ids: Sequence[int]) -> None:
        self.vocab_size = num_ids
        self.bos_id = None
        self.eos_id = None
        self.eos_ids = frozenset(eos_ids)
        self.added_ids = frozenset()
        self.add_bos = False
        self.reply = DEFAULT_FORM

    def encode(self, text: str, *, parse_special: bool = True, add_bos: bool = False) -> list[int]:
        """Refused."""
        raise no_vocabulary()

    def protect(self, value: Any) -> Any:
        """The value itself: no text can spell a control token."""
        return value

    def encode_prompt(self, prompt: str) -> list[int]:
        """Refused."""
        raise no_vocabulary()

    def fewest_tokens(self, text: str) -> int:
        """0, because the tokens are unknown."""
        return 0

    def decode(self, ids: Iterable[int], skip_control: bool = True) -> str:
        """Refused."""
        raise no_vocabulary()

    def token_bytes(self, token_id: int) -> bytes:
        """No bytes. Raises RequestError for an id that the model does not have."""
        if not 0 <= token_id < self.vocab_size:
            raise RequestError(f"token id {token_id} is not known: ids go from 0 to {self.vocab_size - 1}")
        return b""

    def is_control(self, token_id: int) -> bool:
        """False, because the tokens are unknown."""
        return False

    def spelling(self, token_id: int) -> str | None:
        """None, because spellings are unknown."""
        return None

    def id_of(self, text: str) -> int | None:
        """None, because spellings are unknown."""
        return None


def no_vocabulary() -> RequestError:
    """The refusal of a request that needs the text of tokens."""
    return RequestError(WHY, code="no_vocabulary")
