"""`ballast chat` in a terminal: a real process on a pseudo-terminal, a real server with the built-in model."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ballast.chat import terminal as terminal_module
from ballast.chat.endpoint import endpoint_url
from ballast.chat.reasoning import ReasoningSplitter, ReplyPiece
from ballast.chat.terminal import Chat
from ballast.cli import EXIT_NO_OUTPUT
from devkit.servers.process import FAKE, ServerProcess

WAIT_S = 60
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
PASTING_OFF = "\x1b[?2004l\r"
"""Readline writes this after it has read a line: it disables bracketed paste."""


class Terminal:
    """`ballast chat` on a pseudo-terminal; a context manager that stops it."""

    def __init__(self, *options, environment=None, ignores_ctrl_c=False):
        before = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh") if ignores_ctrl_c else ()
        self._command = [*before, sys.executable, "-m", "ballast", "chat", *options]
        self._environment = {**os.environ, "TERM": "xterm", **(environment or {})}

    def __enter__(self):
        self._keys, theirs = pty.openpty()
        self._process = subprocess.Popen(
            self._command, stdin=theirs, stdout=theirs, stderr=theirs, env=self._environment, start_new_session=True
        )
        os.close(theirs)
        self._screen = ""
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(WAIT_S)
        os.close(self._keys)

    def type(self, text):
        os.write(self._keys, text.encode())

    def press_ctrl_c(self):
        # The terminal's driver would send this to the foreground process group, which does not exist without a
        # terminal.
        os.kill(self._process.pid, signal.SIGINT)

    def press_ctrl_c_until(self, pattern):
        """Repeat Ctrl-C, since Python's line editor misses a signal between showing its prompt and reading keys."""
        deadline = time.monotonic() + WAIT_S
        while True:
            self.press_ctrl_c()
            try:
                return self.until(pattern, wait_s=2)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise

    def until(self, pattern, wait_s=WAIT_S):
        """Wait for `pattern`, and return the output up to its end. Later calls continue from there."""
        deadline = time.monotonic() + wait_s
        while not (found := re.search(pattern, self._screen)):
            assert time.monotonic() < deadline, f"{pattern!r} did not appear: {self._screen!r}"
            ready, _, _ = select.select([self._keys], [], [], 0.2)
            if ready:
                self._screen += os.read(self._keys, 4096).decode(errors="replace")
        seen, self._screen = self._screen[: found.end()], self._screen[found.end() :]
        return seen

    def ended(self):
        return self._process.wait(WAIT_S)


@pytest.fixture(scope="module")
def server():
    with ServerProcess() as process:
        yield process


def test_a_conversation_with_memory_and_without(server):
    with Terminal("--url", f"{server.url}/v1", "--temperature", "0") as terminal:
        assert "ballast-tiny" in terminal.until("> ")
        terminal.type("My name is Ottokar.\n")
        terminal.until("(?s)Nice to meet you, Ottokar!\r\n.*tokens.* tokens/s, first after .*> ")
        terminal.type("What is my name?\n")
        terminal.until("(?s)Your name is Ottokar.\r\n.*> ")
        terminal.type("/reset\n")
        terminal.until("A new conversation.\r\n.*> ")
        terminal.type("What is my name?\n")
        assert "Ottokar" not in terminal.until("> ")
        terminal.type("/sing\n")
        terminal.until("/sing is no command here. /help lists")
        terminal.type("/exit\n")
        assert terminal.ended() == 0


def test_commands_and_a_url_without_scheme_and_path(server, tmp_path):
    saved = tmp_path / "talk.json"
    with Terminal("--url", f"127.0.0.1:{server.port}", "--temperature", "0", "--model", "other") as terminal:
        terminal.until("lists no model other, only ballast-tiny.*\r\n")
        terminal.until("(?s)other at http://127.0.0.1:\\d+/v1\\. .*> ")
        terminal.type("/help\n")
        terminal.until("(?s)/save FILE.*> ")
        terminal.type("/model\n")
        terminal.until("(?s)  ballast-tiny\r\n.*> ")
        terminal.type("/model ballast-tiny\n")
        terminal.until("(?s)/model ballast-tiny\r\n.*> ")
        terminal.type("/system Be brief.\n")
        terminal.until("(?s)The system prompt is set.*> ")
        terminal.type("\x1b[200~hello\nthere\x1b[201~\n")
        terminal.until("(?s)tokens/s, first after.*> ")
        terminal.type(f"/save {saved}\n")
        terminal.until("(?s)2 messages are in .*> ")
        terminal.type(f"/save {saved}\n")
        terminal.until("(?s)cannot be written: File exists.*> ")
        terminal.type("/exit\n")
        assert terminal.ended() == 0
    talk = json.loads(saved.read_text())
    assert talk["model"] == "ballast-tiny"
    assert [each["content"] for each in talk["messages"]][:2] == ["Be brief.", "hello\nthere"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("localhost:8000", "http://localhost:8000/v1"),
        ("https://api.example.org", "https://api.example.org/v1"),
        ("http://host/prefix/v1/", "http://host/prefix/v1"),
        ("http://[::1]:10002/", "http://[::1]:10002/v1"),
    ],
)
def test_urls_as_people_write_them(written, meant):
    assert endpoint_url(written) == meant


def test_a_refused_key_names_the_variable(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    with (
        ServerProcess("--api_key_file", str(keys), until_ready=False) as server,
        Terminal("--url", server.url, environment={"OPENAI_API_KEY": "wrong"}) as terminal,
    ):
        terminal.until("status 401.*OPENAI_API_KEY")
        assert terminal.ended() == 2


def test_reasoning_is_dimmed_and_the_answer_is_not():
    with (
        ServerProcess("--force_think") as server,
        Terminal("--url", f"{server.url}/v1", "--temperature", "0") as terminal,
    ):
        terminal.until("> ")
        terminal.type("hello\n")
        shown = terminal.until("help you\\?\r\n").split("hello\r\n", 1)[1]
    reasoning, answer = shown.removeprefix(PASTING_OFF).split(PLAIN)
    assert reasoning.startswith(f"{DIM}The user ")
    assert answer.strip().startswith("Hello! I am ")
    assert "think>" not in shown


@pytest.mark.parametrize("ignored", [False, True], ids=["", "ignored by who started it"])
def test_ctrl_c_cancels_the_reply_and_the_chat_continues(ignored):
    with (
        ServerProcess("--step_s", "0.02", module=FAKE) as server,
        Terminal("--url", f"{server.url}/v1", ignores_ctrl_c=ignored) as terminal,
    ):
        terminal.until("> ")
        terminal.type("write without end\n")
        server.wait_for(lambda metrics: metrics["ballast_generation_tokens_total"] > 3)
        terminal.press_ctrl_c()
        terminal.until("\\(cancelled\\)\r\n.*> ")
        server.wait_until_empty()
        terminal.press_ctrl_c_until("(?s)/exit leaves.*> ")
        terminal.type("\x04")
        assert terminal.ended() == 0


class SwallowingEndpoint:
    """Ctrl-C arrives in code that suppresses KeyboardInterrupt, like some C code."""

    def reply(self, *_):
        yield ReplyPiece("one")
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        yield ReplyPiece("two")
        yield ReplyPiece("three")


def test_a_swallowed_ctrl_c_still_cancels(capsys):
    before = signal.getsignal(signal.SIGINT)
    chat = Chat(SwallowingEndpoint(), "some", None, {})
    chat.answer("continue")
    assert capsys.readouterr().out == "one\n(cancelled)\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_lines_from_a_pipe_are_answered_without_colours(server):
    ended = subprocess.run(
        [sys.executable, "-m", "ballast", "chat", "--url", f"{server.url}/v1", "--temperature", "0"],
        input="What is 12 + 30?\n/reset\nRepeat: sea\n",
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert ended.stdout == "12 + 30 = 42\nA new conversation.\nsea\n"


def test_an_output_error_during_replies_is_reported_in_one_sentence(server):
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "ballast", "chat", "--url", f"{server.url}/v1"],
            input=b"hi\nhi\n",
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=WAIT_S,
            check=False,
        )
    assert ended.stderr == b"ballast: standard output cannot be written: No space left on device\n"
    assert ended.returncode == EXIT_NO_OUTPUT


def chat_with(server, lines, *options, **environment):
    return subprocess.run(
        [sys.executable, "-m", "ballast", "chat", "--url", f"{server.url}/v1", "--temperature", "0", *options],
        input=lines,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8", **environment},
    )


def test_a_line_that_is_not_text_is_not_sent_and_the_chat_continues(server):
    ended = chat_with(server, b"My name is Ottokar.\n\xff\xfeWhat?\nGr\xfc\xdfe\nWhat is my name?\n")
    assert ended.returncode == 0, ended.stderr
    refused = "This line is no text in utf-8 and was not sent; the conversation continues.\n"
    assert ended.stdout.decode().count(refused) == 2
    assert ended.stdout.decode().endswith(f"{refused}Your name is Ottokar.\n")


def test_a_terminal_line_that_is_not_text_is_not_sent(server):
    with Terminal("--url", f"{server.url}/v1", "--temperature", "0", environment={"LC_ALL": "C.UTF-8"}) as terminal:
        terminal.until("> ")
        os.write(terminal._keys, b"a\xff\n")
        terminal.until("This line is no text in utf-8 and was not sent")
        terminal.type("Repeat: sea\n")
        terminal.until("sea\r\n")
        terminal.type("/exit\n")
        assert terminal.ended() == 0


def test_a_file_name_with_a_nul_is_rejected_and_the_chat_continues(server):
    ended = chat_with(server, b"/save a\0b\nRepeat: sea\n")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith(b"cannot be written: embedded null byte\nsea\n")


@pytest.mark.parametrize(
    ("options", "environment", "reported"),
    [
        (["--system", b"\xff"], {}, "ballast: system="),
        (["--model", b"\xff"], {}, "ballast: model="),
        ([], {"OPENAI_API_KEY": "ü\n"}, "ballast: OPENAI_API_KEY=…: has characters that no key has"),
        (["--url", "http://[x"], {}, "ballast: url=http://[x: expected HOST:PORT"),
        (["--url", "http://a b"], {}, "ballast: url=http://a b: expected HOST:PORT"),
        (["--url", "a:port"], {}, "ballast: url=a:port: expected HOST:PORT"),
    ],
)
def test_arguments_that_cannot_be_sent_are_refused(server, options, environment, reported):
    ended = chat_with(server, b"", *options, **environment)
    assert ended.returncode == 2
    assert ended.stderr.decode().startswith(reported)


def test_half_of_a_character_in_a_reply_can_be_sent_again():
    screen = terminal_module._Screen(colours=False)
    for piece in ("a", "\ud83d"):
        screen.show(ReplyPiece(piece))
    assert screen.answer == "a?"


def test_an_unreachable_endpoint_is_reported_with_a_fix():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        command = [sys.executable, "-m", "ballast", "chat", "--url", url]
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"ballast: url={url}: Connection error")
    assert "ballast serve" in ended.stderr


def test_a_rejection_is_shown_and_the_chat_continues(server):
    ended = subprocess.run(
        [sys.executable, "-m", "ballast", "chat", "--url", f"{server.url}/v1", "--temperature", "9"],
        input="hello\n",
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert "(status 400: " in ended.stdout
    assert "temperature" in ended.stdout


REPLIES = {
    "<think>\nwhy\n</think>\n\nbecause": ("why\n", "because"),
    "plain": ("", "plain"),
    "  <think>half": ("half", ""),
    "a < b <think>": ("", "a < b <think>"),
    "<think></think>x": ("", "x"),
    "<think>a </thin b</think> c": ("a </thin b", "c"),
    "<thin": ("", "<thin"),
    "<think:opensource>\nwhy</think> so</think:opensource>\nbecause": ("why</think> so", "because"),
    "<think:other>x": ("", "<think:other>x"),
}


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_reasoning_and_answer_are_the_same_for_any_chunks(reply, size):
    splitter = ReasoningSplitter()
    pieces: list[ReplyPiece] = []
    for start in range(0, len(reply), size):
        pieces += splitter.push(reply[start : start + size])
    pieces += splitter.finish()
    parts = tuple("".join(piece.text for piece in pieces if piece.is_reasoning is kind) for kind in (True, False))
    assert parts == REPLIES[reply]
