"""Grammars of tool calls, in the forms that the readers in `ballast.text.calls` read.

V2.5, V3, R1:  CALLS CALL function SEPARATOR name newline ```json newline arguments newline ``` END_CALL … END_CALLS
V3.1:          CALLS CALL name SEPARATOR arguments END_CALL … END_CALLS
Kimi:          CALLS CALL functions.name:N SEPARATOR arguments END_CALL … END_CALLS
Qwen3:         CALL newline {"name": name, "arguments": arguments} newline END_CALL …
Qwen3-Coder:   CALL newline <function=name> newline <parameter=key> newline value newline </parameter> … END_CALL …
V3.2:          newline newline <TAG function_calls> newline <TAG invoke name="…"> newline … </TAG function_calls>
V4:            the same with tool_calls
GLM:           CALL name KEY key END_KEY VALUE value END_VALUE … END_CALL …
Hunyuan 3:     CALLS newline CALL name SEPARATOR newline KEY key END_KEY newline VALUE value END_VALUE … END_CALLS
gpt-oss:       CHANNEL commentary to=functions.name CONSTRAIN json MESSAGE arguments
MiniMax-M2:    CALL newline <invoke name="…"> newline <parameter name="…">value</parameter> newline … END_CALL
MiMo-V2:       CALL newline <function=name> newline <parameter=key>value</parameter> newline … END_CALL …
Mistral:       CALL name SEPARATOR arguments …
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ballast.errors import RequestError
from ballast.families.family import FINAL_CHANNEL, CallStyle
from ballast.families.marks import Mark
from ballast.grammar.calls.dsml_calls import BEFORE_TAGS, dsml_calls
from ballast.grammar.calls.invoke_calls import invoke_calls
from ballast.grammar.calls.keyed_calls import keyed_calls
from ballast.grammar.calls.tagged_calls import tagged_calls
from ballast.grammar.channels.calls import channel_call, channel_frame
from ballast.grammar.json_rules import JsonRules, common_rules
from ballast.grammar.source import Source, json_schema, lark, quoted
from ballast.text.calls.dsml_calls import BLOCKS
from ballast.text.calls.invoke_calls import FUNCTION, INVOKE
from ballast.text.tokenizer import Tokenizer

_BETWEEN: Mapping[CallStyle, str] = {
    "plain": "call*",
    "fenced": "(NEWLINE call)*",
    "either": "(NEWLINE? call)*",
    "numbered": "call*",
    "json": "(NEWLINE? call)*",
    "keyed": "(NEWLINE? call)*",
    "tagged": "(NEWLINE? call)*",
    "dsml": "(NEWLINE call)*",
    "dsml_tools": "(NEWLINE call)*",
    "invoke": "(NEWLINE? call)*",
    "function": "(NEWLINE? call)*",
    "named": "call*",
    "channels": "",
}


def tool_calls(
    tools: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    form: CallStyle,
    *,
    param: str = "tools",
    only: Collection[str] | None = None,
    parallel: bool = True,
    or_else: str | None = None,
    any_arguments: bool = False,
) -> Source:
    """A grammar of one call, or of several if `parallel`. `tools` are as in OpenAI's requests.

    `only`: names of the tools that may be called; None: all. Arguments follow the tool's parameters, exactly if the
    tool is `strict`; with `any_arguments` those of other tools may be any object. `or_else` is a grammar, such as an
    `embedded_schema`, that the reply may follow instead of a call.

    Raises RequestError when the vocabulary lacks the tokens that frame calls, when a name in `only` is no tool's, and
    for a schema that is too large.
    """
    rules = {mark: _token(text, tokenizer, param) for mark, text in tokenizer.reply.calling.items()}
    functions = [(n, tool["function"]) for n, tool in enumerate(tools)]
    offered = [(n, function) for n, function in functions if only is None or function["name"] in only]
    if missing := set(only or ()) - {function["name"] for _, function in offered}:
        raise RequestError(f"tool_choice: no tool is named {min(missing)!r}", param="tool_choice")
    if or_else is not None and form == "channels":
        or_else = f"{rules[Mark.CHANNEL]} {quoted(FINAL_CHANNEL)} {rules[Mark.MESSAGE]} {or_else}"
    lines = [
        "start: calls" if or_else is None else "start: calls | reply",
        *([] if or_else is None else [f"reply: {or_else}"]),
        *_frame(rules, [f"call_{n}" for n, _ in offered], _BETWEEN[form] if parallel else "", form),
        f"NEWLINE: {quoted(chr(10))}",
        *common_rules(param),
    ]
    if form in BLOCKS:
        return lark("\n".join([*lines, *dsml_calls(offered, rules, param, any_arguments=any_arguments)]), param)
    if form in ("invoke", "function"):
        spelling = INVOKE if form == "invoke" else FUNCTION
        own = invoke_calls(offered, param, any_arguments=any_arguments, spelling=spelling)
        return lark("\n".join([*lines, *own]), param)
    if form == "tagged":
        return lark("\n".join([*lines, *tagged_calls(offered, param, any_arguments=any_arguments)]), param)
    if form == "keyed":
        return lark("\n".join([*lines, *keyed_calls(offered, rules, param, any_arguments=any_arguments)]), param)
    for n, function in offered:
        arguments, schema, strict = "json_object", function.get("parameters"), bool(function.get("strict"))
        if schema and (strict or not any_arguments):
            of_tool = JsonRules(f"t{n}", schema, f"{param}.{n}.function.parameters", strict=strict)
            arguments = of_tool.arguments()
            lines += of_tool.lines
        if form == "channels":
            lines += channel_call(f"call_{n}", function["name"], arguments)
            continue
        alternatives = _alternatives(function["name"], rules.get(Mark.SEPARATOR, ""), arguments, form)
        lines.append(f"call_{n}: {' | '.join(alternatives)}")
    return lark("\n".join(lines), param)


def strict_schemas(tools: Sequence[Mapping[str, Any]], *, param: str = "tools") -> Iterator[Source]:
    """The schema of each strict tool's arguments by itself, to find one that cannot be enforced. Raises RequestError as
    `json_schema` does."""
    for n, function in enumerate(tool["function"] for tool in tools):
        if function.get("strict") and (schema := function.get("parameters")):
            yield json_schema(schema, f"{param}.{n}.function.parameters", strict=True)


def _frame(rules: Mapping[Mark, str], names: Sequence[str], between: str, form: CallStyle) -> list[str]:
    """The rules `calls`, with what stands around all of them, and `call`, with what stands around one of the calls that
    the rules `names` have. `between`: further ones."""
    if form == "channels":
        return channel_frame(names, rules)
    calls = " | ".join(names)
    if form == "invoke":
        inner = f"NEWLINE? call {between} NEWLINE?"
        return [f"calls: {rules[Mark.CALL]} {inner} {rules[Mark.END_CALL]}", f"call: {calls}"]
    if form == "function":
        calls = f"NEWLINE? ({calls}) NEWLINE?"
    if form == "keyed" and Mark.CALLS in rules:
        between = f"{between} NEWLINE?"
        rules = {**rules, Mark.CALLS: f"{rules[Mark.CALLS]} NEWLINE?"}
    if (tag := rules.get(Mark.TAG)) is not None:
        block = f"{BLOCKS[form]}>"
        begin = f"{quoted(BEFORE_TAGS)} {tag} {quoted(block + chr(10))}"
        end = f"NEWLINE {quoted('</')} {tag} {quoted(block)}"
        call = f"{quoted('<')} {tag} ({calls}) {quoted('</')} {tag} {quoted('invoke>')}"
        return [f"calls: {begin} call {between} {end}", f"call: {call}"]
    return [
        f"calls: {rules.get(Mark.CALLS, '')} call {between} {rules.get(Mark.END_CALLS, '')}",
        f"call: {rules[Mark.CALL]} ({calls}) {rules.get(Mark.END_CALL, '')}",
    ]


def _alternatives(name: str, separator: str, arguments: str, form: CallStyle) -> Iterator[str]:
    """The ways to write a call between its marks."""
    if form == "json":
        head = quoted(f'{{"name": {quoted(name)}, "arguments": ')
        yield f"NEWLINE? {head} {arguments} {quoted('}')} NEWLINE?"
        return
    if form == "numbered":
        yield f"{quoted(f'functions.{name}:')} /[0-9]{{1,4}}/ {separator} {arguments}"
        return
    if form not in ("plain", "named"):
        head = quoted(f"{name}\n```json\n")
        yield f"{quoted('function')} {separator} {head} {arguments} {quoted(chr(10) + '```')}"
    if form != "fenced":
        yield f"{quoted(name)} {separator} {arguments}"


def _token(spelling: str, tokenizer: Tokenizer, param: str) -> str:
    token_id = tokenizer.id_of(spelling)
    if token_id is None:
        raise RequestError(
            f"{param}: this model's vocabulary has no {spelling}, so calls cannot be forced", param=param
        )
    return f"<[{token_id}]>"
