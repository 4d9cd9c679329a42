"""A GBNF grammar constrains text like in llama.cpp."""

from __future__ import annotations

import pytest

from ballast.errors import RequestError
from ballast.grammar import source
from ballast.grammar.compiler import GrammarCompiler
from devkit.models.vocabulary import byte_tokenizer

TOKENIZER = byte_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER)
JSON = r"""
root   ::= object   # any object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::=
  "[" ws (
    value
    ("," ws value)*
  )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


def accepts(grammar: str, text: str) -> bool:
    matcher = COMPILER.compile(source.grammar(grammar, "grammar")).matcher.deep_copy()
    return all(matcher.consume_token(token) for token in TOKENIZER.encode(text)) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (r'root ::= "\x41\u00e9\U0001F469"', ["Aé👩"], ["A", "Ae"]),
        (r'root ::= "\n\r\t\"\\\[\]/"', ['\n\r\t"\\[]/'], ["n"]),
        (r"root ::= [\u00e0-\u00ff]+", ["éà"], ["e", ""]),
        (r"root ::= [\U0001F400-\U0001F4FF\x41-\x43z]+", ["🐀ABz"], ["D", "😀"]),
        (r"root ::= [^\u00e0-\u00ff\n]", ["e", "中"], ["é", "\n"]),
        (r"root ::= [\x00-\x1f]", ["\n"], ["A"]),
        (r"root ::= [-a] [a-] [^-]", ["-ab", "a--"[:2] + "x"], ["b-x", "a--"]),
        (r'root ::= [\]\[\\"/^]+', ['][\\"/^'], ["a"]),
        ("root ::= [é中👩]", ["中", "👩"], ["e"]),
        ("root ::= . .", ["\nx", "é中"], ["x"]),
        ('root ::= ("a"*)?', ["", "aaa"], ["b"]),
        ('root ::= ("a"+)* "b"', ["b", "aab"], ["a"]),
        ('root ::= ("a"?)+', ["", "aa"], ["b"]),
        ('root ::= "a"+?', ["", "aa"], ["b"]),
        ('root ::= ("a"{2,3}){2}', ["aaaa", "aaaaaa"], ["aaa", "aaaaaaa"]),
        ('root ::= (("a"{2}){1,2} "b")?', ["", "aab", "aaaab"], ["ab", "aaab"]),
        ('root ::= ("a" | "b"*)? "c"', ["c", "ac", "bbc"], ["abc"]),
        ('root ::= ([a-c]+ ("," [a-c]+)*)?', ["", "ab,c"], ["a,"]),
        ('root ::= [a-z]{0} "a"{0,0} "x"', ["x"], ["ax"]),
        ('root ::= "a"{ 2 , } | "b"{ 2 }', ["aa", "aaaa", "bb"], ["a", "bbb"]),
        ('root ::= ("a" | ) "b" | ""', ["b", "ab", ""], ["a"]),
        (
            'root ::= Foo foo-bar foo\nFoo ::= "a"\nfoo-bar ::= "b"\nfoo ::= "c" foo_bar\nfoo_bar ::= "d"',
            ["abcd"],
            ["abc"],
        ),
        ('root ::= start\nstart ::= "d"', ["d"], ["s"]),
        ('root ::= x?\r\nx ::= y+ # more\r\ny ::= "a" |\r\n "b"\r\n', ["", "ab"], ["c"]),
        (JSON, ['{"a": [1, 2.5e3, "x\\n"], "b": {"c": null}}', "{}"], ["{a}", "[1]"]),
    ],
    ids=lambda each: each[:60] if isinstance(each, str) else "",
)
def test_a_grammar_accepts_exactly_its_language(grammar: str, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not accepts(grammar, text)] == []
    assert [text for text in wrong if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (r'root ::= "\q"', "Invalid escape sequence"),
        (r'root ::= "\u12"', "Invalid escape sequence"),
        ('root ::= "a\\', "Invalid escape sequence"),
        (r'root ::= "\ud800"', "is not a character"),
        (r'root ::= "\U00110000"', "is not a character"),
        ("root ::= [z-a]", "must not end before its beginning"),
        ("root ::= []", "must not be empty"),
        ('root ::= "a', "Unexpected end"),
        ("root ::= [a", "Unexpected end"),
        ('root ::= ("a"', "Expected '\\)'"),
        ("root ::= missing", "Rule 'missing' not found"),
        ('x ::= "a"', "No 'root' rule"),
    ],
)
def test_an_invalid_grammar_is_rejected_with_the_reason(grammar: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        source.grammar(grammar, "grammar")
    assert refused.value.param == "grammar"
