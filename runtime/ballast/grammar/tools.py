"""Grammars of tool calls in the DeepSeek family's two forms; `ballast.text.tool_calls` reads what they allow.

V2.5, V3, R1:  CALLS CALL function SEPARATOR name newline ```json newline arguments newline ``` END_CALL … END_CALLS
V3.1:          CALLS CALL name SEPARATOR arguments END_CALL … END_CALLS
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ballast.errors import RequestError
from ballast.grammar.source import Source, embedded_schema, lark, quoted
from ballast.text.marks import CALLING, Mark
from ballast.text.tokenizer import Tokenizer

CallForm = Literal["fenced", "plain"]
"""The older form and V3.1's."""


def tool_calls(
    tools: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    form: CallForm,
    *,
    param: str = "tools",
    only: str | None = None,
    parallel: bool = True,
    or_else: str | None = None,
) -> Source:
    """One call or, in `parallel`, several, of any of the `tools` (as in OpenAI's requests) or `only` of the one so
    named; arguments follow the tool's parameters, to the letter where it is `strict`. A reply may follow `or_else`
    instead, such as an `embedded_schema`.

    Raises RequestError when the vocabulary lacks the tokens that frame calls, when no tool has the name, or for a
    schema that is too large.
    """
    rules = {mark: _token(mark, tokenizer, param) for mark in CALLING}
    functions = [(n, tool["function"]) for n, tool in enumerate(tools)]
    offered = [(n, function) for n, function in functions if only in (None, function["name"])]
    if not offered:
        raise RequestError(f"tool_choice: no tool is named {only!r}", param="tool_choice")
    calls = " | ".join(f"call_{n}" for n, _ in offered)
    between = f"({quoted(chr(10))} call)*" if form == "fenced" else "call*"
    lines = [
        "start: calls" if or_else is None else "start: calls | reply",
        *([] if or_else is None else [f"reply: {or_else}"]),
        f"calls: {rules[Mark.CALLS]} call {between if parallel else ''} {rules[Mark.END_CALLS]}",
        f"call: {rules[Mark.CALL]} ({calls}) {rules[Mark.END_CALL]}",
    ]
    for n, function in offered:
        schema = function.get("parameters") or {"type": "object"}
        strict = bool(function.get("strict"))
        lines.append(f"arguments_{n}: {embedded_schema(schema, f'{param}.{n}.function.parameters', strict=strict)}")
        separator, name = rules[Mark.SEPARATOR], function["name"]
        if form == "fenced":
            lines.append(
                f"call_{n}: {quoted('function')} {separator} {quoted(name + chr(10) + '```json' + chr(10))} "
                f"arguments_{n} {quoted(chr(10) + '```')}"
            )
        else:
            lines.append(f"call_{n}: {quoted(name)} {separator} arguments_{n}")
    return lark("\n".join(lines), param)


def _token(mark: Mark, tokenizer: Tokenizer, param: str) -> str:
    token_id = tokenizer.id_of(mark.spelling)
    if token_id is None:
        raise RequestError(
            f"{param}: this model's vocabulary has no {mark.spelling}, so calls cannot be forced", param=param
        )
    return f"<[{token_id}]>"
