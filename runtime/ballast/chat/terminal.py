"""The conversation at the terminal: lines in, replies out, reasoning dimmed; Ctrl-C cancels a reply."""

from __future__ import annotations

import io
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ballast.chat.endpoint import KEY_VARIABLE, Counts, Endpoint, EndpointError, endpoint_url
from ballast.chat.reasoning import ReplyPiece
from ballast.errors import ConfigError

HELP = "/help lists the commands, /exit leaves, Ctrl-C cancels a reply."
COMMANDS = """\
/clear         start over; /reset is the same
/system TEXT   what the model is told before the conversation; without TEXT nothing
/model NAME    ask another model; without NAME list them
/save FILE     write the conversation as JSON, in the form of OpenAI's messages
/exit          leave, as Ctrl-D does
A pasted block of lines is one message. Ctrl-C cancels a reply.
"""
_PROMPT = "> "
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def run(url: str, *, api_key: str | None, model: str | None, system: str | None, settings: Mapping[str, Any]) -> int:
    """Chat until /exit or the end of input; returns the exit code.

    Raises ConfigError when the endpoint does not name its model, or an argument cannot be sent.
    """
    url = endpoint_url(url)
    _check_text("system", system)
    _check_text("model", model)
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError(KEY_VARIABLE, "…", "has characters that no key has; copy it again")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # a line that is no text must not end the conversation
    with Endpoint(url, api_key) as endpoint:
        try:
            listed = endpoint.models()
        except EndpointError as error:
            if model is None:
                advice = "is a server running there (ballast serve)? --url names another place"
                raise ConfigError("url", url, f"{error}; {advice}") from None
            listed = [model]  # some endpoints answer and list nothing
        if model is not None:
            _warn_if_unlisted(model, listed)
        chat = Chat(endpoint, model or listed[0], system, settings)
        prompt = ""
        if sys.stdin.isatty():
            import readline  # gives input() its history and editing keys

            readline.parse_and_bind("set enable-bracketed-paste on")
            # A shell's background job begins with Ctrl-C ignored; on a terminal it is the user's key.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            prompt = _PROMPT
            _write(f"{chat.model} at {url}. {HELP}\n")
        _converse(chat, prompt)
    return 0


def _check_text(option: str, text: str | None) -> None:
    if text is not None and _is_broken(text):
        raise ConfigError(option, text, "is no text in UTF-8")


def _is_broken(text: str) -> bool:
    """Whether a text holds bytes that could not be decoded, so that it cannot be sent."""
    return any("\ud800" <= char <= "\udfff" for char in text)


def _warn_if_unlisted(model: str, listed: list[str]) -> None:
    if model not in listed:
        _write(f"The endpoint lists no model {model}, only {', '.join(listed)}; it may answer all the same.\n")


def _converse(chat: Chat, prompt: str) -> None:
    while True:
        try:
            line = input(prompt).strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            _write(f"\n{HELP}\n")
            continue
        if _is_broken(line):
            _write(f"This line is no text in {sys.stdin.encoding} and was not sent; the conversation continues.\n")
            continue
        if line == "/exit":
            return
        if line.startswith("/"):
            _command(chat, *line.partition(" ")[::2])
        elif line:
            chat.answer(line)


def _command(chat: Chat, name: str, argument: str) -> None:
    argument = argument.strip()
    match name:
        case "/help":
            _write(COMMANDS)
        case "/clear" | "/reset":
            chat.reset()
            _write("A new conversation.\n")
        case "/system":
            chat.set_system(argument)
            _write("The system prompt is set.\n" if argument else "The system prompt is removed.\n")
        case "/model":
            chat.choose(argument)
        case "/save":
            chat.save(argument)
        case _:
            _write(f"{name} is no command here. {HELP}\n")


class Chat:
    """One conversation. A cancelled reply stays in it as far as it came."""

    def __init__(self, endpoint: Endpoint, model: str, system: str | None, settings: Mapping[str, Any]) -> None:
        self._endpoint, self.model, self._settings = endpoint, model, settings
        self._messages: list[dict[str, str]] = []
        self.set_system(system)

    def set_system(self, system: str | None) -> None:
        """Set the system prompt, from the next message on; None and "" remove it."""
        self._system = [{"role": "system", "content": system}] if system else []

    def choose(self, model: str) -> None:
        """Ask `model` from the next message on; for "" show what the endpoint lists."""
        try:
            listed = self._endpoint.models()
        except EndpointError as error:
            _write(f"({error})\n")
            return
        if not model:
            _write("".join(f"{'* ' if name == self.model else '  '}{name}\n" for name in listed))
            return
        _warn_if_unlisted(model, listed)
        self.model = model

    def save(self, file: str) -> None:
        """Write the conversation to `file`, which must not exist yet."""
        if not file:
            _write("/save needs a file's name.\n")
            return
        try:
            with Path(file).expanduser().open("x", encoding="utf-8") as out:
                json.dump({"model": self.model, "messages": self._all_messages()}, out, ensure_ascii=False, indent=2)
                out.write("\n")
        except (OSError, ValueError, RuntimeError) as error:  # also a NUL, or a home directory that is not known
            problem = error.strerror if isinstance(error, OSError) else error
            _write(f"{file} cannot be written: {problem}\n")
        else:
            _write(f"{len(self._messages)} messages are in {file}.\n")

    def _all_messages(self) -> list[dict[str, str]]:
        return [*self._system, *self._messages]

    def reset(self) -> None:
        """Forget the conversation so far."""
        self._messages.clear()

    def answer(self, line: str) -> None:
        """Show the reply to `line` as it arrives."""
        self._messages.append({"role": "user", "content": line})
        on_terminal = sys.stdout.isatty()
        screen, counts, timer = _Screen(colours=on_terminal), Counts(), _Timer()
        pieces = self._endpoint.reply(self.model, self._all_messages(), self._settings, counts)
        try:
            with closing(pieces), _interrupts() as pressed:
                for piece in pieces:
                    if pressed:
                        raise KeyboardInterrupt
                    timer.note()
                    screen.show(piece)
            screen.end()
            if on_terminal:
                _write(f"{_DIM}{timer.summary(counts.tokens)}{_PLAIN}\n")
        except KeyboardInterrupt:
            screen.end("(cancelled)")
        except EndpointError as error:
            screen.end(f"({error})")
        if screen.answer:
            self._messages.append({"role": "assistant", "content": screen.answer})
        else:
            self._messages.pop()  # unanswered, and two user messages in a row would confuse the model


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The list grows by one with each Ctrl-C until the block ends.

    Ctrl-C still raises KeyboardInterrupt immediately. That alone is not enough: C code of a library that checks for an
    attribute treats the exception as a missing attribute and swallows it.
    """
    pressed: list[int] = []

    def press(number: int, _: object) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


class _Timer:
    """How long one reply takes."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._first: float | None = None

    def note(self) -> None:
        """A piece has come."""
        self._first = self._first or time.monotonic()

    def summary(self, tokens: int | None) -> str:
        """The speed, of `tokens` after the first one, and how long the first one took."""
        end = time.monotonic()
        first = self._first or end
        waited = f"first after {first - self._begin:.2f} s"
        if tokens is None or tokens < 2 or end <= first:
            return f"({waited}, {end - self._begin:.2f} s in all)"
        return f"({tokens} tokens, {(tokens - 1) / (end - first):.1f} tokens/s, {waited})"


class _Screen:
    """The terminal output of one reply."""

    def __init__(self, *, colours: bool) -> None:
        self._dim, self._plain = (_DIM, _PLAIN) if colours else ("", "")
        self._in_reasoning = False
        self.answer = ""

    def show(self, piece: ReplyPiece) -> None:
        """Write a piece: reasoning dimmed, with a blank line between it and the answer."""
        if piece.is_reasoning != self._in_reasoning:
            _write(self._dim if piece.is_reasoning else f"{self._plain}\n\n")
            self._in_reasoning = piece.is_reasoning
        if not piece.is_reasoning:
            # A server may send half of a character; the whole conversation is sent to it again.
            self.answer += piece.text.encode(errors="replace").decode()
        _write(piece.text)

    def end(self, remark: str = "") -> None:
        """End the reply, with a remark on a line of its own if there is one."""
        _write((self._plain if self._in_reasoning else "") + (f"\n{remark}\n" if remark else "\n"))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
