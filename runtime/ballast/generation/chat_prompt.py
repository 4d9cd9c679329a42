"""Renders a chat request to a prompt, and decides whether the model thinks and how its reply begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ballast.errors import RequestError
from ballast.text.chat_template import ChatTemplate, close_thinking, force_think
from ballast.text.loading import Text
from ballast.text.marks import Start
from ballast.wire.openai.request import ChatCompletionRequest
from ballast.wire.openai.thinking import ThinkingSwitch
from ballast.wire.parsing import refuse

_OWN_FIELDS = frozenset({"messages", "tools", "add_generation_prompt"})
_SPECIALS = frozenset({"bos_token", "eos_token", "raise_exception", "strftime_now"})
_SWITCHES = ("thinking", "enable_thinking")


class _Option(NamedTuple):
    """The value of a template's variable, and the request's field that it is from."""

    value: Any
    field: str


def render_prompt(
    text: Text, body: ChatCompletionRequest, tools: Sequence[Mapping[str, Any]], *, always_think: bool
) -> str:
    """The prompt, with client text protected (`Tokenizer.protect`). `tools` must be normalised. Raises RequestError."""
    template = text.require_template()
    if tools and not template.renders_tools:
        refuse("tools", "this model's chat template does not support tools; see the server's option --chat_template")
    continue_final = continues_final(body)
    begins_reply = body.add_generation_prompt is not False
    prompt = _rendered(text, body, body.messages, tools, begins_reply=begins_reply, continue_final=continue_final)
    if continue_final:
        return prompt
    if template.has_channels:  # thinking is switched off while the reply is generated
        return prompt + template.tags.begin if always_think and thinking_enabled(body) is not False else prompt
    if thinking_enabled(body) is False:
        return close_thinking(prompt, template.tags, is_forced=always_think)
    return force_think(prompt, template.tags) if always_think else prompt


def render_beginnings(text: Text, body: ChatCompletionRequest, tools: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Texts that prompts of later turns begin with, as `render_prompt` has them: of the messages up to the last one of
    the user, since templates drop the reasoning of the turns before that one, and of all messages. What begins the
    reply is not among them: the reply may be written differently in a later prompt."""
    if continues_final(body):
        return
    num_asked = max((n for n, message in enumerate(body.messages, 1) if message.get("role") == "user"), default=0)
    for num_messages in sorted({num_asked, len(body.messages)} - {0}):
        with suppress(RequestError):  # some templates reject a part of a conversation
            yield _rendered(text, body, body.messages[:num_messages], tools, begins_reply=False)


def _rendered(
    text: Text,
    body: ChatCompletionRequest,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    begins_reply: bool,
    continue_final: bool = False,
) -> str:
    template = text.require_template()
    options = _options(body, template)
    try:
        return template.render(
            messages,
            add_generation_prompt=begins_reply,
            continue_final=continue_final,
            tools=[_shown(tool) for tool in tools],
            options={name: option.value for name, option in options.items()},
            protect=text.tokenizer.protect,
        )
    except RequestError as error:
        if error.param is None or error.param not in options:
            raise
        field = options[error.param].field
        raise RequestError(f"{field}{error.message.removeprefix(error.param)}", param=field) from error


def ineffective_fields(body: ChatCompletionRequest, template: ChatTemplate, start: Start) -> Iterator[str]:
    """The fields without an effect on this model: a request for thinking if the model does not think (its reply begins
    at `start`, and its template has no switch for that); fields about earlier reasoning that the template drops;
    variables that the template does not read. Agents send them with every request."""
    cannot_think = start in (Start.CONTENT, Start.EITHER) and not template.has_thinking_switch
    requested = _requested_thinking(body)
    if requested.value and cannot_think:
        yield requested.field
    for name, value in (body.chat_template_kwargs or {}).items():
        if (value and cannot_think) if name in _SWITCHES else not template.reads(name):
            yield f"chat_template_kwargs.{name}"
    keeps_or_drops = isinstance(body.thinking, ThinkingSwitch) and body.thinking.clear_thinking is not None
    if keeps_or_drops and not template.reads("clear_thinking"):
        yield "thinking.clear_thinking"


def _shown(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool as the model sees it, without `strict`, which only concerns the grammar."""
    return {**tool, "function": {key: value for key, value in tool["function"].items() if key != "strict"}}


def continues_final(body: ChatCompletionRequest) -> bool:
    """Whether the reply continues the last message."""
    for n, message in enumerate(body.messages):
        prefix = message.get("prefix")
        if prefix is not None and not isinstance(prefix, bool):
            refuse(f"messages.{n}.prefix", "must be true, false or null")
    *earlier, final = body.messages
    for n, message in enumerate(earlier):
        if message.get("prefix"):
            refuse(f"messages.{n}.prefix", "only the last message can be continued")
    if body.continue_final_message and body.add_generation_prompt:
        refuse("continue_final_message", "cannot be combined with add_generation_prompt")
    return bool(body.continue_final_message or final.get("prefix"))


def _options(body: ChatCompletionRequest, template: ChatTemplate) -> Mapping[str, _Option]:
    """The template's variables other than the messages."""
    options = {
        name: _Option(value, f"chat_template_kwargs.{name}")
        for name, value in (body.chat_template_kwargs or {}).items()
    }
    if fixed := _SPECIALS & options.keys():
        name = min(fixed)
        refuse(f"chat_template_kwargs.{name}", "is set by the model and cannot be changed")
    if taken := _OWN_FIELDS & options.keys():
        name = min(taken)
        refuse(f"chat_template_kwargs.{name}", f"use the request field {name}")
    requested = _switch(body)
    if requested.value is not None and template.has_thinking_switch:
        options |= dict.fromkeys(_SWITCHES, requested)
    if body.effort is not None:
        field = "reasoning.effort" if body.reasoning_effort is None else "reasoning_effort"
        options.setdefault("reasoning_effort", _Option(body.effort, field))
    if requested.value is False and template.has_channels:
        options.setdefault("reasoning_effort", _Option("none", requested.field))
    if isinstance(body.thinking, ThinkingSwitch) and body.thinking.clear_thinking is not None:
        options.setdefault("clear_thinking", _Option(body.thinking.clear_thinking, "thinking.clear_thinking"))
    return options


def thinking_enabled(body: ChatCompletionRequest) -> bool | None:
    """Whether the request enables thinking, by fields or by template variables; None if it does not specify it."""
    requested = _switch(body).value
    return None if requested is None else bool(requested)


def _switch(body: ChatCompletionRequest) -> _Option:
    """As `thinking_enabled`, but with the unchanged value of a template variable."""
    requested = _requested_thinking(body)
    variables = body.chat_template_kwargs or {}
    if requested.value is not None:
        return requested
    switches = (_Option(variables[name], f"chat_template_kwargs.{name}") for name in _SWITCHES if name in variables)
    return next(switches, requested)


def _requested_thinking(body: ChatCompletionRequest) -> _Option:
    """The first field that enables or disables thinking; if none does, the value is None."""
    thinking, nested = body.thinking, body.reasoning
    settings = {
        "thinking": thinking.enabled if isinstance(thinking, ThinkingSwitch) else thinking,
        "enable_thinking": body.enable_thinking,
        "reasoning.enabled": nested.enabled if nested else None,
        "reasoning_effort": None if body.reasoning_effort is None else body.reasoning_effort != "none",
        "reasoning.effort": nested.effort != "none" if nested and nested.effort else None,
    }
    given = (_Option(value, name) for name, value in settings.items() if value is not None)
    return next(given, _Option(None, "thinking"))
