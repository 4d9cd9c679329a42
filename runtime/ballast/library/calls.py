"""Common arguments of the methods of `LLM` and `AsyncLLM`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ballast.errors import RequestError, shown
from ballast.library.params import SamplingParams

_OTHERS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "lora_request": ((), "adapters are not supported; merge them into the model's file"),
    "priority": ((0,), "prompts start in the given order"),
    "prompt_token_ids": ((), "give token ids as prompts: [{'prompt_token_ids': ids}, …]"),
    "tokenization_kwargs": (({},), "give token ids as prompts to tokenize them in another way"),
    "mm_processor_kwargs": (({},), "prompts are texts or token ids"),
    "chat_template_content_format": (("auto", "string", "openai"), "the template decides; leave it out"),
    "guided_options_request": ((), "use structured_outputs of SamplingParams"),
    "trace_headers": (({},), "the library does not send traces"),
    "data_parallel_rank": ((0,), "there is one engine"),
}
"""Arguments of vLLM's methods: accepted values without an effect, and what to do instead of other values."""


def check_others(others: Mapping[str, Any]) -> None:
    """Raise RequestError for an argument of vLLM that is not supported, TypeError for an unknown one."""
    for name, value in others.items():
        if name not in _OTHERS:
            raise TypeError(f"unknown argument: {name}")
        harmless, advice = _OTHERS[name]
        if value is not None and value not in harmless:
            raise RequestError(f"{name}={shown(value)}: {advice}", param=name)


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
        raise ValueError(f"sampling_params: {len(params)} for {count} prompts; give one for all, or one per prompt")
    return params
