"""Requests of llama.cpp's native completions, with its defaults (tools/server/README.md there): /completion,
/infill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, SkipValidation, field_validator
from pydantic_core import CoreSchema

from ballast.engine.request import MAX_TEMPERATURE, SamplingFields
from ballast.wire.field_rules import Holds, NoEffect, Refused, Rule, shape
from ballast.wire.field_schemas import InPlaceSchema, items
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.known_fields import read_fields
from ballast.wire.openai.other_fields import TEXT_RULES
from ballast.wire.openai.request import MAX_TOP_LOGPROBS, CompletionRequest, check_together
from ballast.wire.parsing import WHOLE, Objects, check_lengths, parse_json, with_fields

NEVER = -100.0
"""The bias of a forbidden token: the lowest possible."""
DRAWN_SEED = 2**32 - 1
"""llama.cpp's value for a random seed: -1 as an unsigned 32-bit number."""


_PAIRS: Mapping[str, Any] = {
    "type": "array",
    "items": {
        "type": "array",
        "prefixItems": [
            {"type": "integer", "minimum": 0},
            {"anyOf": [{"type": "number", "minimum": -100, "maximum": 100}, {"const": False}]},
        ],
        "minItems": 2,
        "maxItems": 2,
    },
}
"""`logit_bias` in the format of llama.cpp's clients."""


if TYPE_CHECKING:

    class _DefaultsBody(CompletionRequest): ...
else:
    _DEFAULTS = {"top_p": 0.95, "top_k": 40, "min_p": 0.05}
    _DefaultsBody = with_fields(CompletionRequest, SamplingFields, tuple(_DEFAULTS), _DEFAULTS)


class LlamaRequest(_DefaultsBody):
    """Body of POST /completion: a text completion with llama.cpp's names, defaults and reply."""

    other_fields: ClassVar[Mapping[str, Rule]] = {
        **TEXT_RULES,
        "best_of": Refused("every choice is returned; set n_cmpl"),
        "echo": Refused("the reply's text does not contain the prompt", (False,)),
        "logprobs": Refused("use n_probs to get probabilities"),
        "return_token_ids": Refused("use return_tokens to get them", (False,)),
        "prompt_logprobs": Refused("/v1/completions has it"),
        "return_tokens_as_token_ids": NoEffect("tokens always come with their ids"),
    }

    may_have_no_reply: ClassVar[bool] = True

    temperature: Annotated[float, Field(le=MAX_TEMPERATURE)] | None = 0.8
    """0 and less: the likeliest token."""
    n_probs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), WHOLE] | None = None
    """Number of alternatives to report with each token. 0: no probabilities, not even the token's own."""
    return_tokens: bool | None = None

    @field_validator("temperature")
    @classmethod
    def _not_negative(cls, value: float | None) -> float | None:
        return None if value is None else max(0.0, value)

    @field_validator("seed")
    @classmethod
    def _drawn(cls, value: int | None) -> int | None:
        return None if value == DRAWN_SEED else value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        """Converts [[id, bias], …] to the object of OpenAI's API. The bias false forbids the token."""
        if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
            return value
        return {str(token): NEVER if bias is False else bias for token, bias in value}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        handler.resolve_ref_schema(schema)["properties"]["logit_bias"]["anyOf"].append(_PAIRS)
        return schema

    @property
    def num_logprobs(self) -> int | None:
        """As in CompletionRequest."""
        return self.n_probs or None


def _prompt(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    raise ValueError("must be a string")


_EXTRA = items("text", text={"type": "string"}, filename={"type": "string"})


class InfillRequest(LlamaRequest):
    """Body of POST /infill."""

    prompt: Annotated[
        SkipValidation[list[str | list[int]]], BeforeValidator(_prompt), InPlaceSchema({"type": "string"})
    ] = Field([""])
    """The beginning of the generated text."""
    input_prefix: str
    input_suffix: str
    input_extra: Annotated[Objects, Holds(shape("filename", "text")), _EXTRA] = Field([])
    """Other files, placed before the prefix."""


Body = TypeVar("Body", bound=LlamaRequest)


def parse_llama(kind: type[Body], data: bytes, max_model_tokens: int, ignored: IgnoredFields) -> Body:
    """Parse a body, and note unknown fields in `ignored`. Raises RequestError. Must not run on the event loop."""
    value = parse_json(data)
    check_lengths(value, max_model_tokens)
    body = read_fields(kind, value, ignored)
    check_together(body)
    return body
