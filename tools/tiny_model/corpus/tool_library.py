"""The tools of requests: those of tools.yaml, and any number of generated ones."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import yaml

from tools.tiny_model.corpus import words
from tools.tiny_model.corpus.draw import Draw
from tools.tiny_model.corpus.tool_kinds import KINDS, Kind, Value


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, and requests that need it, with `{parameter}` in place of a value."""

    name: str
    about: str
    parameters: Mapping[str, Kind]
    requests: tuple[str, ...]
    gives: Mapping[str, Kind] = field(default_factory=dict)
    say: str = "Done."
    """The reply to the user. `{r_…}` is replaced by a result of the tool."""
    unasked: Mapping[str, Kind] = field(default_factory=dict)
    """Optional parameters that this request leaves out."""

    def arguments(self, draw: Draw) -> dict[str, Value]:
        return {name: kind.make(draw) for name, kind in self.parameters.items()}

    def request(self, draw: Draw, arguments: Mapping[str, Value]) -> str:
        spoken = {name: self.parameters[name].say(value) for name, value in arguments.items()}
        return draw.wording(self.requests).format(**spoken)

    def answer(self, draw: Draw, arguments: Mapping[str, Value]) -> tuple[str, str]:
        """The tool's output, and the reply to the user."""
        output: dict[str, Value] = {name: kind.make(draw) for name, kind in self.gives.items()}
        given = {f"r_{name}": value for name, value in output.items()}
        return json.dumps(output or {"ok": True}, ensure_ascii=False), self.say.format(**arguments, **given)


@cache
def known_tools() -> tuple[Tool, ...]:
    """The tools of tools.yaml."""
    entries = yaml.safe_load(Path(__file__).with_name("tools.yaml").read_text(encoding="utf-8"))
    return tuple(_known(**entry) for entry in entries)


def _known(
    name: str,
    about: str,
    parameters: dict[str, str],
    ask: list[str],
    gives: dict[str, str] | None = None,
    say: str = "Done.",
) -> Tool:
    return Tool(name, about, _kinds(parameters), tuple(ask), _kinds(gives or {}), say)


def _kinds(named: Mapping[str, str]) -> dict[str, Kind]:
    return {name: KINDS[kind] for name, kind in named.items()}


def any_tool(draw: Draw) -> Tool:
    """A tool that may be drawn."""
    while True:
        tool = draw.pick(known_tools()) if draw.chance(0.5) else draw.pick((_named, _plain))(draw)
        if draw.allowed_tool(tool.name):
            return tool


def is_everyday(name: str) -> bool:
    """Whether tools.yaml has a tool of this name, with wordings of its own."""
    return any(tool.name == name for tool in known_tools())


# The action of a generated tool: the verb in its name, and how people say it.
_WORDS = yaml.safe_load(Path(__file__).with_name("tool_words.yaml").read_text(encoding="utf-8"))
_ACTIONS = {name: tuple(said.split(", ")) for name, said in _WORDS["actions"].items()}
_OBJECTS = tuple(_WORDS["objects"].split())
# A kind, parameter names for it, and how a value is given: {f} is the parameter's name, {v} the value.
_SAID: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("city", ("city", "place", "location", "town", "destination"), ("in {v}", "for {v}", "near {v}")),
    ("name", ("person", "owner", "customer", "assignee", "guest", "author"), ("for {v}", "of {v}", "for the {f} {v}")),
    ("title", ("title", "name", "label"), ("called {v}", "named {v}", 'with the {f} "{v}"', "with {f} {v}")),
    ("phrase", ("text", "message", "content", "description", "comment"), ('saying "{v}"', "with the {f} {v}",
    "with the text {v}")),
    ("date", ("date", "day", "due_date", "deadline"), ("on {v}", "for {v}", "for the {v}")),
    ("clock", ("time", "start_time", "at"), ("at {v}", "for {v}", "at {v} o'clock")),
    ("small", ("minutes", "hours", "days", "weeks", "seconds"), ("for {v} {f}", "of {v} {f}", "over {v} {f}")),
    ("amount", ("count", "number", "quantity", "limit", "level", "points"), ("with {f} {v}", "{f} {v}",
    "with a {f} of {v}")),
    ("decimal", ("price", "weight", "length", "factor", "rate"), ("with {f} {v}", "{f} {v}", "with a {f} of {v}")),
    ("code", ("id", "key", "reference", "order_id", "serial"), ("with the id {v}", "{v}", "with {f} {v}",
    "number {v}")),
    ("mail", ("to", "email", "recipient", "address"), ("to {v}", "for {v}", "with the address {v}")),
    ("file", ("path", "file", "filename"), ("from {v}", "to {v}", "in the file {v}", "from the file {v}")),
    ("color", ("color", "colour"), ("in {v}", "with {f} {v}", "in the colour {v}")),
    ("priority", ("priority", "urgency"), ("with {v} {f}", "with {f} {v}")),
    ("size", ("size", "format"), ("in {f} {v}", "of {f} {v}", "with {f} {v}")),
    ("language", ("language", "lang"), ("in {v}", "into {v}")),
    ("land", ("country", "region"), ("in {v}", "from {v}")),
    ("room", ("room", "area"), ("in the {v}", "for the {v}")),
    ("flag", ("active", "public", "urgent", "force", "verbose"), ("with {f} {v}", "{f} {v}", "and {f} {v}")),
    ("yes", ("active", "public", "urgent", "force", "notify"), ("{f}: {v}", "with {f}: {v}")),
    ("url", ("url", "link", "page"), ("from {v}", "at {v}", "with the {f} {v}")),
    ("scramble", ("code", "password", "token", "hash"), ("with {f} {v}", "with the {f} {v}")),
)  # fmt: skip
_ASKED = (
    "{}.", "{}", "Please {}.", "Can you {}?", "I want to {}.", "I need to {}.", "Could you {}, please?", "Now {}.",
    "I would like to {}.", "Will you {}?", "You should {}.", "{}, please.", "Let us {}.", "Help me to {}.",
    "My wish: {}",
    "{} for me.", "Go and {}.", "It is time to {}.", "Try to {}.",
)  # fmt: skip


def _named(draw: Draw) -> Tool:
    """A generated tool that a request describes in natural language: `create_invoice`, "Make an invoice for Anna"."""
    action, thing = draw.pick(tuple(_ACTIONS)), draw.pick(_OBJECTS)
    chosen = draw.some(_SAID, 1, 3)
    parameters, said = {}, []
    for kind, names, phrases in chosen:
        name = draw.pick(names)
        if name in parameters:
            continue
        parameters[name] = KINDS[kind]
        said.append(draw.wording(phrases).format(f=name.replace("_", " "), v=f"{{{name}}}"))
    unasked = {}
    if draw.chance(0.15):
        kind, names, _ = draw.pick(_SAID)
        unasked = {name: KINDS[kind] for name in names[:1] if name not in parameters}
    verb = draw.pick((action, *_ACTIONS[action]))
    noun = draw.pick(("a ", "the ", "my ", "", "the new ", "our ", "this ")) + thing.replace("_", " ")
    inner = " ".join([verb, noun, *said])
    about = draw.pick(
        (f"{action.capitalize()} a {thing}", f"{action.capitalize()}s the {thing}", f"Can {action} a {thing}")
    )
    return Tool(_styled(draw, action, thing), about, parameters, (_asked(draw, inner),), unasked=unasked)


def _asked(draw: Draw, inner: str) -> str:
    text = draw.wording(_ASKED).replace("{}", inner)
    return text[0].upper() + text[1:] if draw.chance(0.8) else text


def _styled(draw: Draw, action: str, thing: str) -> str:
    kind = draw.whole(0, 9)
    if kind == 0:
        return f"{action}-{thing}".replace("_", "-")
    if kind <= 2:
        return re.sub(r"_(\w)", lambda found: found[1].upper(), f"{action}_{thing}")
    return f"{thing}_{action}" if kind == 3 else f"{action}_{thing}"


_PLAIN_KINDS = (
    "name", "phrase", "city", "scramble", "date", "word", "amount", "small", "flag", "decimal", "title", "code",
)  # fmt: skip
_PLAIN = (
    "Call {name} with {said}.", "Use {name} with {said}.", "{Plain} with {said}.", "{name} {said}",
    "Please {plain}: {equals}",
    "Run {name} with {equals}.", "I want to {plain} with {said}.", "{name}({equals})", "Do {name}: {equals}",
    "{Plain}, {said}",
    "Invoke {name}, {said}.", "Execute {name} with {said}, please.",
)  # fmt: skip


def _plain(draw: Draw) -> Tool:
    """A meaningless tool that requests call by its name, so that the model must read the tools instead of remembering
    them."""
    name = f"{draw.pick(words.TOOL_VERBS)}_{draw.pick((draw.pick(words.NOUNS), words.made_up(draw)))}"
    fields = draw.some(words.FIELDS, 1, 3)
    said = draw.pick((" and ", ", ")).join(f"{one} {{{one}}}" for one in fields)
    equals = ", ".join(f"{one}={{{one}}}" for one in fields)
    plain = name.replace("_", " ")
    request = draw.wording(_PLAIN).format(name=name, plain=plain, Plain=plain.capitalize(), said=said, equals=equals)
    about = draw.pick((f"{plain.capitalize()}", f"Can {plain}", f"{plain.capitalize()} for the user"))
    return Tool(name, about, {one: KINDS[draw.pick(_PLAIN_KINDS)] for one in fields}, (request,))
