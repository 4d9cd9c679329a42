"""aider, which edits a file as instructed by the reply."""

import contextlib
import io
import os
import tempfile
from pathlib import Path

HOME = tempfile.TemporaryDirectory()
os.environ |= {"HOME": HOME.name, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

from aider.main import main  # noqa: E402 - it looks at its home as it is imported
from shared import KEY, SCRIPTED  # noqa: E402

APIS = ("/v1/chat/completions",)
QUIET = ("--no-git", "--no-check-update", "--no-analytics", "--no-show-model-warnings", "--no-pretty", "--yes-always")
MODEL = ("--model", "openai/m", "--edit-format", "diff", "--map-tokens", "0", "--timeout", "30")


def edited(key, *options):
    """aider's terminal output, and the file that it should edit."""
    with contextlib.chdir(HOME.name), contextlib.redirect_stdout(io.StringIO()) as shown:
        wall = Path("wall.py")
        wall.write_text('colour = "green"\n')
        requested = (*MODEL, *QUIET, *options, "--openai-api-base", SCRIPTED + "/v1", "--openai-api-key", key)
        main([*requested, "--message", "say edit", str(wall)])
        return shown.getvalue(), wall.read_text()


def check_file_edit():
    assert edited(KEY, "--no-stream")[1] == 'colour = "red"\n'


def check_stream():
    assert edited(KEY, "--stream")[1] == 'colour = "red"\n'


def check_errors():
    shown, wall = edited("another")
    assert "AuthenticationError" in shown, shown
    assert wall == 'colour = "green"\n'
