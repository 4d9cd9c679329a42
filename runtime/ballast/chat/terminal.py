"""The conversation at the terminal: lines in, replies out, thoughts dimmed, Ctrl-C cancels a reply."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from ballast.chat.endpoint import Endpoint, EndpointError
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
    """One conversation; what was cancelled stays in it as far as it came."""

    def __init__(self, endpoint: Endpoint, model: str, system: str | None, settings: Mapping[str, Any]) -> None:
        self._endpoint, self._model, self._settings = endpoint, model, settings
        self._system = [{"role": "system", "content": system}] if system else []
        self._messages: list[dict[str, str]] = []

    def reset(self) -> None:
        """Forget everything that was said."""
        self._messages.clear()

    def answer(self, line: str) -> None:
        """Show the reply to `line` as it arrives."""
        self._messages.append({"role": "user", "content": line})
        screen = _Screen(colours=sys.stdout.isatty())
        pieces = self._endpoint.reply(self._model, [*self._system, *self._messages], self._settings)
        try:
            with closing(pieces), _presses() as pressed:
                for said in pieces:
                    if pressed:
                        raise KeyboardInterrupt
                    screen.show(said.text, thought=said.thought)
            screen.end()
        except KeyboardInterrupt:
            screen.end("(cancelled)")
        except EndpointError as error:
            screen.end(f"({error})")
        if screen.answer:
            self._messages.append({"role": "assistant", "content": screen.answer})
        else:
            self._messages.pop()  # nobody answered, and two questions in a row would only confuse


@contextmanager
def _presses() -> Iterator[list[int]]:
    """Ctrl-C as often as it is pressed meanwhile. It raises KeyboardInterrupt at once too, but a library's C code that
    asks whether something has an attribute takes that for a no."""
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
        self._thinking = False
        self.answer = ""

    def show(self, text: str, *, thought: bool) -> None:
        """Write a piece, dimmed when it is thought; a blank line stands between thought and answer."""
        if thought != self._thinking:
            _write(self._dim if thought else f"{self._plain}\n\n")
            self._thinking = thought
        if not thought:
            self.answer += text
        _write(text)

    def end(self, remark: str = "") -> None:
        """Close the reply, with a remark on a line of its own."""
        _write((self._plain if self._thinking else "") + (f"\n{remark}\n" if remark else "\n"))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
