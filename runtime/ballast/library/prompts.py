"""The forms of a prompt: a text, token ids, or one of vLLM's dicts with one of these."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NotRequired, TypeAlias, TypedDict

from ballast.errors import RequestError, shown


class TextPrompt(TypedDict):
    """A text."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """Token ids."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    """The text of the ids, only for the output."""
    cache_salt: NotRequired[str]


Prompt: TypeAlias = str | Sequence[int] | TextPrompt | TokensPrompt
"""A text, token ids, or one of them in a dict."""
ChatMessage: TypeAlias = Mapping[str, Any]
"""A message in OpenAI's format: {"role": "user", "content": "…"}."""

_TEXT, _IDS, _SALT = "prompt", "prompt_token_ids", "cache_salt"
_REFUSED = {
    "multi_modal_data": "prompts are texts or token ids; images, audio and video are not supported",
    "multi_modal_uuids": "prompts are texts or token ids; images, audio and video are not supported",
    "mm_processor_kwargs": "prompts are texts or token ids; images, audio and video are not supported",
    "prompt_embeds": "prompts are texts or token ids",
    "encoder_prompt": "the models have no encoder; give the prompt as `prompt`",
    "decoder_prompt": "the models have no encoder; give the prompt as `prompt`",
    "input_ids": "give token ids as `prompt_token_ids`",
    "messages": "give conversations to `chat`",
    "role": "give conversations to `chat`",
}
"""Unsupported keys of vLLM's prompts → what to do instead."""


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """One prompt in the form of a request's body."""

    value: str | list[int]
    text: str | None
    """The prompt for the output, as given; None for token ids alone."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request."""


def read_prompts(prompts: Prompt | Iterable[Prompt] | None) -> list[ReadPrompt]:
    """One or more prompts. Raises RequestError for an unknown form."""
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        return [read_prompt(prompts)]
    many: list[Any] = list(prompts)
    return [read_prompt(many)] if many and isinstance(many[0], Integral) else [read_prompt(each) for each in many]


def read_prompt(prompt: Any) -> ReadPrompt:
    """One prompt of any form. Raises RequestError."""
    if isinstance(prompt, str):
        return ReadPrompt(prompt, prompt)
    return _read_dict(prompt) if isinstance(prompt, Mapping) else ReadPrompt(_token_ids(prompt, "prompt"), None)


def is_conversation(prompt: Any) -> bool:
    """Whether it is a list of messages."""
    return not isinstance(prompt, str | bytes | Mapping) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _read_dict(prompt: Mapping[str, Any]) -> ReadPrompt:
    given = {name: value for name, value in prompt.items() if not _is_absent(value)}
    text, ids, salt = (given.pop(name, None) for name in (_TEXT, _IDS, _SALT))
    for name, value in given.items():
        why = _REFUSED.get(name, f"unknown key; a prompt has `{_TEXT}` or `{_IDS}`, and optionally `{_SALT}`")
        raise RequestError(f"{name}={shown(value)}: {why}", param=name)
    if text is None and ids is None:
        raise RequestError(f"a prompt must have `{_TEXT}`, a text, or `{_IDS}`, a list of token ids", param=_TEXT)
    if text is not None and not isinstance(text, str):
        raise RequestError(f"{_TEXT}={shown(text)}: must be a string; give token ids as `{_IDS}`", param=_TEXT)
    value = _token_ids(ids, _IDS) if text is None or ids is not None else text
    return ReadPrompt(value, text, {} if salt is None else {_SALT: salt})


def _is_absent(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and not value)


def _token_ids(ids: Any, name: str) -> list[int]:
    """Converts token ids, also from arrays, to integers."""
    try:
        if isinstance(ids, bytes):
            raise TypeError
        return [operator.index(each) for each in ids]
    except TypeError:
        raise RequestError(
            f"{name}={shown(ids)}: must be a string, a list of token ids, or a dict with `{_TEXT}` or `{_IDS}`",
            param=name,
        ) from None
