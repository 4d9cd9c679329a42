"""docs/reference/request-fields.md: what happens to each field of a request, from the rules that the server goes by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tools.pages import paragraph, table

from ballast.server.routes.tokens import DetokenizeRequest, TokenizeRequest
from ballast.server.wire.anthropic.request import MessagesRequest
from ballast.server.wire.field_rules import Alias, NoEffect, Refused, Rule, Shape
from ballast.server.wire.known_fields import shape_of
from ballast.server.wire.llama_cpp.request import InfillRequest, LlamaRequest
from ballast.server.wire.ollama.request import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaNameRequest,
    OllamaPullRequest,
)
from ballast.server.wire.openai.request import ChatCompletionRequest, CompletionRequest
from ballast.server.wire.parsing import StrictModel
from ballast.server.wire.responses.request import ResponsesRequest

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
"""Path → that whose fields it has as well; only what differs is listed again."""

Describe = Callable[[dict[str, Any]], str]


def request_fields(describe: Describe) -> Iterator[str]:
    """The page. `describe` says the JSON schema of a value in words."""
    yield "# Fields of requests"
    yield ""
    yield from paragraph(
        "The fields of OpenAI's, Anthropic's and Ollama's APIs, and what vLLM, SGLang and llama.cpp's server add. A "
        "field is honoured; or has no effect, since the reply would be the same; or is refused with a 400 that names "
        "it, since the reply would be another one and this server cannot make it. Null always passes, and so do the "
        "values that a row names."
    )
    yield ""
    yield from paragraph(
        "A field that is not listed is not known. It is ignored, and the reply says so: `X-Ballast-Ignored` names it "
        "by its path, such as `messages.0.colour` (16 names, and how many more there are). The metric "
        "`ballast_ignored_fields_total` counts them, and the log names them, once a minute at most. With "
        "`--unknown_fields refuse` such a request is refused instead. A field that is known, but has no effect on a "
        "server that is set up as this one is, is named in the header as well: `priority` without `--client_priority`, "
        "and what asks a model to think whose template cannot. So is a part of a tool's result that is no text: the "
        "model reads a note in its place."
    )
    for path, kind in KINDS.items():
        yield ""
        yield f"## {path}"
        yield ""
        before = COMMON_TO.get(path)
        if before is not None:
            yield from paragraph(f"As [{before}](#{before.replace('/', '')}), and:")
            yield ""
        yield from table(("field", "value", "what happens", "more"), _rows(kind, describe, KINDS.get(before or "")))


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
        said = " ".join((info.description or "").split())
        yield title, describe(found), *((_said(rule)) if rule else ("honoured", said))
        inside = shape_of(kind).known[info.alias or name]
        if inside is not None:
            yield from _inner(f"{info.alias or name}.", inside)
    for name, other in kind.other_fields.items():
        if rules.get(name) == other:
            continue
        yield f"`{name}`", "any", *_said(other)


def _inner(path: str, shape: Shape) -> Iterator[tuple[str, ...]]:
    """What the objects in a field hold: the honoured ones in one row."""
    known = ", ".join(f"`{name}`" for name in shape.known)
    yield f"`{path}…`", known, "honoured", ""
    for name, rule in shape.rules.items():
        yield f"`{path}{name}`", "any", *_said(rule)
    for name, inside in shape.known.items():
        if inside is not None:
            yield from _inner(f"{path}{name}.", inside)


def _said(rule: Rule) -> tuple[str, str]:
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
