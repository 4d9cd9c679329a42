"""Sources of tokenizer and template: the model directory first, then the GGUF's metadata."""

import json
from pathlib import Path
from typing import Any

import pytest

from ballast.errors import ModelError, RequestError
from ballast.text.gguf_vocab import build_backend
from ballast.text.loading import Text, load_text
from devkit.models.vocabulary import BOS, EOS, byte_metadata
from devkit.published_tokenizers import V3_DIRECTORY

CHAT = [{"role": "user", "content": "U"}]
NO_TOKENIZER = {"tokenizer.ggml.model": "none"}


def metadata(template: str | None = "gguf {{ bos_token }}") -> dict[str, Any]:
    return byte_metadata() | ({} if template is None else {"tokenizer.chat_template": template})


def write(directory: Path, **files: object) -> Path:
    """Write files by stem: strings as text, other values as JSON."""
    for stem, content in files.items():
        suffix = "jinja" if isinstance(content, str) else "json"
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / f"{stem}.{suffix}").write_text(text, encoding="utf-8")
    return directory


def write_tokenizer(directory: Path, **config: object) -> Path:
    backend = build_backend(byte_metadata(), "bytes.gguf")
    backend.save(str(directory / "tokenizer.json"))
    return write(directory, tokenizer_config={"bos_token": BOS, "eos_token": {"content": EOS}, **config})


def rendered(text: Text) -> str:
    return text.require_template().render(CHAT)


def test_a_gguf_alone_is_enough() -> None:
    text = load_text(None, metadata(), "m.gguf")
    assert text.tokenizer.encode("a") == [2 + ord("a")]
    assert (text.tokenizer.bos_id, text.tokenizer.eos_ids, text.tokenizer.add_bos) == (0, {1}, True)
    assert rendered(text) == f"gguf {BOS}"
    assert text.tokenizer_source == "m.gguf (metadata), because --model_path is not given"
    assert text.template_source == "m.gguf (metadata)"


def test_the_directory_takes_precedence_over_the_gguf(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, add_bos_token=False, chat_template="dir {{ eos_token }}")
    write(tmp_path, generation_config={"temperature": 0.6, "eos_token_id": [1, 258]})
    text = load_text(tmp_path, metadata(), "m.gguf")
    assert text.tokenizer_source == str(tmp_path / "tokenizer.json")
    assert text.template_source == f"{tmp_path}/tokenizer_config.json"
    assert rendered(text) == f"dir {EOS}"
    assert (text.tokenizer.bos_id, text.tokenizer.eos_ids, text.tokenizer.add_bos) == (0, {1, 258}, False)


def test_a_directory_of_a_release_loads_as_it_is() -> None:
    text = load_text(V3_DIRECTORY, NO_TOKENIZER, "v3.gguf")
    assert (text.tokenizer.vocab_size, text.tokenizer.bos_id, text.tokenizer.eos_ids) == (128815, 0, {1, 128805})
    prompt = text.require_template().render(CHAT)
    assert text.tokenizer.encode(prompt, add_bos=True) == [0, 128803, 55, 128804]


def test_a_directory_with_only_a_config_falls_back_with_a_log_line(tmp_path: Path) -> None:
    write(tmp_path, config={"model_type": "deepseek_v3"})
    text = load_text(tmp_path, metadata(), "m.gguf")
    assert text.tokenizer_source == f"m.gguf (metadata), because {tmp_path} has no tokenizer.json"
    assert rendered(text) == f"gguf {BOS}"


def test_a_template_file_takes_precedence_over_the_config(tmp_path: Path) -> None:
    write(tmp_path, chat_template="file", tokenizer_config={"chat_template": "config"})
    text = load_text(tmp_path, metadata(), "m.gguf")
    assert (rendered(text), text.template_source) == ("file", str(tmp_path / "chat_template.jinja"))


def test_the_default_of_several_named_templates_is_used(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    write(tmp_path, tokenizer_config={"chat_template": named})
    assert rendered(load_text(tmp_path, metadata(), "m.gguf")) == "D"


def test_named_templates_without_a_default_leave_it_to_the_gguf(tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config={"chat_template": [{"name": "rag", "template": "R"}]})
    assert rendered(load_text(tmp_path, metadata(), "m.gguf")) == f"gguf {BOS}"


def test_without_any_template_chat_is_refused_with_a_sentence() -> None:
    text = load_text(None, metadata(template=None), "m.gguf")
    assert text.template is None
    with pytest.raises(RequestError, match=r"no chat template.*/v1/completions.*--model_path") as refused:
        text.require_template()
    assert (refused.value.status, refused.value.code) == (400, "no_chat_template")


@pytest.mark.parametrize(
    ("config", "post_processed", "expected"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"add_bos_token": False}, True, False),
        ({"add_bos_token": True}, False, True),
    ],
)
def test_whether_bos_is_added_is_read_from_the_config_then_from_the_tokenizer(
    tmp_path: Path, config: dict[str, object], post_processed: bool, expected: bool
) -> None:
    write_tokenizer(tmp_path, **config)
    if post_processed:
        file = tmp_path / "tokenizer.json"
        source = json.loads(file.read_text(encoding="utf-8"))
        source["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {BOS: {"id": BOS, "ids": [0], "tokens": [BOS]}},
        }
        file.write_text(json.dumps(source), encoding="utf-8")
    tokenizer = load_text(tmp_path, NO_TOKENIZER, "m.gguf").tokenizer
    assert tokenizer.add_bos is expected
    assert tokenizer.encode("a") == [2 + ord("a")]


def test_a_tokenizer_without_its_config_takes_bos_and_eos_from_the_gguf(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    tokenizer = load_text(tmp_path, metadata(), "m.gguf").tokenizer
    assert (tokenizer.bos_id, tokenizer.eos_id) == (0, 1)


def test_end_tokens_of_the_gguf_do_not_mix_with_those_of_the_directory(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    values = metadata() | {"tokenizer.ggml.eos_token_id": 258}
    assert load_text(tmp_path, values, "m.gguf").tokenizer.eos_ids == {1}


@pytest.mark.parametrize(
    ("values", "message"),
    [({}, "holds no tokenizer"), (NO_TOKENIZER, r"tokenizer\.ggml\.model=none")],
)
def test_a_missing_tokenizer_is_rejected_with_a_fix(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=rf"m\.gguf: .*{message}.*not given; pass --model_path"):
        load_text(None, values, "m.gguf")
    with pytest.raises(ModelError, match=r"m\.gguf: .* has no tokenizer\.json; pass --model_path"):
        load_text(tmp_path, values, "m.gguf")


@pytest.mark.parametrize("values", [{}, NO_TOKENIZER, NO_TOKENIZER | {"tokenizer.ggml.eos_token_id": 7}])
def test_a_model_without_a_vocabulary_is_loaded_for_ids_alone(values: dict[str, Any]) -> None:
    text = load_text(None, values, "m.gguf", num_ids=40)
    tokenizer = text.tokenizer
    assert (tokenizer.vocab_size, tokenizer.has_vocabulary, tokenizer.token_bytes(39)) == (40, False, b"")
    assert tokenizer.eos_ids == ({7} if "tokenizer.ggml.eos_token_id" in values else set())
    for refused in (
        lambda: tokenizer.encode("a"),
        lambda: tokenizer.encode_prompt("a"),
        lambda: tokenizer.decode([1]),
        text.require_template,
    ):
        with pytest.raises(RequestError, match="no vocabulary"):
            refused()


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: is not JSON"):
        load_text(tmp_path, metadata(), "m.gguf")
    write(tmp_path, tokenizer_config=[])
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: expected a JSON object, found list"):
        load_text(tmp_path, metadata(), "m.gguf")
    write(tmp_path, tokenizer_config={}, tokenizer={"model": "?"})
    with pytest.raises(ModelError, match=r"tokenizer\.json: model=\?"):
        load_text(tmp_path, metadata(), "m.gguf")


def test_a_bos_token_that_the_vocabulary_lacks_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, bos_token="<s>")
    with pytest.raises(ModelError, match=r"bos_token '<s>' of tokenizer_config\.json is not in the vocabulary"):
        load_text(tmp_path, metadata(), "m.gguf")


def test_an_end_token_that_is_no_id_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    write(tmp_path, generation_config={"eos_token_id": ["</s>"]})
    with pytest.raises(ModelError, match=r"generation_config\.json: eos_token_id\.0=</s>: input should be"):
        load_text(tmp_path, metadata(), "m.gguf")


def test_a_sentencepiece_vocabulary_is_refused(tmp_path: Path) -> None:
    tree = json.loads(build_backend(byte_metadata(), "bytes.gguf").to_str())
    tree["model"]["vocab"] |= {"▁a": 260}
    write(tmp_path, tokenizer=tree)
    with pytest.raises(ModelError, match=r"tokenizer\.json: token 260 '▁a' is not byte-level BPE"):
        load_text(tmp_path, NO_TOKENIZER, "m.gguf")
