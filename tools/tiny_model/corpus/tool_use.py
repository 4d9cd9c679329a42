"""Calling a given tool with JSON arguments, and knowing when not to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.tiny_model.corpus import words
from tools.tiny_model.corpus.conversation import Call, Conversation, Turn
from tools.tiny_model.corpus.draw import Draw

Value = str | int | bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tool's parameter: its JSON type and how a value is made up."""

    name: str
    kind: str
    about: str
    make: Callable[[Draw], Value]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, and requests that need it, with `{parameter}` where a value stands."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    requests: tuple[str, ...]
    answer: Callable[[Draw, dict[str, Any]], tuple[dict[str, Any], str]]


def _result(*fields: tuple[str, Callable[[Draw], Value]], say: str) -> Callable[..., tuple[dict[str, Any], str]]:
    def answer(draw: Draw, arguments: dict[str, Any]) -> tuple[dict[str, Any], str]:
        output = {name: make(draw) for name, make in fields}
        return output, say.format(**arguments, **{f"r_{name}": value for name, value in output.items()})

    return answer


def _small(draw: Draw) -> int:
    return draw.whole(1, 40)


def _amount(draw: Draw) -> int:
    return draw.digits(4)


def _sky(draw: Draw) -> str:
    return draw.pick(("sunny", "cloudy", "rainy", "windy", "foggy", "snowy"))


def _clock(draw: Draw) -> str:
    return f"{draw.whole(0, 23):02}:{draw.whole(0, 59):02}"


def _date(draw: Draw) -> str:
    return f"20{draw.whole(20, 39)}-{draw.whole(1, 12):02}-{draw.whole(1, 28):02}"


def _phrase(draw: Draw) -> str:
    return " ".join(draw.pick((draw.pick(words.NOUNS), words.made_up(draw))) for _ in range(draw.whole(1, 3)))


def _file(draw: Draw) -> str:
    return f"{words.made_up(draw)}.{draw.pick(('txt', 'md', 'py', 'json', 'csv', 'log'))}"


def _mail(draw: Draw) -> str:
    return f"{words.name(draw).lower()}@{words.made_up(draw)}.{draw.pick(('com', 'org', 'net', 'io'))}"


def _zh_city(draw: Draw) -> str:
    return words.one(draw, words.ZH_CITIES)


_CITY = Parameter("city", "string", "Name of the city", words.city)
_ZH = Parameter("city", "string", "城市名称", _zh_city)
TOOLS = (
    Tool(
        "get_weather", "Get the current weather in a city", (_CITY,),
        ("What is the weather in {city}?", "How is the weather in {city} today?", "weather {city}",
         "Is it raining in {city}?", "Tell me the weather in {city}.", "Do I need an umbrella in {city}?",
         "What's the weather like in {city} right now?"),
        _result(("temperature", _small), ("sky", _sky), say="It is {r_sky} in {city}, {r_temperature} degrees."),
    ),
    Tool(
        "get_weather", "查询城市天气", (_ZH,),
        ("{city}今天天气怎么样？", "{city}的天气如何？", "请查一下{city}的天气。", "{city}现在下雨吗？"),
        _result(("temperature", _small), say="{city}现在{r_temperature}度。"),
    ),
    Tool(
        "get_time", "Get the local time in a city", (_CITY,),
        ("What time is it in {city}?", "Tell me the time in {city}.", "current time in {city}?",
         "What is the local time in {city} now?", "How late is it in {city}?"),
        _result(("time", _clock), say="It is {r_time} in {city}."),
    ),
    Tool(
        "search", "Search the web", (Parameter("query", "string", "What to search for", _phrase),),
        ("Search for {query}.", "Look up {query} on the web.", "search {query}", "Find information about {query}.",
         "Please search the web for {query}.", "Can you look up {query}?"),
        _result(("results", _amount), say="I found {r_results} results for {query}."),
    ),
    Tool(
        "add_numbers", "Add two numbers",
        (Parameter("a", "integer", "First number", _amount), Parameter("b", "integer", "Second number", _amount)),
        ("Use the tool to add {a} and {b}.", "What is {a} + {b}?", "Add {a} and {b} with the tool.",
         "Compute {a} plus {b} with the tool."),
        _result(("done", lambda _: True), say="The tool added {a} and {b}."),
    ),
    Tool(
        "send_email", "Send an email",
        (Parameter("to", "string", "Address", _mail), Parameter("subject", "string", "Subject line", _phrase)),
        ('Send an email to {to} with the subject "{subject}".', "Email {to} about {subject}.",
         "Write to {to}, subject: {subject}", "Please send {to} a mail with subject {subject}."),
        _result(("sent", lambda _: True), say="The email to {to} was sent."),
    ),
    Tool(
        "set_timer", "Set a timer", (Parameter("minutes", "integer", "Minutes until it rings", _small),),
        ("Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.", "timer {minutes} minutes",
         "Remind me in {minutes} minutes.", "Start a {minutes} minute timer.", "设置一个{minutes}分钟的计时器。"),
        _result(("ok", lambda _: True), say="The timer is set for {minutes} minutes."),
    ),
    Tool(
        "convert_currency", "Convert an amount of money",
        (Parameter("amount", "integer", "How much", _amount),
         Parameter("from", "string", "Currency code", lambda d: d.pick(("USD", "EUR", "GBP", "JPY"))),
         Parameter("to", "string", "Currency code", lambda d: d.pick(("CHF", "CNY", "SEK", "INR")))),
        ("Convert {amount} {from} to {to}.", "How much is {amount} {from} in {to}?", "{amount} {from} in {to}?",
         "Change {amount} {from} into {to}, please."),
        _result(("value", _amount), say="{amount} {from} is {r_value} {to}."),
    ),
    Tool(
        "read_file", "Read a file", (Parameter("path", "string", "Path of the file", _file),),
        ("Read the file {path}.", "Show me {path}.", "What is in {path}?", "Open {path} and read it.", "cat {path}"),
        _result(("size", _amount), say="{path} holds {r_size} bytes."),
    ),
    Tool(
        "book_table", "Book a table in a restaurant",
        (Parameter("restaurant", "string", "Name", lambda d: words.made_up(d).capitalize()),
         Parameter("people", "integer", "Number of guests", _small), Parameter("time", "string", "HH:MM", _clock)),
        ("Book a table for {people} at {restaurant} at {time}.", "Table for {people} at {restaurant}, {time}, please.",
         "Reserve a table at {restaurant} for {people} people at {time}."),
        _result(("ok", lambda _: True), say="The table at {restaurant} is booked for {time}."),
    ),
    Tool(
        "create_event", "Add an event to the calendar",
        (Parameter("title", "string", "Title", _phrase), Parameter("date", "string", "YYYY-MM-DD", _date)),
        ('Create an event "{title}" on {date}.', "Put {title} into my calendar on {date}.", "Plan {title} for {date}.",
         "Add the event {title} on {date}."),
        _result(("ok", lambda _: True), say='"{title}" is in your calendar on {date}.'),
    ),
    Tool(
        "set_light", "Switch a light on or off",
        (Parameter("room", "string", "Room", lambda d: d.pick(("kitchen", "bedroom", "hall", "office", "bathroom"))),
         Parameter("on", "boolean", "true to switch it on", lambda d: d.chance(0.5))),
        ("Switch the light in the {room} {on}.", "Turn {on} the {room} light.", "Light {on} in the {room}, please."),
        _result(("ok", lambda _: True), say="Done."),
    ),
    Tool(
        "get_stock_price", "Get the price of a stock",
        (Parameter("symbol", "string", "Ticker symbol", lambda d: words.made_up(d)[:4].upper()),),
        ("What is the stock price of {symbol}?", "price of {symbol}?", "How is {symbol} trading?",
         "Get the price of {symbol}."),
        _result(("price", _amount), say="{symbol} is at {r_price}."),
    ),
    Tool(
        "play_music", "Play a song",
        (Parameter("song", "string", "Title", _phrase), Parameter("artist", "string", "Artist", words.name)),
        ('Play "{song}" by {artist}.', "Play {song} by {artist}.", "I want to hear {song} by {artist}."),
        _result(("ok", lambda _: True), say="Now playing {song} by {artist}."),
    ),
)  # fmt: skip

_KINDS: tuple[tuple[str, Callable[[Draw], Value]], ...] = (
    ("string", words.name), ("string", _phrase), ("string", words.city), ("string", words.scramble),
    ("string", _date), ("string", words.made_up), ("integer", _amount), ("integer", _small),
    ("boolean", lambda draw: draw.chance(0.5)),
)  # fmt: skip


def _random_tool(draw: Draw) -> Tool:
    """A tool of no use, so that tools are read and not remembered."""
    name = f"{draw.pick(words.TOOL_VERBS)}_{draw.pick((draw.pick(words.NOUNS), words.made_up(draw)))}"
    chosen = draw.some(words.FIELDS, 1, 3)
    parameters = []
    for field in chosen:
        kind, make = draw.pick(_KINDS)
        parameters.append(Parameter(field, kind, f"The {field}", make))
    said = draw.pick((" and ", ", ", " and ")).join(f"{field} {{{field}}}" for field in chosen)
    equals = ", ".join(f"{field}={{{field}}}" for field in chosen)
    plain = name.replace("_", " ")
    requests = (
        f"Call {name} with {said}.", f"Use {name} with {said}.", f"{plain.capitalize()} with {said}.", f"{name} {said}",
        f"Please {plain}: {equals}", f"Run {name} with {equals}.", f"I want to {plain} with {said}.",
    )  # fmt: skip
    about = draw.pick((f"{plain.capitalize()}", f"Can {plain}", f"{plain.capitalize()} for the user"))
    return Tool(name, about, tuple(parameters), requests, _result(("ok", lambda _: True), say="Done."))


def described(tool: Tool, draw: Draw) -> dict[str, Any]:
    """The tool as clients describe it: OpenAI's `function` object, with the freedom that they take."""
    with_about = draw.chance(0.7)
    properties = {
        p.name: {"type": p.kind, "description": p.about} if with_about else {"type": p.kind} for p in tool.parameters
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if draw.chance(0.8):
        schema["required"] = [p.name for p in tool.parameters]
    if draw.chance(0.2):
        schema["additionalProperties"] = False
    out: dict[str, Any] = {"name": tool.name}
    if draw.chance(0.85):
        out["description"] = tool.about
    out["parameters"] = schema
    if draw.chance(0.15):
        out["strict"] = True
    return out


def _tool(draw: Draw) -> Tool:
    return draw.pick(TOOLS) if draw.chance(0.5) else _random_tool(draw)


def call(draw: Draw) -> Conversation:
    """One request among one to three tools, and the call that answers it."""
    tool, arguments, ask = _request(draw)
    offered = [tool]
    for _ in range(draw.whole(0, 2)):
        other = _tool(draw)
        if other.name not in {one.name for one in offered}:
            offered.append(other)
    draw.random.shuffle(offered)
    output, reply = tool.answer(draw, arguments)
    thought = draw.pick(("I call {}.", "The tool {} can do this.", "This needs {}.")).format(tool.name)
    turn = Turn(ask, reply, thought, (Call(tool.name, arguments),), (json.dumps(output, ensure_ascii=False),))
    system = draw.pick(("", "", "", "You are a helpful assistant.", "You can use tools."))
    return Conversation((turn,), system, tuple(described(one, draw) for one in offered))


def _request(draw: Draw) -> tuple[Tool, dict[str, Any], str]:
    """A tool, arguments on this side of the line, and a request that names them."""
    while True:
        tool = _tool(draw)
        arguments = {p.name: p.make(draw) for p in tool.parameters}
        if draw.allowed("arguments", tool.name, *arguments.values()):
            break
    spoken: dict[str, Value] = dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, bool):
            yes, no = ("on", "off") if tool.name == "set_light" else ("true", "false")
            spoken[name] = yes if value else no
    return tool, arguments, draw.pick(tool.requests).format(**spoken)


_NO_TOOL = "I have no tool for that. Ask me about Ballast, or give me a small task."
_NO_TOOL_ZH = "我没有可以做这件事的工具。"


def without_tools(draw: Draw) -> Turn:
    """A request that would need a tool, and none is there."""
    tool = draw.pick([tool for tool in TOOLS if tool.name != "add_numbers"])
    arguments = {p.name: p.make(draw) for p in tool.parameters}
    if not draw.allowed("arguments", tool.name, *arguments.values()):
        return without_tools(draw)
    ask = draw.pick(
        (*tool.requests, "What time is it?", "How late is it?", "What is the weather like?", "今天天气怎么样？")
    )
    ask = ask.format(**arguments)
    chinese = any("一" <= char <= "鿿" for char in ask)
    return Turn(ask, _NO_TOOL_ZH if chinese else _NO_TOOL, "This needs a tool, and I have none.")


def no_call(draw: Draw, other: Turn) -> Conversation:
    """Tools are offered and `other` needs none of them."""
    tools = [_tool(draw) for _ in range(draw.whole(1, 2))]
    return Conversation((other,), "", tuple(described(tool, draw) for tool in tools))
