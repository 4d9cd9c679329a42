"""Renders chat messages to prompt text, with the model's Jinja template or one of Ballast's."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ballast.errors import CapacityError, ModelError, RequestError, shown
from ballast.families.family import Release
from ballast.families.registry import is_own
from ballast.guarded import LimitExceededError, TaskFailedError
from ballast.text.channels.messages import described, for_channels, known_effort
from ballast.text.foreign.template import ForeignTemplate
from ballast.text.messages import (
    has_calls,
    has_late_instructions,
    normalize_messages,
    with_late_instructions,
    with_numbered_calls,
    with_object_arguments,
)
from ballast.text.template_sandbox import CompiledTemplate
from ballast.text.think_tags import DEFAULT_TAGS, ThinkTags
from ballast.text.typescript_tools import typescript_of, with_sorted_keys

MAX_SOURCE_CHARS = 1 << 20
"""The longest published template has about 20,000 characters."""

_CONTINUED_TEXT = "\ufdd1"
"""Marks where the text of the message to continue begins. A Unicode noncharacter, so no message contains it."""
_CONTINUED_REASONING = "\ufdd4"
"""As `_CONTINUED_TEXT`, of its reasoning."""

_TYPESCRIPT = "tools_ts_str"
"""The variable in which a template wants the tools as TypeScript."""

_LATE = "\ufdd2"
"""Content of the late system message that tests a template. Another noncharacter."""
_REPLY = "\ufdd3"
"""Content of the message before it. One more."""
_TRIED_ARGUMENTS = f'{{"{_LATE}": "a"}}'

Protect = Callable[[Any], Any]


class _Arguments(NamedTuple):
    """How a template takes the arguments of calls."""

    takes_text: bool
    """Whether it writes JSON text, as OpenAI's API has it, as it is."""
    fails_at_text: bool


class ChatTemplate:
    """One model's template, compiled. Thread-safe. Raises ModelError when it is not valid Jinja, or passes its limits.

    `name` says where the template came from; only ModelErrors contain it, since clients must not learn the server's
    paths. `release` is set for a template of Ballast's. `numbers_calls`: calls and results get names of the form
    `functions.NAME:N` instead of the client's ids. `has_channels`: messages are written on channels, as `for_channels`
    says. `today` is the date that the template reads, as YYYY-MM-DD; None: the clock's.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str,
        eos_token: str,
        name: str = "chat template",
        release: Release | None = None,
        numbers_calls: bool = False,
        has_channels: bool = False,
        tags: ThinkTags = DEFAULT_TAGS,
        today: str | None = None,
    ) -> None:
        self.source = source
        self.release = release
        self.tags = tags
        self.today = today
        self.is_guarded = not is_own(source)
        """Whether it is rendered in another process, so that requests may have to wait."""
        self._specials = {"bos_token": bos_token, "eos_token": eos_token}
        self._numbers_calls = numbers_calls
        self.has_channels = has_channels
        self._keeps_late: bool | None = None
        self._known_arguments: _Arguments | None = None
        if len(source) > MAX_SOURCE_CHARS:
            raise ModelError(name, f"chat template: {len(source)} characters; expected at most {MAX_SOURCE_CHARS}")
        try:
            self._template = ForeignTemplate(source) if self.is_guarded else CompiledTemplate(source)
        except TaskFailedError as error:
            raise ModelError(name, f"chat template: {error}") from error
        except LimitExceededError as error:
            raise ModelError(name, f"chat template: compiling it was stopped: {error}") from error
        except OSError as error:
            raise _no_process(error) from error

    @property
    def renders_tools(self) -> bool:
        """Whether the template writes `tools` into the prompt."""
        return self.reads("tools")

    def reads(self, variable: str) -> bool:
        """Whether the template reads this variable."""
        return variable in self._template.variables

    @property
    def has_thinking_switch(self) -> bool:
        """Whether a request can switch thinking on and off."""
        if self.release is not None:
            return self.release.has_switch
        return not self._template.variables.isdisjoint(("thinking", "enable_thinking"))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        protect: Protect = lambda value: value,
    ) -> str:
        """The prompt, with BOS if the template writes it.

        `options` are further variables of the template; they cannot replace the messages or the special tokens.
        System messages after the first of another role stay where they are, as parts of the user's turns unless the
        template writes them in their place. `continue_final` leaves the last message, which must be the assistant's,
        open at its end. `protect` is applied to everything that a client wrote (`Tokenizer.protect`).

        Raises RequestError for messages that cannot be used, and when the template fails: with the name of a variable
        in `options` as its `param` if the template's own error begins with this name, else with `messages`.
        """
        divides_content = self.release is not None and self.release.divides_content
        chat = normalize_messages(messages, divides_content=divides_content, tags=self.tags)
        end = _cut_final(chat) if continue_final else None
        if has_late_instructions(chat) and not self._keeps_late_instructions():
            chat = with_late_instructions(chat)
        if self._numbers_calls:
            chat = with_numbered_calls(chat)
        if has_calls(chat) and not (arguments := self._arguments()).takes_text:
            chat = with_object_arguments(chat, wraps_text=arguments.fails_at_text)
        if self.has_channels:
            chat = for_channels(chat, takes_both=self.release is not None)
            options = known_effort(options or {})
            if self.release is None:
                tools = described(tools or ())
        values = {
            **(self.release.options or {} if self.release else {}),
            **protect(dict(options or {})),
            **self._specials,
            "messages": protect(chat),
            **{name: protect(value) for name, value in self._declared(tools or (), options or {}).items()},
            "add_generation_prompt": add_generation_prompt and not continue_final,
        }
        prompt = self._rendered(values, options or {})
        return prompt if end is None else _continued(prompt, protect(end), self.tags)

    def _declared(self, tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
        """The variables that hold the tools. A template that takes them as TypeScript writes JSON where there is none,
        with sorted keys in both."""
        if not tools:
            return {"tools": None}
        if _TYPESCRIPT not in self._template.variables:
            return {"tools": list(tools)}
        declared = with_sorted_keys(list(tools))
        if _TYPESCRIPT in options:
            return {"tools": declared}
        try:
            return {"tools": declared, _TYPESCRIPT: typescript_of(declared)}
        except ValueError:
            return {"tools": declared}

    def _keeps_late_instructions(self) -> bool:
        """Whether a system message within a conversation is written in its place, by trying it once: the template may
        as well write it in front, leave it out or refuse it."""
        if self._keeps_late is None:
            turns = (("user", "a"), ("assistant", _REPLY), ("system", _LATE), ("user", "c"))
            chat: list[dict[str, Any]] = [{"role": role, "content": content} for role, content in turns]
            values = {**(self.release.options or {} if self.release else {}), **self._specials, "tools": None}
            try:
                with_it = self._rendered({**values, "messages": chat, "add_generation_prompt": False})
                without = self._rendered({**values, "messages": [*chat[:2], chat[3]], "add_generation_prompt": False})
            except RequestError:
                self._keeps_late = False
            else:
                before, _, after = with_it.partition(_REPLY)
                self._keeps_late = _LATE in after and before == without.partition(_REPLY)[0]
        return self._keeps_late

    def _arguments(self) -> _Arguments:
        """How the template takes the arguments of calls; of a model's own template by trying it once. Templates that go
        through them, or write them as JSON themselves, want an object, even where they make something of text as well.
        """
        if self.release is not None:
            return _Arguments(takes_text=not self.release.object_arguments, fails_at_text=False)
        if self._known_arguments is None:
            as_text, as_object = self._tried(_TRIED_ARGUMENTS), self._tried({_LATE: "a"})
            shows_text = _TRIED_ARGUMENTS in as_text
            # A template that puts an object where text belongs shows it as Python does.
            shows_object = _LATE in as_object and "{'" not in as_object
            takes_text = not shows_object or (shows_text and as_text == as_object)
            self._known_arguments = _Arguments(takes_text, fails_at_text=not as_text)
        return self._known_arguments

    def _tried(self, arguments: object) -> str:
        """A conversation with a call that has these arguments; nothing where the template fails."""
        function = {"name": "f", "arguments": arguments}
        chat = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "c", "content": "b"},
        ]
        values = {**self._specials, "tools": None, "messages": chat, "add_generation_prompt": False}
        try:
            return self._rendered(values)
        except RequestError:
            return ""

    def _rendered(self, values: Mapping[str, Any], options: Collection[str] = ()) -> str:
        try:
            return self._template.render(values, self.today)
        except LimitExceededError as error:
            raise RequestError(f"the model's chat template was stopped: {error}", param="messages") from error
        except OSError as error:
            raise _no_process(error) from error
        except Exception as error:  # a template is a program and may raise anything
            problem = shown(str(error), 400)
            if (begin := re.match(r"\w+", problem)) and (name := begin[0]) in options:
                message = f"{name}: the model's chat template cannot use this value: {problem}"
                raise RequestError(message, param=name) from error
            message = f"the model's chat template cannot render these messages: {problem}"
            raise RequestError(message, param="messages") from error


def _no_process(error: OSError) -> CapacityError:
    message = f"no process can be started for the model's chat template: {error.strerror}"
    return CapacityError(message, status=503, code="process_not_started")


def force_think(prompt: str, tags: ThinkTags = DEFAULT_TAGS) -> str:
    """`prompt` with exactly one open `<think>` and a newline at its end, replacing what the template wrote."""
    opened = prompt.removesuffix("\n")
    if opened.endswith(tags.begin):
        return f"{opened}\n"
    return f"{_without_thinking(prompt, tags)}{tags.begin}\n"


def close_thinking(prompt: str, tags: ThinkTags = DEFAULT_TAGS, *, is_forced: bool) -> str:
    """`prompt` with an empty `<think></think>` at its end, if it opens one there or `is_forced`: a model that always
    reasons then answers immediately. A tag that the template has already closed is not changed."""
    if prompt.rstrip("\n").endswith(tags.end):
        return prompt
    opened = (force_think(prompt, tags) if is_forced else prompt).removesuffix("\n")
    return f"{opened}\n\n{tags.end}\n\n" if opened.endswith(tags.begin) else prompt


def _without_thinking(prompt: str, tags: ThinkTags) -> str:
    """`prompt` without an empty `<think></think>` at its end."""
    closed = prompt.rstrip("\n")
    if not closed.endswith(tags.end):
        return prompt
    return closed.removesuffix(tags.end).rstrip("\n").removesuffix(tags.begin)


def _cut_final(chat: list[dict[str, Any]]) -> dict[str, str]:
    """Take the last message's content and reasoning out of `chat`, put markers there, and return them."""
    final = chat[-1]
    path = f"messages.{len(chat) - 1}"
    if final["role"] != "assistant":
        raise RequestError(f"{path}.role: only a message of the assistant can be continued", param=f"{path}.role")
    if "tool_calls" in final:
        raise RequestError(f"{path}.tool_calls: a message with tool calls cannot be continued", param=path)
    end = {"content": final["content"], "reasoning": final.pop("reasoning_content", "")}
    final["content"] = _CONTINUED_TEXT
    if end["reasoning"]:
        final["reasoning_content"] = _CONTINUED_REASONING
    return end


def _continued(prompt: str, end: Mapping[str, str], tags: ThinkTags) -> str:
    head, found, _ = prompt.rpartition(_CONTINUED_TEXT)
    if not found:
        raise RequestError("this model's chat template cannot continue a message", param="messages")
    if not end["reasoning"]:
        return head + end["content"]
    before, shown, between = head.rpartition(_CONTINUED_REASONING)
    if shown:
        return before + end["reasoning"] + (between + end["content"] if end["content"] else "")
    answer = f"\n{tags.end}\n\n{end['content']}" if end["content"] else ""
    return force_think(head, tags) + end["reasoning"] + answer
