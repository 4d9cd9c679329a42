"""Texts of Laguna: the pieces of its tokenizer, the templates of its files, and the ends of its replies."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Regex, pre_tokenizers

from ballast.families.marks import Mark
from ballast.families.registry import FAMILIES, RELEASES
from ballast.text.gguf_vocab import SPLITS
from ballast.text.loading import load_text
from ballast.text.marks import Start, marks_of, start_of
from ballast.tiny import write_tiny_model
from ballast.weights.gguf import open_gguf
from devkit.models.call_forms import FORMS, tool
from devkit.models.vocabulary import byte_metadata

USER = [{"role": "user", "content": "U"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def test_texts_are_cut_as_by_the_published_tokenizer() -> None:
    """Its first step merges each run of line breaks with the text that follows; the second one is Qwen's."""
    steps = (
        pre_tokenizers.Split(Regex(r"(?:\r?\n)+(?!\r?\n)"), "merged_with_next"),
        pre_tokenizers.Split(Regex(SPLITS["qwen2"][0]), "isolated"),
    )
    ours = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(each), "isolated") for each in SPLITS["laguna"]])
    theirs = pre_tokenizers.Sequence(list(steps))
    rng = random.Random(3)
    pieces = ("a", "Bc", " ", "  ", "\t", "\n", "\r\n", "\r", ":", ");", "12", "'ll", "é", "日本", "🚀", "\u00a0")
    for _ in range(3000):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 12)))
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text), repr(text)
    long = "x\r" * 100_000 + "\n" * 100_000
    assert ours.pre_tokenize_str(long) == theirs.pre_tokenize_str(long)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("f(x):\n\n  y", ["f", "(x", "):", "\n\n", " ", " y"]),  # unlike Qwen, which keeps ):\n\n together
        ("a\r\n12", ["a", "\r\n", "1", "2"]),
    ],
)
def test_lines_end_before_their_breaks(text: str, pieces: list[str]) -> None:
    ours = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(each), "isolated") for each in SPLITS["laguna"]])
    assert [piece for piece, _ in ours.pre_tokenize_str(text)] == pieces


@pytest.mark.parametrize("arch", ["laguna", "lagunam1"])
def test_a_file_has_the_form_and_template_of_the_family(tmp_path: Path, arch: str) -> None:
    model = write_tiny_model(tmp_path, arch=arch)
    text = load_text(None, open_gguf(model.gguf).metadata, "m.gguf")
    template = text.require_template()
    assert text.tokenizer.reply is FAMILIES["laguna"].reply
    assert (template.release, template.is_guarded) == (RELEASES["laguna-s-2.1"][1], False)
    ends = {text.tokenizer.id_of(each) for each in ("〈|EOS|〉", "</assistant>")}
    assert text.tokenizer.eos_ids == ends
    prompt = text.tokenizer.encode_prompt(template.render(USER, protect=text.tokenizer.protect))
    assert prompt.count(text.tokenizer.id_of("〈|EOS|〉")) == 1
    assert prompt[-2:] == [text.tokenizer.id_of("<assistant>"), text.tokenizer.id_of("<think>")]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("laguna-xs.2", {}, Start.CONTENT),
        ("laguna-xs-2.1", {"enable_thinking": True}, Start.REASONING),
        ("laguna-s-2.1", {}, Start.REASONING),
        ("laguna-s-2.1", {"enable_thinking": False}, Start.CONTENT),
    ],
)
def test_the_switch_decides_where_replies_begin(name: str, options: dict[str, bool], expected: Start) -> None:
    form = FAMILIES["laguna"]
    tokens = dict.fromkeys((*form.vocabulary, *form.reply.spellings.values(), "<assistant>"))
    text = load_text(None, byte_metadata("laguna", user_defined=tuple(tokens)), "m.gguf", name)
    template = text.require_template()
    assert template.has_thinking_switch
    prompt = template.render(USER, options=options, protect=text.tokenizer.protect)
    marks = marks_of(text.tokenizer, form.reply.thinking)
    assert (
        start_of(reversed(text.tokenizer.encode_prompt(prompt)), marks, text.tokenizer.eos_ids, thinks=False)
        is expected
    )


@pytest.mark.parametrize("gap", ["", "\n"])
def test_calls_may_have_the_line_breaks_of_the_templates_of_xs(gap: str) -> None:
    tools = tool({"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}})
    pairs = [
        f"{Mark.KEY}{key}{Mark.END_KEY}{gap}{Mark.VALUE}{value}{Mark.END_VALUE}{gap}"
        for key, value in (("a", " x\n"), ("n", "3"))
    ]
    text = f"{Mark.CALL}f{gap}{''.join(pairs)}{Mark.END_CALL}"
    assert FORMS["Laguna"].refused_at(tools, f"{text}{gap}{text}") is None
    for pieces in ([text], list(text)):
        (call,) = FORMS["Laguna"].read(tools, pieces).calls
        assert (call.name, call.arguments) == ("f", '{"a": " x\\n", "n": 3}')


def test_only_xs_2_and_s_introduce_themselves(tmp_path: Path) -> None:
    metadata = open_gguf(write_tiny_model(tmp_path, arch="laguna").gguf).metadata
    for name, introduces in (("laguna-xs.2", True), ("laguna-xs-2.1", False), ("laguna-s-2.1", True)):
        template = load_text(None, metadata, "m.gguf", name).require_template()
        assert ("made by Poolside" in template.render(USER)) == introduces
        with_system = template.render([{"role": "system", "content": "S"}, *USER], tools=TOOLS)
        assert "made by Poolside" not in with_system
        assert "S\n\n### Tools" in with_system


def test_the_published_form_of_a_template_is_served_if_it_is_another(tmp_path: Path) -> None:
    """Published templates mark the assistant's turns for training."""
    published = "{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content }}</user>{% else %}{% generation %}"
    source = published + "<assistant>{{ m.content }}</assistant>{% endgeneration %}{% endif %}{% endfor %}"
    metadata = open_gguf(write_tiny_model(tmp_path, arch="laguna").gguf).metadata
    template = load_text(None, metadata | {"tokenizer.chat_template": source}, "m.gguf").require_template()
    assert template.release is None
    chat = [*USER, {"role": "assistant", "content": "A"}]
    assert template.render(chat, add_generation_prompt=False) == "<user>U</user><assistant>A</assistant>"
