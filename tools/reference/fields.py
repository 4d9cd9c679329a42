"""docs/reference/request-fields.md: how each field of a request is handled, from the rules that the server uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ballast.server.routes.tokens import DetokenizeRequest, TokenizeRequest
from ballast.wire.anthropic.request import MessagesRequest
from ballast.wire.field_rules import Alias, NoEffect, Refused, Rule, Shape
from ballast.wire.known_fields import shape_of
from ballast.wire.llama_cpp.request import InfillRequest, LlamaRequest
from ballast.wire.ollama.request import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaNameRequest,
    OllamaPullRequest,
)
from ballast.wire.openai.request import ChatCompletionRequest, CompletionRequest
from ballast.wire.parsing import StrictModel
from ballast.wire.responses.request import ResponsesRequest
from tools.pages import paragraph, table

KINDS: Mapping[str, type[StrictModel]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/completion": LlamaRequest,
    "/infill": InfillRequest,
    "/api/chat": OllamaChatRequest,
    "/api/generate": OllamaGenerateRequest,
    "/api/show": OllamaNameRequest,
    "/api/pull": OllamaPullRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}

COMMON_TO = {"/completion": "/v1/completions", "/infill": "/completion", "/api/generate": "/api/chat"}
"""Path → path with the same fields. Only differences are listed again."""
FIRST = "/v1/chat/completions"
"""Paths whose fields are listed in full. Other paths refer to them."""

Describe = Callable[[dict[str, Any]], str]


def request_fields(describe: Describe) -> Iterator[str]:
    """The page. `describe` describes the JSON schema of a value in words."""
    yield "# Request fields: temperature, max_tokens, response_format and all others"
    yield ""
    yield from paragraph(
        "These are the fields of OpenAI's, Anthropic's and Ollama's APIs, and the additions of vLLM, SGLang and "
        "llama.cpp's server. A field is honoured, or it has no effect because the reply would be the same, or it is "
        "refused with a 400 that names it. Null is always accepted, and so are the values that a row lists."
    )
    yield ""
    yield from paragraph(
        "Fields that are not listed are unknown and ignored. The reply's header `X-Ballast-Ignored` names them by "
        "their paths, such as `messages.0.colour` (up to 16 names, and the number of others). The metric "
        "`ballast_ignored_fields_total` counts them, and the log names them at most once per minute. With "
        "`--unknown_fields refuse` such a request is refused instead. The header also names known fields that have no "
        "effect with the server's settings: `priority` without `--client_priority`, and fields that enable thinking "
        "for a template without it. It also names parts of a tool's result that are not text; the model reads a note "
        "instead."
    )
    first: set[tuple[str, ...]] = set()
    for path, kind in KINDS.items():
        yield ""
        yield f"## {path}"
        yield ""
        before = COMMON_TO.get(path)
        if before is not None:
            yield from paragraph(f"All fields of {_link(before)}, and:")
            yield ""
        rows = list(_rows(kind, describe, KINDS.get(before or "")))
        same = [title for title, *rest in rows if (title, *rest) in first and "." not in title]
        if same:
            yield from paragraph(f"These fields are the same as for {_link(FIRST)}: {', '.join(same)}.")
            yield ""
        yield from table(("field", "value", "handling", "remarks"), [row for row in rows if row not in first])
        if path == FIRST:
            first.update(rows)


def _link(path: str) -> str:
    return f"[{path}](#{path.replace('/', '')})"


def _rows(kind: type[StrictModel], describe: Describe, besides: type[StrictModel] | None) -> Iterator[tuple[str, ...]]:
    schema = kind.model_json_schema(ref_template="#/{model}")
    required = schema.get("required", ())
    known = {} if besides is None else besides.model_fields
    rules = {} if besides is None else besides.other_fields
    for name, info in kind.model_fields.items():
        if name in kind.other_fields or (name in known and repr(known[name]) == repr(info)):
            continue
        found = schema["properties"][info.alias or name]
        rule = next((each for each in info.metadata if isinstance(each, NoEffect)), None)
        title = f"`{info.alias or name}`{' (required)' if name in required else ''}"
        described = " ".join((info.description or "").split())
        yield title, describe(found), *((_rule_text(rule)) if rule else ("honoured", described))
        inside = shape_of(kind).known[info.alias or name]
        if inside is not None:
            yield from _inner(f"{info.alias or name}.", inside)
    for name, other in kind.other_fields.items():
        if rules.get(name) == other:
            continue
        yield f"`{name}`", "any", *_rule_text(other)


def _inner(path: str, shape: Shape) -> Iterator[tuple[str, ...]]:
    """The fields of the objects in a field. Honoured fields share one row."""
    known = ", ".join(f"`{name}`" for name in shape.known)
    yield f"`{path}…`", known, "honoured", ""
    for name, rule in shape.rules.items():
        yield f"`{path}{name}`", "any", *_rule_text(rule)
    for name, inside in shape.known.items():
        if inside is not None:
            yield from _inner(f"{path}{name}.", inside)


def _rule_text(rule: Rule) -> tuple[str, str]:
    match rule:
        case Alias(field):
            return "honoured", f"as `{field}`"
        case NoEffect(why):
            return "no effect", why
        case Refused(why, harmless):
            passes = " or ".join(f"`{_shown(each)}`" for each in harmless)
            return "refused", f"{why}{f'; {passes} passes' if passes else ''}"


def _shown(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, repr(value)) if isinstance(value, bool) else repr(value)
