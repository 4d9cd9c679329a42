"""A tokenizer.json is checked field by field, tested in a guarded process, and used only if a slow encoding cannot do
harm."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from ballast.errors import CapacityError, ModelError, RequestError
from ballast.guarded import Limits
from ballast.text.foreign import tokenizer as foreign
from ballast.text.foreign.tokenizer import ForeignEncoder, load_tokenizer_json
from ballast.text.foreign.tokenizer_json import read_tokenizer_json
from ballast.text.gguf_vocab import SPLITS, build_backend
from ballast.text.loading import load_text
from ballast.text.tokenizer import LocalEncoder, Tokenizer
from ballast.tiny import BUILT_IN
from devkit.models.vocabulary import BOS, byte_metadata
from devkit.published_tokenizers import V2_DIRECTORY, V3_DIRECTORY
from devkit.texts import mixed_texts

FILE = json.loads(build_backend(byte_metadata(merges=((b"a", b"b"),)), "bytes.gguf").to_str())
SLOW = "a*a*[bc]"
"""Needs cubic time in the text's length, without exceeding the library's own limit in any search."""
PLACE = "pre_tokenizer.pretokenizers.0.pattern"

PADDING = {
    "strategy": "BatchLongest",
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "x",
}
TRUNCATION = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 10**9}
ADDED = {
    "id": 261,
    "content": "<x>",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}


def template(special_ids: int, times: int) -> dict[str, Any]:
    """A post-processor that inserts a token of `ids` ids before a text, `times` times."""
    text_a = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "S", "type_id": 0}}] * times + [text_a],
        "pair": [text_a, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"S": {"id": "S", "ids": [0] * special_ids, "tokens": ["x"] * special_ids}},
    }


def changed(path: str, value: Any) -> dict[str, Any]:
    """The file with another value at a path such as `model.vocab.x`; an index one past a list's end appends."""
    tree = copy.deepcopy(FILE)
    *above, last = path.split(".")
    at: Any = tree
    for key in above:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if isinstance(at, list):
        at[int(last) :] = [value, *at[int(last) + 1 :]]
    else:
        at[last] = value
    return tree


def write(folder: Path, tree: Any) -> Path:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(tree), encoding="utf-8")
    return file


def load(folder: Path, tree: Any) -> Tokenizer:
    write(folder, tree)
    return load_text(folder, {}, "m.gguf").tokenizer


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "LIMITS", Limits(cpu_s=0.5, memory_bytes=512 << 20))


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("padding", PADDING | {"strategy": {"Fixed": 10**9}}, r"padding\.strategy=.*expected .* at most 16777216"),
        ("padding", PADDING | {"strategy": {"Fixed": -1}}, r"padding\.strategy=.*expected "),
        ("padding", [], "padding="),
        ("model.vocab.zz", 2**32 - 1, r"model\.vocab\.zz=4294967295: .* 2097151"),
        ("model.vocab.zz", 10**400, r"model\.vocab\.zz="),
        ("model.vocab.zz", -1, r"model\.vocab\.zz=-1"),
        ("model.vocab.zz", 1.0, r"model\.vocab\.zz=1\.0"),
        ("model.vocab.zz", 5, r"model=.*the vocabulary has an id twice"),
        ("model.vocab." + "z" * 100_000, -1, r"model\.vocab\.z{100,200}…=-1"),
        ("model.vocab", ["a"], r"model\.vocab="),
        ("model.merges", [["a", "b", "c"]], r"model\.merges.*=\['a', 'b', 'c'\]"),
        ("model.merges", "ab", r"model\.merges.*=ab"),
        ("model.merges", ["ab"], "cannot be loaded: Merges text file invalid"),
        ("model.merges", [["", ""]], "cannot be loaded: Token `` out of vocabulary"),
        ("model.unk_token", "nope", "unk_token 'nope' is not in the vocabulary"),
        ("model.continuing_subword_prefix", "####", r"model\.continuing_subword_prefix=####"),
        ("model.end_of_word_suffix", "</w>", r"model\.end_of_word_suffix=</w>"),
        ("model.type", "Unigram", r"model\.type=Unigram: input should be 'BPE'"),
        ("model", "?", r"model=\?"),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "normalizer=.*'Precompiled'"),
        ("normalizer", {"type": "Prepend", "prepend": "x" * 10**6}, r"normalizer\.Prepend\.prepend="),
        (
            "normalizer",
            {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 99}]},
            r"normalizer\.Sequence\.normalizers\.0\.Replace\.content=bbb",
        ),
        ("normalizer", {"type": "Replace", "pattern": {"String": ""}, "content": "b"}, r"pattern\.String="),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 99}, "normalizer=.*more than 64 parts"),
        ("pre_tokenizer", {"type": "FixedLength", "length": 0}, "pre_tokenizer=.*'FixedLength'"),
        ("pre_tokenizer", {"type": "Digits"}, "pre_tokenizer has no part ByteLevel"),
        ("pre_tokenizer.pretokenizers.0.behavior", "Removed", r"pre_tokenizer\..*\.behavior=Removed"),
        (PLACE, {"Regex": "(" * 20_000}, r"pre_tokenizer\..*\.Regex=\({80}…"),
        (PLACE, {"Regex": "(((("}, "cannot be loaded: Oniguruma error: end pattern with unmatched parenthesis"),
        (PLACE, {}, "expected one of Regex and String"),
        ("post_processor", template(100_000, 4000), "post_processor cannot be loaded: "),
        ("post_processor", template(1, 1) | {"special_tokens": {}}, "post_processor cannot be loaded: no entry found"),
        ("added_tokens.4", ADDED | {"id": 2**32 - 1}, r"added_tokens\.4\.id=4294967295"),
        ("added_tokens.4", ADDED | {"id": 9999}, r"added_tokens\.4\.id=9999: by the tokens before it, it would be 261"),
        ("added_tokens.4", ADDED | {"content": ""}, r"added_tokens\.4\.content="),
        ("added_tokens.4", ADDED | {"content": "x" * 5000}, "added token 261, 'x+…, has 5000 characters; .* 256"),
        ("added_tokens", [ADDED] * 20_000, "added_tokens=.*16384 items"),
        ("version", "9", "version=9"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_harmful_file_is_rejected_with_its_field(tmp_path: Path, path: str, value: Any, message: str) -> None:
    with pytest.raises(ModelError, match=rf"tokenizer\.json: .*{message}") as refused:
        load(tmp_path, changed(path, value))
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("content", ["", "5", "[]", "{", "[" * 100_000, '{"model": {}, "model": 5}', "\ud800"])
def test_an_invalid_tokenizer_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(ModelError, match=r"tokenizer\.json: "):
        load_text(tmp_path, {}, "m.gguf")


@pytest.mark.parametrize("byte", [0x09, ord("a"), 0x80, 0xF4])
def test_a_vocabulary_that_would_lose_text_is_refused(tmp_path: Path, byte: int) -> None:
    by_id = {token_id: text for text, token_id in FILE["model"]["vocab"].items()}
    vocab = {by_id[token_id]: token_id for token_id in by_id if token_id != 2 + byte}
    tree = FILE | {"model": FILE["model"] | {"vocab": vocab, "merges": []}}
    with pytest.raises(ModelError, match=f"no token for the byte 0x{byte:02x}"):
        load(tmp_path, tree)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("padding", PADDING | {"strategy": {"Fixed": 64}}),
        ("padding", PADDING | {"pad_to_multiple_of": 0}),
        ("truncation", TRUNCATION),
        ("truncation", 5),
        ("decoder", {"type": "Strip", "content": "a", "start": 10**18, "stop": 10**18}),
        ("model.dropout", 1.0),
        ("post_processor", {"type": "BertProcessing", "sep": ["x", 2**32 - 1], "cls": ["y", 2**32 - 1]}),
        ("model.ignore_merges", True),
        ("something", {"else": 5}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_fields_unused_by_serving_change_nothing(tmp_path: Path, path: str, value: Any) -> None:
    usual = load(tmp_path, FILE).encode("cab, twelve bytes")
    assert load(tmp_path, changed(path, value)).encode("cab, twelve bytes") == usual


@pytest.mark.parametrize(("ids", "adds"), [(1, True), (0, False)])
def test_the_post_processor_determines_whether_bos_is_added(tmp_path: Path, ids: int, adds: bool) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS}))
    assert load(tmp_path, changed("post_processor", template(ids, 1))).add_bos is adds


def test_normalizers_are_applied(tmp_path: Path) -> None:
    parts = [{"type": "Lowercase"}, {"type": "Replace", "pattern": {"String": "x"}, "content": "yz"}]
    tokenizer = load(tmp_path, changed("normalizer", {"type": "Sequence", "normalizers": parts}))
    assert tokenizer.decode(tokenizer.encode("AXE")) == "ayze"


@pytest.mark.parametrize(
    "directory",
    [
        V2_DIRECTORY,
        V3_DIRECTORY,
        BUILT_IN.config_dir,
    ],
    ids=["v2", "v3", "built-in"],
)
def test_published_files_encode_in_this_process(directory: Path) -> None:
    assert not read_tokenizer_json(directory / "tokenizer.json").needs_guard


@pytest.mark.parametrize("pre", ["published v2", *SPLITS])
def test_known_patterns_take_linear_time(pre: str) -> None:
    """In quadratic time this would exceed the test's time limit."""
    if pre == "published v2":
        encode = load_tokenizer_json(V2_DIRECTORY / "tokenizer.json").encoder
    else:
        encode = LocalEncoder(build_backend(byte_metadata(pre), "bytes.gguf"))
    for run in (" ", "A"):
        assert encode([f"x{run * 200_000}☃"], parse_special=True)


def test_a_tokenizer_with_a_pattern_of_its_own_gives_the_librarys_ids(tmp_path: Path) -> None:
    tree = changed(PLACE, {"Regex": r"\p{N}{1,2}"})
    tokenizer = load(tmp_path, tree)
    here = LocalEncoder(tokenizers.Tokenizer.from_str(json.dumps(tree)))
    for text in mixed_texts()[:20]:
        marked = f"{text}{BOS}<think>123{text}"
        for parse_special in (True, False):
            expected = here([marked], parse_special=parse_special)[0]
            assert tokenizer.encode(marked, parse_special=parse_special) == expected
        assert tokenizer.encode_prompt(marked) == here([marked], parse_special=True)[0]


@pytest.mark.usefixtures("short_limits")
def test_an_endless_pattern_fails_only_its_own_request(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, changed(PLACE, {"Regex": SLOW}))
    usual = tokenizer.encode("cab")
    limit = r"it ran for more than 0\.5 s"
    with pytest.raises(RequestError, match=rf"^the model's tokenizer was stopped: {limit}") as reported:
        tokenizer.encode("a" * 4000 + "xb")
    assert reported.value.status == 400
    assert tokenizer.encode("cab") == usual


REPEATED = {"type": "Replace", "pattern": {"String": "~"}, "content": "~" * 16}


@pytest.mark.usefixtures("short_limits")
def test_expanding_replacements_fail_only_their_own_request(tmp_path: Path) -> None:
    """One byte expands to 16**7 bytes."""
    tokenizer = load(tmp_path, FILE | {"normalizer": {"type": "Sequence", "normalizers": [REPEATED] * 7}})
    usual = tokenizer.encode("cab")
    with pytest.raises(RequestError, match=r"^the model's tokenizer was stopped: "):
        tokenizer.encode("~")
    assert tokenizer.encode("cab") == usual


@pytest.mark.parametrize(
    ("replacements", "guarded"),
    [
        ([], False),
        ([REPEATED | {"pattern": {"String": " "}, "content": "\u2581"}], False),
        ([REPEATED | {"pattern": {"String": "~" * 16}}] * 60, False),
        ([REPEATED | {"content": "~" * 4}] * 2, True),
        ([{"type": "ByteLevel"}] * 4, True),
    ],
)
def test_normalizers_that_lengthen_texts_run_in_a_guarded_process(
    tmp_path: Path, replacements: list[dict[str, Any]], guarded: bool
) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(FILE | {"normalizer": {"type": "Sequence", "normalizers": replacements}}))
    assert read_tokenizer_json(file).needs_guard == guarded


def test_a_text_that_the_library_rejects_is_also_rejected_by_the_guarded_process(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, changed(PLACE, {"Regex": "(a|aa)+$"}))
    with pytest.raises(RequestError, match="cannot process this text of 60 characters"):
        tokenizer.encode("a" * 59 + "b")
    with pytest.raises(RequestError, match="unpaired surrogate at character 1"):
        tokenizer.encode("a\ud800")


def test_failing_to_start_a_process_is_not_a_request_error(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = ForeignEncoder(json.dumps(FILE))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(CapacityError, match="no process can be started for the model's tokenizer: No such file"):
        encode(["a"], parse_special=True)
