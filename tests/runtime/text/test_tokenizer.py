"""Tokenizers built from GGUF metadata compared with the published ones, and Ballast's additional rules."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, trainers
from tokenizers.processors import TemplateProcessing
from transformers import Qwen2Tokenizer
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

from ballast.errors import ModelError, RequestError
from ballast.families.registry import FAMILIES
from ballast.text import byte_alphabet
from ballast.text.gguf_vocab import SPLITS, TokenType, build_backend, tokenizer_from_gguf
from ballast.text.loading import load_text
from ballast.text.tokenizer import LocalEncoder, Tokenizer
from devkit.long import times
from devkit.models.vocabulary import BOS, EOS, byte_metadata, byte_tokenizer
from devkit.published_tokenizers import V2_DIRECTORY, V3_DIRECTORY
from devkit.texts import mixed_texts

V2_FILE = V2_DIRECTORY / "tokenizer.json"
V3_FILE = V3_DIRECTORY / "tokenizer.json"

SAMPLES = [
    "",
    " ",
    "Hello, world!",
    "def f(x: int) -> int:\n    return x ** 2  # ok\n\n\n",
    "\tif (a && b) { c[i]++; }\r\n\r\n",
    "3.14159 2,718 1234567890 0x1F ½ Ⅷ ३४५",
    "你好，世界！今天是2024年12月26日。",
    "ひらがなとカタカナ、漢字。ｶﾀｶﾅ",
    "한국어 텍스트입니다.",
    "Жук, Ωmega, naïve café, Straße, İstanbul",
    "العربية עברית हिन्दी ไทย",
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 ☃️ 🇩🇪",
    "e\u0301 vs é, \u200bzero\u200dwidth\ufeff",
    "  leading,   inner    and trailing   ",
    "\u00a0\u3000\u2028\u2029\x00\x7f\x85",
    "<|im_start|> <｜not a token｜> <think",
    "<think>\nhm</think>\n\nyes<｜User｜>no<｜Assistant｜>",
    f"{BOS}x{EOS}<|EOT|><｜▁pad▁｜>",
]


def metadata_of(file: Path, pre: str) -> dict[str, Any]:
    """The metadata that a converter writes for a tokenizer.json, with padding rows."""
    source = json.loads(file.read_text(encoding="utf-8"))
    entries = {row: (text, 1) for text, row in source["model"]["vocab"].items()}
    entries |= {t["id"]: (t["content"], 3 if t["special"] else 4) for t in source["added_tokens"]}
    rows = [entries.get(row, (f"[PAD{row}]", 5)) for row in range(max(entries) + 1 + 465)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [text for text, _ in rows],
        "tokenizer.ggml.token_type": [kind for _, kind in rows],
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in source["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


def published_ids(oracle: tokenizers.Tokenizer, text: str) -> list[int]:
    return oracle.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def v3_published() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(V3_FILE))


@pytest.fixture(scope="module")
def v3() -> Tokenizer:
    return tokenizer_from_gguf(metadata_of(V3_FILE, "deepseek-v3"), "v3.gguf")


@pytest.mark.parametrize(("file", "pre"), [(V2_FILE, "deepseek-llm"), (V3_FILE, "deepseek-v3")])
def test_ids_match_the_published_tokenizer(file: Path, pre: str) -> None:
    """From tokenizer.json and from GGUF metadata, with and without control tokens."""
    published = tokenizers.Tokenizer.from_file(str(file))
    from_json = load_text(file.parent, {}, "m.gguf").tokenizer
    from_gguf = tokenizer_from_gguf(metadata_of(file, pre), "m.gguf")
    plain = tokenizers.Tokenizer(published.model)
    plain.pre_tokenizer = published.pre_tokenizer
    texts = mixed_texts()
    assert len(set(texts)) >= 2000
    for text in texts:
        ids = published_ids(published, text)
        assert from_json.encode(text) == ids, text
        assert from_gguf.encode(text) == ids, text
        assert from_gguf.encode_prompt(text) == ids, text
        assert from_gguf.decode(ids, skip_control=False) == text
        ids = published_ids(plain, text)
        assert from_json.encode(text, parse_special=False) == ids, text
        assert from_json.encode_prompt(from_json.protect(text)) == ids, text


@given(text=st.text(max_size=60) | st.lists(st.sampled_from([*SAMPLES, *"aZ 9,.\n中ñ👍"]), max_size=12).map("".join))
@settings(max_examples=times(100, 400), deadline=None)
def test_v3_agrees_with_the_published_one_on_any_text(
    v3: Tokenizer, v3_published: tokenizers.Tokenizer, text: str
) -> None:
    ids = v3.encode(text)
    assert ids == published_ids(v3_published, text)
    assert v3.decode(ids, skip_control=False) == text


def test_every_v3_token_has_the_bytes_that_the_published_decoder_gives(
    v3: Tokenizer, v3_published: tokenizers.Tokenizer
) -> None:
    assert v3.vocab_size == 128815  # 129280 rows in the file, the rest is padding
    for token_id in range(v3.vocab_size):
        text = v3_published.decode([token_id], skip_special_tokens=False)
        assert v3.token_bytes(token_id).decode("utf-8", errors="replace") == text


def test_v3_ends_at_eos_and_at_its_turn_token(v3: Tokenizer) -> None:
    assert v3.eos_ids == {1, 128805}
    assert (v3.bos_id, v3.eos_id) == (0, 1)


def test_control_tokens_are_hidden_and_thinking_tags_are_not(v3: Tokenizer) -> None:
    ids = v3.encode(f"{BOS}<think>a</think>b{EOS}")
    assert [v3.is_control(token_id) for token_id in ids] == [True, False, False, False, False, True]
    assert v3.decode(ids) == "<think>a</think>b"
    assert v3.decode(ids, skip_control=False) == f"{BOS}<think>a</think>b{EOS}"


@pytest.mark.parametrize("spelling", [BOS, EOS, "<think>", "<｜User｜>", "<|EOT|>", "<｜tool▁sep｜>"])
def test_spellings_of_added_tokens_are_plain_text_on_request(v3: Tokenizer, spelling: str) -> None:
    added = v3.id_of(spelling)
    text = f"say {spelling} now"
    assert added in v3.encode(text)
    plain = v3.encode(text, parse_special=False)
    assert added not in plain
    assert v3.decode(plain) == text


def splits(pre: str, text: str) -> list[str]:
    """The pieces that merges never cross, from a tokenizer without merges."""
    backend = build_backend(byte_metadata(pre), "bytes.gguf")
    assert backend.pre_tokenizer is not None
    return [text[start:end] for _, (start, end) in backend.pre_tokenizer.pre_tokenize_str(text)]


# The expected pieces were read from the tokenizer.json that DeepSeek published with V2.
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hello, world!  2024\n\n  x", ["Hello", ",", " world", "!", "  ", *"2024\n\n", " ", " x"]),
        (
            "def f(x):\n    return x**2 # ok",
            ["def", " f", "(", "x", "):", "\n", "   ", " return", " x", "**", "2", " #", " ok"],
        ),
        ("na\u00efve \u03a9mega \u0416\u0443\u043a", ["na", "\u00ef", "ve", " \u03a9", "mega", " \u0416\u0443\u043a"]),
        ("價格：100元。", ["價格", "：", "1", "0", "0", "元", "。"]),
        ("한글과 漢字", ["한글과", " ", "漢字"]),
        ("a\r\nb  ", ["a", "\r", "\n", "b", "  "]),
        ("x ½Ⅷ३", ["x", " ", "½", "Ⅷ", "३"]),
        ("\u1f5f\u1f5d\u1f7d\u1fbc\u1fbf", ["\u1f5f\u1f5d\u1f7d\u1fbc", "\u1fbf"]),
        ("\u212a\u2126\u212e", ["\u212a\u2126", "\u212e"]),
        ("العربية हिन्दी", ["العربية ", "हिन्दी"]),
    ],
)
def test_deepseek_llm_splits_as_published(text: str, pieces: list[str]) -> None:
    assert splits("deepseek-llm", text) == pieces


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hello, world! 42", ["Hello", ",", " world", "!", " ", "4", "2"]),
        ("x\n\ny", ["x", "\n", "\n", "y"]),
        ("價格：100元。", ["價格", "：", "1", "0", "0", "元", "。"]),
    ],
)
def test_deepseek_coder_splits(text: str, pieces: list[str]) -> None:
    assert splits("deepseek-coder", text) == pieces


# Results of Moonshot's own pattern: capitals begin a piece, Han characters form separate pieces.
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("getUserName iPhone", ["get", "User", "Name", " i", "Phone"]),
        ("中文English中文ENGLISH", ["中文", "English", "中文", "ENGLISH"]),
        ("I'm 12345 它's", ["I'm", " ", "123", "45", " ", "它", "'s"]),
        ("GPT4发布于2023年", ["GPT", "4", "发布于", "202", "3", "年"]),
        ("  x\n\n y", [" ", " x", "\n\n", " y"]),
    ],
)
def test_kimi_k2_splits(text: str, pieces: list[str]) -> None:
    assert splits("kimi-k2", text) == pieces


@given(text=st.text(max_size=80))
@pytest.mark.parametrize("pre", SPLITS)
@settings(deadline=None)
def test_splitting_keeps_all_text(pre: str, text: str) -> None:
    assert "".join(splits(pre, text)) == text


@pytest.mark.parametrize("pre", SPLITS)
def test_a_million_spaces_do_not_hang_the_splitter(pre: str) -> None:
    # In quadratic time this would take an hour.
    text = " " * 1_000_000 + "5"
    assert "".join(splits(pre, text)) == text


@pytest.mark.parametrize("pre", SPLITS)
def test_a_trained_vocabulary_gives_the_same_ids_from_metadata(pre: str) -> None:
    trained = tokenizers.Tokenizer(models.BPE())
    untrained = build_backend(byte_metadata(pre), "bytes.gguf")
    trained.pre_tokenizer = untrained.pre_tokenizer
    if untrained.normalizer is not None:
        trained.normalizer = untrained.normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        show_progress=False,
        initial_alphabet=list(byte_alphabet.BYTE_OF_CHAR),
    )
    trained.train_from_iterator(SAMPLES * 3, trainer)
    model = json.loads(trained.to_str())["model"]
    assert len(model["merges"]) > 300
    metadata = byte_metadata(pre, merges=[(_raw(left), _raw(right)) for left, right in model["merges"]])
    tokenizer = tokenizer_from_gguf(metadata, "trained.gguf")
    for text in SAMPLES:
        ids = tokenizer.encode(text, parse_special=False)
        pieces = [metadata["tokenizer.ggml.tokens"][token_id] for token_id in ids]
        assert pieces == trained.encode(text, add_special_tokens=False).tokens
        composed = text if untrained.normalizer is None else untrained.normalizer.normalize_str(text)
        assert tokenizer.decode(ids) == composed


def _raw(spelled: str) -> bytes:
    raw = byte_alphabet.to_bytes(spelled)
    assert raw is not None
    return raw


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("parse_special", [True, False])
@pytest.mark.parametrize("starts_with_bos", [True, False])
def test_bos_is_added_once_and_only_on_request(add_bos: bool, parse_special: bool, starts_with_bos: bool) -> None:
    tokenizer = byte_tokenizer()
    text = f"{BOS}hi" if starts_with_bos else "hi"
    ids = tokenizer.encode(text, parse_special=parse_special, add_bos=add_bos)
    assert ids.count(0) == int(add_bos or (starts_with_bos and parse_special))
    assert (ids[0] == 0) == (0 in ids)


def test_bos_is_never_added_by_the_files_own_post_processor() -> None:
    backend = build_backend(byte_metadata(), "bytes.gguf")
    backend.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    tokenizer = Tokenizer(backend, bos_id=0, eos_ids=[1], add_bos=True)
    assert tokenizer.encode("hi") == [2 + ord("h"), 2 + ord("i")]
    assert tokenizer.encode("hi", add_bos=True) == [0, 2 + ord("h"), 2 + ord("i")]


def test_without_a_bos_token_none_is_added() -> None:
    metadata = byte_metadata()
    del metadata["tokenizer.ggml.bos_token_id"]
    tokenizer = tokenizer_from_gguf(metadata, "bytes.gguf")
    assert not tokenizer.add_bos
    assert tokenizer.encode("hi", add_bos=True) == tokenizer.encode("hi")


def test_padding_rows_are_outside_the_vocabulary() -> None:
    tokenizer = tokenizer_from_gguf(byte_metadata(num_unused=7), "bytes.gguf")
    assert tokenizer.vocab_size == 260
    assert tokenizer.encode("[PAD0]") == tokenizer.encode("[PAD0]", parse_special=False)


def test_every_byte_is_a_token_and_comes_back() -> None:
    tokenizer = byte_tokenizer()
    assert b"".join(tokenizer.token_bytes(2 + byte) for byte in range(256)) == bytes(range(256))
    assert tokenizer.decode([2 + byte for byte in "é".encode()]) == "é"
    assert tokenizer.decode([2 + 0xC3]) == "\ufffd"


def test_end_of_turn_in_the_metadata_ends_generation_too() -> None:
    metadata = byte_metadata() | {"tokenizer.ggml.eot_token_id": 259}
    assert tokenizer_from_gguf(metadata, "bytes.gguf").eos_ids == {1, 259}


@pytest.mark.parametrize("kind", [TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.NORMAL])
@pytest.mark.parametrize("text", ["<|im_end|>", "<|endoftext|>", "<|EOT|>", "<|eot_id|>"])
def test_a_token_spelt_like_an_end_of_turn_ends_generation_for_any_type(kind: TokenType, text: str) -> None:
    metadata = byte_metadata(num_unused=1)
    tokens, types = list(metadata["tokenizer.ggml.tokens"]), list(metadata["tokenizer.ggml.token_type"])
    tokens[-1], types[-1] = text, kind
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    tokenizer = tokenizer_from_gguf(metadata, "bytes.gguf")
    end = len(tokens) - 1
    assert tokenizer.eos_ids == {1, end}
    assert tokenizer.encode(f"a{text}")[-1] == end
    assert tokenizer.decode([2 + ord("a"), end]) == "a"


@pytest.mark.parametrize("token_id", [-1, 260, 10**9])
def test_an_id_outside_the_vocabulary_is_refused_with_the_range(token_id: int) -> None:
    with pytest.raises(RequestError, match=rf"token id {token_id} .* 0 to 259"):
        byte_tokenizer().decode([token_id])


def test_an_unpaired_surrogate_is_the_callers_mistake() -> None:
    with pytest.raises(RequestError, match="surrogate at character 2"):
        byte_tokenizer().encode("ab\ud83d")


def test_threads_encode_at_once_with_and_without_special_tokens(v3: Tokenizer) -> None:
    work = [(text, parse) for text in SAMPLES for parse in (True, False)] * 40
    expected = [v3.encode(text, parse_special=parse) for text, parse in work]
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda item: v3.encode(item[0], parse_special=item[1]), work))
    assert seen == expected


def test_a_splitter_that_is_not_known_needs_a_tokenizer_json(tmp_path: Path) -> None:
    metadata = byte_metadata() | {"tokenizer.ggml.pre": "gpt-9"}
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre=gpt-9 is not supported.*pass --model_path"):
        load_text(tmp_path, metadata, "m.gguf")
    build_backend(byte_metadata(), "bytes.gguf").save(str(tmp_path / "tokenizer.json"))
    assert load_text(tmp_path, metadata, "m.gguf").tokenizer.encode("a") == byte_tokenizer().encode("a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "llama"}, r"tokenizer\.ggml\.model=llama .* gpt2; pass --model_path"),
        ({"pre": "gpt-2"}, r"tokenizer\.ggml\.pre=gpt-2 .* deepseek-llm, .*deepseek-v3, .*; pass --model_path"),
        ({"pre": None}, r"tokenizer\.ggml\.pre is missing; pass --model_path"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens is missing"),
        ({"merges": None}, r"tokenizer\.ggml\.merges is missing"),
        ({"merges": ["q zz"]}, r"tokenizer\.ggml\.merges: .*zz"),
        ({"merges": ["q"]}, r"tokenizer\.ggml\.merges: entry 0, 'q'"),
        ({"token_type": [1]}, r"tokenizer\.ggml\.token_type has 1 entries for 260 tokens"),
        ({"bos_token_id": 5000}, "BOS or EOS id 5000 is outside the vocabulary of 260"),
        ({"token_type": [1] * 260}, "not byte-level"),
    ],
)
def test_metadata_that_cannot_work_is_refused_by_key(change: Mapping[str, Any], message: str) -> None:
    metadata = byte_metadata() | {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(ModelError, match=rf"bad\.gguf: .*{message}"):
        tokenizer_from_gguf(metadata, "bad.gguf")


def test_a_failing_splitter_rejects_the_text_and_the_tokenizer_continues():
    """The library panics when a regular expression runs out of steps; real splitters need megabytes for that."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("(a|aa)+$"), "isolated")
    encode = LocalEncoder(backend)
    with pytest.raises(RequestError, match="cannot process this text of 60 characters"):
        encode(["a" * 59 + "b"], parse_special=True)
    assert encode(["aa"], parse_special=True) == [[0, 0]]


@pytest.mark.parametrize(
    ("user_defined", "message"),
    [
        (("x" * 5000,), "added token 258, 'x+…, has 5000 characters; expected at most 256"),
        (
            [f"<{n}>" for n in range(20_000)],
            "20002 added tokens of 1[0-9]+ characters; expected at most 16384 of 262144",
        ),
        ([f"<{n:0200}>" for n in range(2000)], "2002 added tokens of 4[0-9]+ characters; expected at most "),
    ],
    ids=["long", "many", "many long ones"],
)
def test_added_tokens_have_bounds(user_defined: Sequence[str], message: str) -> None:
    with pytest.raises(ModelError, match=rf"bytes\.gguf: {message}"):
        byte_tokenizer(user_defined=user_defined)


@pytest.mark.parametrize("missing", FAMILIES["gpt_oss"].reply.spellings.values())
def test_replies_are_on_channels_if_the_vocabulary_has_all_marks(missing: str) -> None:
    marks = FAMILIES["gpt_oss"].reply.spellings.values()
    assert byte_tokenizer(user_defined=tuple(marks)).reply.has_channels
    assert not byte_tokenizer(user_defined=[mark for mark in marks if mark != missing]).reply.has_channels


def test_a_vocabulary_that_would_lose_text_is_refused() -> None:
    metadata = byte_metadata()
    metadata["tokenizer.ggml.token_type"][2 + ord("a")] = 5  # unused
    with pytest.raises(ModelError, match=r"bytes\.gguf: the vocabulary has no token for the byte 0x61"):
        tokenizer_from_gguf(metadata, "bytes.gguf")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("it's I'LL", ["it", "'s", " I", "'LL"]),
        ("1234 (x)\n\n  y", ["123", "4", " (", "x", ")\n\n", " ", " y"]),
        ("中文abc。", ["中文abc", "。"]),
    ],
)
def test_glms_splits(text: str, pieces: list[str]) -> None:
    assert splits("glm4", text) == splits("glm5", text) == pieces


# The expected pieces follow from the pattern of GPT-4o's tokenizer, which llama.cpp's source quotes.
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("it's I'LL HelloWorld XMLHttp", ["it's", " I'LL", " Hello", "World", " XMLHttp"]),
        ("1234567 a/b/\n\n//x", ["123", "456", "7", " a", "/b", "/\n\n//", "x"]),
        ("中文abc。", ["中文abc", "。"]),
        ("e\u0301té Ǆemal ʰx", ["e\u0301té", " Ǆemal", " ʰx"]),
        ("\r\n  y", ["\r\n", " ", " y"]),
    ],
)
def test_gpt_4os_splits(text: str, pieces: list[str]) -> None:
    assert splits("gpt-4o", text) == splits("minimax-m2", text) == pieces


# The expected pieces follow from the pattern in the tekken.json of mistral-common.
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("it's I'LL HelloWorld XMLHttp", ["it", "'s", " I", "'LL", " Hello", "World", " XMLHttp"]),
        ("123 a/b/\n\n//x", ["1", "2", "3", " a", "/b", "/\n\n//", "x"]),
        ("e\u0301té Ǆemal ʰx", ["e\u0301té", " Ǆemal", " ʰx"]),
        ("\r\n  y", ["\r\n", " ", " y"]),
    ],
)
def test_mistrals_splits(text: str, pieces: list[str]) -> None:
    assert splits("tekken", text) == pieces


def test_mistrals_texts_begin_with_bos_unless_the_file_denies_it() -> None:
    metadata = byte_metadata("tekken")
    metadata.pop("tokenizer.ggml.add_bos_token", None)
    assert tokenizer_from_gguf(metadata, "m.gguf").add_bos
    assert not tokenizer_from_gguf({**metadata, "tokenizer.ggml.add_bos_token": False}, "m.gguf").add_bos
    metadata["tokenizer.ggml.pre"] = "qwen2"
    assert not tokenizer_from_gguf(metadata, "m.gguf").add_bos


@pytest.mark.parametrize("text", ["it's I'LL", "1234 (x)\n\n  y", "中文abc。", "#include 日本"])
def test_hunyuan_splits_as_deepseek_v3(text: str) -> None:
    assert splits("hunyuan-dense", text) == splits("step35", text) == splits("deepseek-v3", text)


@pytest.mark.parametrize(("pre", "published"), [("qwen2", Qwen2Tokenizer), ("qwen35", Qwen3_5Tokenizer)])
@pytest.mark.parametrize(
    "text", ["it's I'LL", "1234 (x)\n\n  y", "中文abc。", "e\u0301té ﬁ A\u030a", " \t\n x", "नमस्ते สวัสดีครับ !\u0301 ้"]
)
def test_qwens_tokenizers_are_those_of_transformers(text: str, pre: str, published: type[Any]) -> None:
    ours = tokenizer_from_gguf(byte_metadata(pre, user_defined=()), "qwen3.gguf")
    tokens = {byte_alphabet.CHAR_OF_BYTE[byte]: 2 + byte for byte in range(256)}
    theirs = published(vocab=tokens, merges=[])
    assert ours.encode(text) == theirs.encode(text)
    pieces = theirs.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert splits(pre, text) == [text[begin:end] for _, (begin, end) in pieces]


def test_only_qwen35_keeps_marks_in_words() -> None:
    assert splits("qwen35", "नमस्ते") == ["नमस्ते"]
    assert len(splits("qwen2", "नमस्ते")) > 1


def test_glm_prefers_whole_tokens_and_ends_at_the_next_role() -> None:
    added = ("[gMASK]", "<sop>", "<|user|>", "<|observation|>")
    metadata = byte_metadata("glm4", merges=[(b"a", b"b"), (b"bc", b"")], user_defined=())
    metadata["tokenizer.ggml.merges"] = metadata["tokenizer.ggml.merges"][:1]
    metadata["tokenizer.ggml.tokens"] += ["abc", *added]
    metadata["tokenizer.ggml.token_type"] += [1, 3, 3, 3, 3]
    tokenizer = tokenizer_from_gguf(metadata, "glm.gguf")
    assert tokenizer.encode("abc") == [tokenizer.id_of("abc")]
    assert {tokenizer.id_of("<|user|>"), tokenizer.id_of("<|observation|>")} <= tokenizer.eos_ids
