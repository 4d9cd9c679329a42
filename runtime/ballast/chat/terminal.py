"""The conversation at the terminal: lines in, replies out, reasoning dimmed; Ctrl-C cancels a reply."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from ballast.chat.endpoint import Endpoint, EndpointError
from ballast.chat.reasoning import ReplyPiece
from ballast.errors import ConfigError

HELP = "/reset starts over, /exit leaves, Ctrl-C cancels a reply."
_PROMPT = "> "
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def run(url: str, *, api_key: str | None, model: str | None, system: str | None, settings: Mapping[str, Any]) -> int:
    """Chat until /exit or the end of input; returns the exit code.

    Raises ConfigError when the endpoint does not name its model.
    """
    with Endpoint(url, api_key) as endpoint:
        try:
            model = model or endpoint.first_model()
        except EndpointError as error:
            way_out = "is a server running there (ballast serve)? --url names another place"
            raise ConfigError("url", url, f"{error}; {way_out}") from None
        prompt = ""
        if sys.stdin.isatty():
            import readline  # noqa: F401  gives input() its history and editing keys

            # A shell's background job begins with Ctrl-C ignored; on a terminal it is the user's key.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            prompt = _PROMPT
            _write(f"{model} at {url}. {HELP}\n")
        _converse(Chat(endpoint, model, system, settings), prompt)
    return 0


def _converse(chat: Chat, prompt: str) -> None:
    while True:
        try:
            line = input(prompt).strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            _write(f"\n{HELP}\n")
            continue
        if line == "/exit":
            return
        if line == "/reset":
            chat.reset()
            _write("A new conversation.\n")
        elif line.startswith("/"):
            _write(f"{line.split()[0]} is no command here. {HELP}\n")
        elif line:
            chat.answer(line)


class Chat:
    """One conversation. A cancelled reply stays in it as far as it came."""

    def __init__(self, endpoint: Endpoint, model: str, system: str | None, settings: Mapping[str, Any]) -> None:
        self._endpoint, self._model, self._settings = endpoint, model, settings
        self._system = [{"role": "system", "content": system}] if system else []
        self._messages: list[dict[str, str]] = []

    def reset(self) -> None:
        """Forget the conversation so far."""
        self._messages.clear()

    def answer(self, line: str) -> None:
        """Show the reply to `line` as it arrives."""
        self._messages.append({"role": "user", "content": line})
        screen = _Screen(colours=sys.stdout.isatty())
        pieces = self._endpoint.reply(self._model, [*self._system, *self._messages], self._settings)
        try:
            with closing(pieces), _interrupts() as pressed:
                for piece in pieces:
                    if pressed:
                        raise KeyboardInterrupt
                    screen.show(piece)
            screen.end()
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

    Ctrl-C still raises KeyboardInterrupt at once. That alone is not enough: C code of a library that asks whether an
    object has an attribute takes the exception for a no, and swallows it.
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


class _Screen:
    """Where one reply is written."""

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
            self.answer += piece.text
        _write(piece.text)

    def end(self, remark: str = "") -> None:
        """End the reply, with a remark on a line of its own if there is one."""
        _write((self._plain if self._in_reasoning else "") + (f"\n{remark}\n" if remark else "\n"))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
