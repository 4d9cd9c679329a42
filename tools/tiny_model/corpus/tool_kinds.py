"""The kinds of a tool's parameters: the JSON type, a generator of values, and their spoken form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.tiny_model.corpus import words
from tools.tiny_model.corpus.draw import Draw

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value. `about` describes it in a schema. `spoken` has the words for True and for False."""

    type: str
    about: str
    make: Callable[[Draw], Value]
    options: Sequence[str] = ()
    """All possible values, if a schema may list them."""
    spoken: tuple[str, str] = ("true", "false")

    def say(self, value: Value) -> str:
        """The value in the words of a request."""
        return self.spoken[not value] if isinstance(value, bool) else str(value)


def _text(about: str, make: Callable[[Draw], Value]) -> Kind:
    return Kind("string", about, make)


def _one_of(about: str, options: str) -> Kind:
    values = options.split()
    return Kind("string", about, lambda draw: draw.pick(values), values)


def _flag(about: str, yes: str, no: str) -> Kind:
    return Kind("boolean", about, lambda draw: draw.chance(0.5), spoken=(yes, no))


def phrase(draw: Draw) -> str:
    return " ".join(draw.pick((draw.pick(words.NOUNS), words.made_up(draw))) for _ in range(draw.whole(1, 3)))


def _file(draw: Draw) -> str:
    folder = draw.pick(("", "", "", f"{words.made_up(draw)}/", f"/{words.made_up(draw)}/"))
    return f"{folder}{words.made_up(draw)}.{draw.pick(('txt', 'md', 'py', 'json', 'csv', 'log'))}"


def _expression(draw: Draw) -> str:
    parts = [str(draw.digits(3))]
    for _ in range(draw.whole(1, 3)):
        parts += [draw.pick("+-*/"), str(draw.digits(3))]
    return draw.pick((" ", "")).join(parts)


def _url(draw: Draw) -> str:
    return (
        f"https://{words.made_up(draw)}.{draw.pick(('com', 'org', 'net'))}{draw.pick(('', f'/{words.made_up(draw)}'))}"
    )


def _code(draw: Draw) -> str:
    return f"{words.made_up(draw)[:2].upper()}{draw.pick(('', '-'))}{draw.digits(6)}"


KINDS: dict[str, Kind] = {
    "city": _text("Name of the city", words.city),
    "zh_city": _text("城市名称", lambda d: words.one(d, words.ZH_CITIES)),
    "land": _text("Name of the country", lambda d: d.pick(words.LANDS)),
    "street": _text("Street and number", lambda d: f"{words.made_up(d).capitalize()} street {d.digits(3)}"),
    "name": _text("Name of the person", words.name),
    "title": _text("Name", lambda d: words.made_up(d).capitalize()),
    "noun": _text("What it is about", lambda d: d.pick(words.NOUNS)),
    "word": _text("A word", words.made_up),
    "phrase": _text("A few words", phrase),
    "file": _text("Path of the file", _file),
    "picture": _text("The image", lambda d: f"{words.made_up(d)}.{d.pick(('png', 'jpg', 'gif'))}"),
    "folder": _text(
        "Path of the directory", lambda d: "/".join(["", *(words.made_up(d) for _ in range(d.whole(1, 3)))])
    ),
    "command": _text("The command", lambda d: f"{d.pick(('ls', 'cat', 'git', 'make', 'echo'))} {words.made_up(d)}"),
    "expression": _text("Numbers and signs", _expression),
    "mail": _text(
        "Address", lambda d: f"{words.name(d).lower()}@{words.made_up(d)}.{d.pick(('com', 'org', 'net', 'io'))}"
    ),
    "url": _text("Address of the page", _url),
    "domain": _text("Domain name", lambda d: f"{words.made_up(d)}.{d.pick(('com', 'org', 'net', 'io'))}"),
    "phone": _text(
        "Telephone number", lambda d: f"{d.pick(('0', '+'))}{d.digits(4)}{d.pick((' ', '-', ''))}{d.digits(6)}"
    ),
    "symbol": _text("Ticker symbol", lambda d: words.made_up(d)[:4].upper()),
    "code": _text("Number of the order", _code),
    "account": _text("Number of the account", lambda d: f"{d.whole(10000, 999999)}"),
    "scramble": _text("The key", words.scramble),
    "date": _text("YYYY-MM-DD", lambda d: f"20{d.whole(20, 39)}-{d.whole(1, 12):02}-{d.whole(1, 28):02}"),
    "clock": _text("HH:MM", lambda d: f"{d.whole(0, 23):02}:{d.whole(0, 59):02}"),
    "sky": _one_of("What the sky looks like", "sunny cloudy rainy windy foggy snowy"),
    "currency": _one_of("Currency code", "USD EUR GBP JPY"),
    "other_currency": _one_of("Currency code", "CHF CNY SEK INR"),
    "unit": _one_of("Unit of measure", "miles feet pounds gallons inches ounces"),
    "other_unit": _one_of("Unit of measure", "kilometres metres kilograms litres centimetres grams"),
    "language": _one_of("The language", "French German Spanish Italian Chinese Japanese Russian Greek Dutch Polish"),
    "priority": _one_of("How urgent it is", "low medium high urgent"),
    "size": _one_of("The size", "small medium large"),
    "color": _one_of("The colour", "red blue green yellow white black brown grey pink purple orange"),
    "state": _one_of("The state", "open closed waiting sent done"),
    "room": _one_of("The room", "kitchen bedroom hall office bathroom garage garden cellar attic"),
    "digit": Kind("integer", "A small number", lambda d: d.whole(1, 9)),
    "small": Kind("integer", "A whole number", lambda d: d.whole(1, 40)),
    "amount": Kind("integer", "A whole number", lambda d: d.digits(4)),
    "decimal": Kind("number", "A number", lambda d: (10 * d.digits(3) + d.whole(1, 9)) / 10),
    "switch": _flag("true to switch it on", "on", "off"),
    "locked": _flag("true to lock it", "lock", "unlock"),
    "flag": _flag("true or false", "true", "false"),
    "yes": _flag("Whether it is so", "yes", "no"),
}
