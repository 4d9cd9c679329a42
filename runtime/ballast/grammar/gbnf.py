"""GBNF as llama.cpp reads it, as Lark.

llguidance's own converter reads the structure. Characters, classes, repeated groups and names are read here, since it
refuses or changes valid ones: `\\u` and `\\U` escapes, `("a"*)?`, rules whose names differ only in case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson
from llguidance.gbnf_to_lark import (
    ASTNode,
    GbnfToLarkError,
    GrammarParser,
    LiteralNode,
    Position,
    RegexNode,
    RepetitionNode,
    RuleNode,
    RuleRefNode,
    resolve,
)

_ESCAPE = re.compile(r'\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([nrt"\\\[\]]))')
_KNOWN = r"\xHH, \uHHHH, \UHHHHHHHH, \n, \r, \t, \", \\, \[, \]"
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}
_ANY = "(?s:.)"
_SURROGATES = range(0xD800, 0xE000)


def is_lark(text: str) -> bool:
    """Whether a grammar is in Lark already."""
    return re.search(r"(?m)^\s*(%llguidance\b|start\s*:(?!:=))", text) is not None


def lark_of(text: str) -> str:
    """The grammar in Lark. Raises an exception of any kind, with the reason, for one that cannot be read."""
    rules = _Parser().parse(text)
    names = {name: "root" if name == "root" else f"rule{n}" for n, name in enumerate(rules)}
    for rule in rules.values():
        for node in _below(rule):
            if isinstance(node, RuleRefNode):
                node.name = names.get(node.name, node.name)
            elif isinstance(node, RegexNode) and node.rx == ".":
                node.rx = _ANY
        rule.name, rule.comment = names[rule.name], ""
    named = {rule.name: rule for rule in rules.values()}
    resolve(named)
    return "\n".join(["%llguidance {}", *map(str, named.values())])


def _below(node: ASTNode) -> Iterator[ASTNode]:
    for child in node.children():
        yield child
        yield from _below(child)


class _Repetition(RepetitionNode):
    def is_atomic(self) -> bool:
        """Whether it needs no parentheses when it is repeated itself."""
        return False

    def __str__(self) -> str:
        return '""' if self.max_times == 0 else super().__str__()


class _Text(LiteralNode):
    def __str__(self) -> str:
        return orjson.dumps(self.value).decode()


class _Parser(GrammarParser):
    def parse(self, text: str) -> dict[str, RuleNode]:
        """The rules by name."""
        return super().parse(text)

    def _parse_literal(self, pos: Position) -> tuple[ASTNode, Position]:
        text, pos = "", pos.advance()
        while pos.current() != '"':
            char, pos = _char(pos)
            text += char
        return _Text(text), pos.advance()

    def _parse_char_class(self, pos: Position) -> tuple[ASTNode, Position]:
        begin = pos.advance()
        pos = begin.advance() if begin.current() == "^" else begin
        ranges = ""
        while pos.current() != "]":
            first, pos = _char(pos)
            ranges += _in_class(first)
            if pos.current() == "-" and pos.peek(2) != "-]":
                dash = pos
                last, pos = _char(dash.advance())
                if last < first:
                    raise GbnfToLarkError(dash, "A range of characters must not end before its beginning")
                ranges += "-" + _in_class(last)
        if not ranges:
            raise GbnfToLarkError(begin, "A class of characters must not be empty")
        return RegexNode(f"[{'^' if begin.current() == '^' else ''}{ranges}]"), pos.advance()

    def _parse_repetition(self, pos: Position, nodes: list[ASTNode]) -> Position:
        while (after := super()._parse_repetition(pos, nodes)).pos != pos.pos:
            pos = self._skip_space(after, allow_newlines=False)
            last = nodes[-1]
            if isinstance(last, RepetitionNode):
                nodes[-1] = _Repetition(last.node, last.min_times, last.max_times)
        return pos


def _char(pos: Position) -> tuple[str, Position]:
    """The next character of a literal or a class, and the position after it."""
    if pos.current() != "\\":
        if not pos.current():
            raise GbnfToLarkError(pos, "Unexpected end of input")
        return pos.current(), pos.advance()
    found = _ESCAPE.match(pos.text, pos.pos)
    if found is None:
        raise GbnfToLarkError(pos, f"Invalid escape sequence {pos.peek(2)}; known are {_KNOWN}")
    digits = found[1] or found[2] or found[3]
    if digits is None:
        return _CONTROLS.get(found[4], found[4]), pos.advance(2)
    code = int(digits, 16)
    if code > 0x10FFFF or code in _SURROGATES:
        raise GbnfToLarkError(pos, f"{found[0]} is not a character")
    return chr(code), pos.advance(len(found[0]))


def _in_class(char: str) -> str:
    return f"\\x{{{ord(char):x}}}"
