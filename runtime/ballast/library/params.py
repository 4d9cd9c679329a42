"""How a reply is sampled, in the words of vLLM's `SamplingParams`; each is a field of the server's request bodies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What is left out has the server's default. Values are checked when they are used, by the server's rules.

    Unlike vLLM's, `max_tokens` is 16 nowhere: without it a reply may take as many tokens as `max_new_tokens` grants.
    """

    n: int | None = None
    """Replies to each prompt, which is computed once."""
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    """0 is greedy; 1 without it."""
    top_p: float | None = None
    top_k: int | None = None
    """0 and -1 keep every token."""
    min_p: float | None = None
    seed: int | None = None
    """The same seed and prompt give the same tokens, independent of the rest of the batch. None and -1: random."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    logprobs: int | None = None
    """Most probable tokens to report at each position; 0: the sampled one alone."""
    response_format: Mapping[str, Any] | None = None
    """As OpenAI's API takes it, such as {"type": "json_schema", "json_schema": {"schema": {…}}}."""

    def fields(self) -> dict[str, Any]:
        """The fields of a request body that are given, apart from `logprobs`, which the endpoints spell differently."""
        given = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "logprobs"}
        found = {name: _plain(value) for name, value in given.items() if value is not None}
        if "logit_bias" in found:
            found["logit_bias"] = {str(token_id): bias for token_id, bias in found["logit_bias"].items()}
        return found


def _plain(value: Any) -> Any:
    """Sequences as lists and mappings as dicts, as JSON has them."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value
