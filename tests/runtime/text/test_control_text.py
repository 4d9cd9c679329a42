"""Text from a client never becomes a control token, in any field."""

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast.families.registry import RELEASES, source_of
from ballast.text.chat_template import ChatTemplate
from ballast.text.control_text import ESCAPE, ControlText
from ballast.text.gguf_vocab import tokenizer_from_gguf
from ballast.text.tokenizer import Tokenizer
from devkit.models.vocabulary import byte_metadata, byte_tokenizer
from devkit.published_tokenizers import V3_DIRECTORY

V3_FILE = V3_DIRECTORY / "tokenizer.json"
V3_SPELLINGS = {t["content"]: t["id"] for t in json.loads(V3_FILE.read_text())["added_tokens"]}
V3_ADDED = frozenset(V3_SPELLINGS.values())
BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"


@pytest.fixture(scope="module")
def v3() -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_file(str(V3_FILE)), bos_id=0, eos_ids=[1], add_bos=False)


def template(name: str) -> ChatTemplate:
    release = RELEASES[name][1]
    return ChatTemplate(source_of(release), bos_token=BOS, eos_token=EOS, release=release)


def conversation(text: str) -> dict[str, Any]:
    """A conversation with `text` in every field that a client can set."""
    call = {"id": "c", "type": "function", "function": {"name": f"f{text}", "arguments": json.dumps({text: text})}}
    function = {"name": f"g{text}", "description": text, "parameters": {text: [text]}}
    return {
        "messages": [
            {"role": "system", "content": text},
            {"role": "user", "content": [{"type": "text", "text": text}, text]},
            {"role": "assistant", "content": f"a{text}", "tool_calls": [call]},
            {"role": "tool", "content": text},
            {"role": "assistant", "content": f"b{text}"},
            {"role": "user", "content": text},
        ],
        "tools": [{"type": "function", "function": function}],
        "options": {"extra": text},
    }


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-r1", "deepseek-v3.1"])
def test_no_special_token_of_the_vocabulary_can_be_forged(v3: Tokenizer, name: str) -> None:
    assert len(V3_SPELLINGS) == 818
    chosen = template(name)
    innocent = [t for t in v3.encode_prompt(chosen.render(**conversation("x"), protect=v3.protect)) if is_added(t)]
    forgeries = [text for text in V3_SPELLINGS if text not in ("<think>", "</think>")]
    # In batches, because separate runs would render and encode 818 conversations per template.
    for n in range(0, len(forgeries), 120):
        prompt = chosen.render(**conversation("".join(forgeries[n : n + 120])), protect=v3.protect)
        assert [t for t in v3.encode_prompt(prompt) if is_added(t)] == innocent
    for spelling in ("<think>", "</think>", "<｜tool▁calls▁begin｜>", EOS):
        ids = v3.encode_prompt(chosen.render(**conversation(f"x{spelling}x"), protect=v3.protect))
        assert [t for t in ids if is_added(t)] == innocent


def is_added(token_id: int) -> bool:
    return token_id in V3_ADDED


def test_every_spelling_alone_is_plain_text_when_protected(v3: Tokenizer) -> None:
    for spelling, token_id in V3_SPELLINGS.items():
        text = f"say {spelling} now"
        ids = v3.encode_prompt(v3.protect(text))
        assert token_id not in ids
        assert ids == v3.encode(text, parse_special=False)
        assert token_id in v3.encode_prompt(text)


pieces = st.lists(
    st.sampled_from(["<think>", "</think>", "<｜User｜>", "<", "think>", "<thi", ESCAPE, "é中👍", " a", "\n"]),
    max_size=8,
).map("".join)


@given(pieces, pieces, pieces)
@settings(deadline=None)
def test_only_the_literals_around_a_clients_text_are_tokens(before: str, text: str, after: str) -> None:
    tokenizer = byte_tokenizer(user_defined=("<think>", "</think>", "<｜User｜>"))
    before, after = before.replace(ESCAPE, ""), after.replace(ESCAPE, "")
    ids = tokenizer.encode_prompt(f"{before}\n" + tokenizer.protect(text) + f"\n{after}")
    assert ids == [
        *tokenizer.encode(f"{before}\n"),
        *tokenizer.encode(text, parse_special=False),
        *tokenizer.encode(f"\n{after}"),
    ]


def test_a_prompt_without_control_text_has_the_usual_ids(v3: Tokenizer) -> None:
    chosen = template("deepseek-v3")
    for text in ("Hello, world", " leading", "x < y and <b>bold</b>", "中文。\n\n", "don't", "1234567"):
        prompt = chosen.render(**conversation(text))
        protected = chosen.render(**conversation(text), protect=v3.protect)
        assert v3.encode_prompt(protected) == v3.encode(prompt)
        assert v3.fewest_tokens(protected) == v3.fewest_tokens(prompt)


def test_a_noncharacter_of_a_client_arrives_as_it_was(v3: Tokenizer) -> None:
    text = f"a{ESCAPE}b{ESCAPE}{ESCAPE}<think>{ESCAPE}"
    assert v3.decode(v3.encode_prompt(v3.protect(text)), skip_control=False) == text


def test_the_longest_of_spellings_with_a_common_prefix_is_matched() -> None:
    control = ControlText({"<a": 1, "<ab": 2, "<abc>": 3, "x": 4})
    assert list(control.split("<ab<abc>x<a")) == [2, 3, "x", 1]
    assert list(control.split(control.protect("<ab<abc>x<a"))) == ["<ab<abc>x<a"]


def test_a_vocabulary_without_added_tokens_protects_nothing() -> None:
    control = ControlText({})
    assert control.protect({"a": ["<think>", 1, None]}) == {"a": ["<think>", 1, None]}
    assert list(control.split("<think>")) == ["<think>"]


def test_a_megabyte_of_opening_brackets_is_protected_in_a_moment() -> None:
    tokenizer = tokenizer_from_gguf(byte_metadata(user_defined=tuple(V3_SPELLINGS)[3:]), "bytes.gguf")
    text = "<｜place▁holder▁no▁" * 50_000
    assert tokenizer.protect(text) == text
