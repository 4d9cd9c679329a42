"""Shared parts of the client checks: a tool, a schema, the examples as modules."""

import contextlib
import io
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

BUILT_IN, SCRIPTED, PLAIN = sys.argv[2:5]
"""URLs of three servers. The first has the built-in model, which follows grammars but does not act as an agent. The
second's model follows a script: `say paint` makes it call the tool `paint`, `say painted` makes it reply PAINTED. The
third has the default options of `ballast serve`."""

KEY = "a-key"
"""The header value that the second server requires."""

PAINTED = "The wall is red."
RESULT = "The paint is dry. say painted"
"""The tool's result, which triggers the next step of the script."""

TOO_LONG = "long " * 40_000


class Painting(BaseModel):
    """A painting."""

    model_config = ConfigDict(extra="forbid")
    colour: Literal["red", "green"]
    sure: bool


SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "sure": {"type": "boolean"}},
    "required": ["colour", "sure"],
    "additionalProperties": False,
}
FUNCTION = {"type": "function", "function": {"name": "paint", "description": "paints", "parameters": SCHEMA}}
CHOICE = {"type": "function", "function": {"name": "paint"}}
SHAPE = {"type": "json_schema", "json_schema": {"name": "painting", "schema": SCHEMA, "strict": True}}
PAINT = {"colour": "red", "sure": True}
"""The arguments of the script's call."""


def painting_tool(result=RESULT):
    """A function for clients to offer as a tool, and a list that records the arguments of its calls."""
    calls = []

    def paint(colour: str, sure: bool) -> str:
        """Paints.

        Args:
            colour: Which one.
            sure: Whether to paint at all.
        """
        calls.append({"colour": colour, "sure": sure})
        return result

    return paint, calls


def assert_painted(text):
    """Assert that a text is JSON that matches the schema."""
    painted = json.loads(text)
    assert painted["colour"] in ("red", "green"), painted
    assert painted["sure"] in (True, False), painted


class Raises:
    """A context that requires an exception of `kind`, which is in `error` afterwards."""

    def __init__(self, kind):
        self.kind = kind

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        assert kind is not None, f"{self.kind.__name__} was expected, but no exception was raised"
        self.error = error
        return issubclass(kind, self.kind)


def example(name):
    """Run a program of `examples` unchanged with a server and return its output."""
    os.environ["OPENAI_BASE_URL"] = PLAIN + "/v1"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(Path(__file__).parents[2] / "examples" / name), run_name="__main__")
    return printed.getvalue()
