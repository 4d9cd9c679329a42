"""Sampling parameters with the names of vLLM's `SamplingParams`. Each is a field of the server's request bodies."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ballast.engine.request import SamplingFields
from ballast.errors import RequestError, shown


class RequestOutputKind(Enum):
    """The content of each output of `AsyncLLM.generate` and `AsyncLLM.chat`."""

    CUMULATIVE = 0
    """The complete reply so far."""
    DELTA = 1
    """Only the new part of the reply."""
    FINAL_ONLY = 2
    """The whole reply, in the only output."""


@dataclass(slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form of a text: exactly one of `json`, `regex`, `choice`, `grammar` and `json_object`."""

    json: str | Mapping[str, Any] | None = None
    """A JSON schema, or its text."""
    regex: str | None = None
    choice: Sequence[str] | None = None
    """The possible replies."""
    grammar: str | None = None
    """Lark, or EBNF in XGrammar's format."""
    json_object: bool | None = None
    """Any JSON object."""
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    structural_tag: str | None = None
    disable_fallback: bool | None = None
    """No effect: there is only one grammar backend."""
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
"""The name in older releases of vLLM."""


@dataclass(slots=True, kw_only=True)
class SamplingParams(SamplingFields):
    """Omitted parameters have the server's defaults. Values are checked on use, with the server's rules. Fields of
    `SamplingFields` are parameters too.

    Unlike in vLLM, the default of `max_tokens` is not 16: a reply may have as many tokens as `max_new_tokens` grants.
    """

    n: int | None = None
    """Number of replies per prompt. The prompt is computed once."""
    best_of: int | None = None
    """Must be equal to n, because every reply is returned."""
    max_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    """No effect: the tokenizer does not put spaces between tokens."""
    truncate_prompt_tokens: int | None = None
    thinking_token_budget: int | None = None
    """Maximum number of reasoning tokens in a chat; -1: no limit."""
    logprobs: int | None = None
    """Number of most probable tokens to report at each position; 0: only the sampled token."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens."""
    response_format: Mapping[str, Any] | None = None
    """As in OpenAI's API, such as {"type": "json_schema", "json_schema": {"schema": {…}}}."""
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    guided_decoding: StructuredOutputsParams | Mapping[str, Any] | None = None
    """Another name of `structured_outputs`."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """Only for `AsyncLLM`. `LLM.generate` and `LLM.chat` return whole replies, and `LLM.stream` returns deltas."""
    detokenize: bool | None = None
    """Must be True: replies always contain text."""
    logits_processors: Sequence[Any] | None = None
    """Refused: use `logit_bias`, `allowed_token_ids`, `bad_words` or `structured_outputs`."""
    extra_args: Mapping[str, Any] | None = None
    """Refused, as `logits_processors`, which read them."""

    def clone(self) -> SamplingParams:
        """An independent copy."""
        return copy.deepcopy(self)

    def fields(self) -> dict[str, Any]:
        """The given fields of a request body, except `logprobs`, which differs between the endpoints.

        Raises RequestError for parameters that a request cannot have."""
        for name, (harmless, advice) in _UNSUPPORTED.items():
            if (value := getattr(self, name)) is not None and value not in harmless:
                raise RequestError(f"{name}={shown(value)}: {advice}", param=name)
        if self.structured_outputs is not None and self.guided_decoding is not None:
            raise RequestError(
                "guided_decoding: excludes structured_outputs, its newer name; leave one of them out",
                param="guided_decoding",
            )
        given = {
            each.name: getattr(self, each.name)
            for each in dataclasses.fields(self)
            if each.name not in _CONVERTED_SEPARATELY
        }
        found = {name: _plain(value) for name, value in given.items() if value is not None}
        if "logit_bias" in found:
            found["logit_bias"] = {str(token_id): bias for token_id, bias in found["logit_bias"].items()}
        form = self.guided_decoding if self.structured_outputs is None else self.structured_outputs
        if form is not None:
            found["structured_outputs"] = form.fields() if isinstance(form, StructuredOutputsParams) else _plain(form)
        return found


_UNSUPPORTED: Mapping[str, tuple[Sequence[Any], str]] = {
    "detokenize": ((True,), "replies always contain text; leave it out, and read token_ids"),
    "logits_processors": (
        ((), []),
        "custom code cannot run between steps; use logit_bias, allowed_token_ids, bad_words or structured_outputs",
    ),
    "extra_args": (({},), "only vLLM's logits processors read it, and these are not supported"),
}
"""Unsupported parameters: accepted values without an effect, and what to do instead of other values."""
_CONVERTED_SEPARATELY = frozenset({"logprobs", "output_kind", "structured_outputs", "guided_decoding", *_UNSUPPORTED})


def _plain(value: Any) -> Any:
    """Converts sequences to lists and mappings to dicts, as in JSON."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value
