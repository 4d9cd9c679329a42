"""Arguments that the calls of `LLM` and of `AsyncLLM` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ballast.errors import RequestError, shown
from ballast.library.params import SamplingParams

_OTHERS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "lora_request": ((), "there are no adapters; merge them into the model's file"),
    "priority": ((0,), "prompts are started in the order in which they are given"),
    "prompt_token_ids": ((), "give token ids as prompts: [{'prompt_token_ids': ids}, …]"),
    "tokenization_kwargs": (({},), "give token ids as prompts to tokenize them in another way"),
    "mm_processor_kwargs": (({},), "prompts are texts or token ids"),
    "chat_template_content_format": (("auto", "string", "openai"), "the template itself tells; leave it out"),
    "guided_options_request": ((), "see structured_outputs of SamplingParams"),
    "trace_headers": (({},), "a library sends no traces"),
    "data_parallel_rank": ((0,), "there is one engine"),
}
"""Arguments of vLLM's calls: values that ask for what is done anyway, and what to do instead of others."""


def check_others(others: Mapping[str, Any]) -> None:
    """Raise RequestError for an argument that has no meaning here, TypeError for one that is not known."""
    for name, value in others.items():
        if name not in _OTHERS:
            raise TypeError(f"no such argument: {name}")
        harmless, way_out = _OTHERS[name]
        if value is not None and value not in harmless:
            raise RequestError(f"{name}={shown(value)}: {way_out}", param=name)


def chat_fields(
    tools: Sequence[Mapping[str, Any]] | None,
    chat_template: str | None,
    chat_template_kwargs: Mapping[str, Any] | None,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
) -> dict[str, Any]:
    """Fields of the request for a conversation."""
    return {
        "tools": tools,
        "chat_template": chat_template,
        "chat_template_kwargs": chat_template_kwargs,
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
    }


def each_of(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    """One SamplingParams for each of `count` prompts. Raises ValueError if their number differs."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise ValueError(f"sampling_params: {len(params)} for {count} prompts; give one for all, or one each")
    return params
