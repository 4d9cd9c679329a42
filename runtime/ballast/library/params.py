"""How a reply is sampled, in the words of vLLM's `SamplingParams`; each is a field of the server's request bodies."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ballast.errors import RequestError, shown


class RequestOutputKind(Enum):
    """What each output of `AsyncLLM.generate` and `AsyncLLM.chat` holds."""

    CUMULATIVE = 0
    """All of the reply so far."""
    DELTA = 1
    """What is new."""
    FINAL_ONLY = 2
    """The whole reply, in the only output."""


@dataclass(slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form of a text: exactly one of `json`, `regex`, `choice`, `grammar` and `json_object`."""

    json: str | Mapping[str, Any] | None = None
    """A JSON schema, or its text."""
    regex: str | None = None
    choice: Sequence[str] | None = None
    """The texts of which the reply is one."""
    grammar: str | None = None
    """Lark, or EBNF as XGrammar reads it."""
    json_object: bool | None = None
    """Any JSON object."""
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    structural_tag: str | None = None
    disable_fallback: bool | None = None
    """No effect: there is one implementation of grammars."""
    backend: str | None = None
    """No effect, as `disable_fallback`."""

    def fields(self) -> dict[str, Any]:
        """`structured_outputs` of a request body."""
        left_out = ("disable_fallback", "backend")
        given = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name not in left_out}
        if not given["json_object"]:
            del given["json_object"]
        return {name: _plain(value) for name, value in given.items() if value is not None}


GuidedDecodingParams = StructuredOutputsParams
"""Its name in older releases of vLLM."""


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """Omitted parameters have the server's defaults. Values are checked on use, by the server's rules.

    Unlike vLLM's, `max_tokens` is 16 nowhere: without it a reply may take as many tokens as `max_new_tokens` grants.
    """

    n: int | None = None
    """Replies to each prompt, which is computed once."""
    best_of: int | None = None
    """Must be equal to n: every reply is returned."""
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
    spaces_between_special_tokens: bool | None = None
    """No effect: the tokenizer puts no spaces between tokens."""
    truncate_prompt_tokens: int | None = None
    thinking_token_budget: int | None = None
    """Most tokens of reasoning in a chat; -1: no limit."""
    logprobs: int | None = None
    """Most probable tokens to report at each position; 0: the sampled one alone."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens."""
    response_format: Mapping[str, Any] | None = None
    """As OpenAI's API takes it, such as {"type": "json_schema", "json_schema": {"schema": {…}}}."""
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    guided_decoding: StructuredOutputsParams | Mapping[str, Any] | None = None
    """Another name of `structured_outputs`."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """Of `AsyncLLM`; `LLM.generate` and `LLM.chat` return whole replies, and `LLM.stream` what is new."""
    detokenize: bool | None = None
    """Only True: replies always have their text."""
    logits_processors: Sequence[Any] | None = None
    """Refused: use `logit_bias`, `allowed_token_ids`, `bad_words` or `structured_outputs`."""
    extra_args: Mapping[str, Any] | None = None
    """Refused, as `logits_processors`, which read them."""

    def clone(self) -> SamplingParams:
        """A copy that can be changed on its own."""
        return copy.deepcopy(self)

    def fields(self) -> dict[str, Any]:
        """The fields of a request body that are given, apart from `logprobs`, which the endpoints spell differently.

        Raises RequestError for those that a request cannot have."""
        for name, (harmless, way_out) in _LIBRARYS_OWN.items():
            if (value := getattr(self, name)) is not None and value not in harmless:
                raise RequestError(f"{name}={shown(value)}: {way_out}", param=name)
        if self.structured_outputs is not None and self.guided_decoding is not None:
            raise RequestError(
                "guided_decoding: excludes structured_outputs, which is its newer name", param="guided_decoding"
            )
        given = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name not in _APART}
        found = {name: _plain(value) for name, value in given.items() if value is not None}
        if "logit_bias" in found:
            found["logit_bias"] = {str(token_id): bias for token_id, bias in found["logit_bias"].items()}
        form = self.guided_decoding if self.structured_outputs is None else self.structured_outputs
        if form is not None:
            found["structured_outputs"] = form.fields() if isinstance(form, StructuredOutputsParams) else _plain(form)
        return found


_LIBRARYS_OWN: Mapping[str, tuple[Sequence[Any], str]] = {
    "detokenize": ((True,), "replies always have their text; leave it out, and read token_ids"),
    "logits_processors": (
        ((), []),
        "no code runs between steps; use logit_bias, allowed_token_ids, bad_words or structured_outputs",
    ),
    "extra_args": (({},), "these are read by vLLM's logits processors, and there are none"),
}
"""Parameters that no request has: values that ask for nothing, and what to do instead of others."""
_APART = frozenset({"logprobs", "output_kind", "structured_outputs", "guided_decoding", *_LIBRARYS_OWN})


def _plain(value: Any) -> Any:
    """Sequences as lists and mappings as dicts, as JSON has them."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value
