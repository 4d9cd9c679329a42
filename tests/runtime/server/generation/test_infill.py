"""`suffix` of text completions: a fill-in-the-middle prompt, if the model has tokens for it."""

import json
from typing import Any

import pytest

from ballast.engine.limits import Limits
from ballast.errors import ContextLengthError, RequestError
from ballast.generation.request_builder import RequestBuilder
from ballast.text.loading import Text, load_text
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.openai.request import CompletionRequest, parse_body
from devkit.models.vocabulary import byte_metadata

PREFIX, SUFFIX, MIDDLE, FILE = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"
LIMITS = Limits(max_model_tokens=64, max_new_tokens=32, max_batch_size=4, max_queue=8)


@pytest.fixture(scope="module")
def text() -> Text:
    return load_text(None, byte_metadata(user_defined=(PREFIX, SUFFIX, MIDDLE, FILE)), "bytes.gguf")


def job(text: Text, **fields: Any) -> Any:
    body = parse_body(CompletionRequest, json.dumps({"prompt": "ab"} | fields).encode(), 64, IgnoredFields())
    return RequestBuilder(text, LIMITS).completion(body)


def test_a_suffix_makes_the_prompt_of_a_gap(text: Text) -> None:
    built = job(text, suffix=f"c{MIDDLE}")
    (prompt,) = built.prompts
    assert text.tokenizer.decode(prompt.ids[1:], skip_control=False) == f"{PREFIX}ab{SUFFIX}c{MIDDLE}{MIDDLE}"
    middle = text.tokenizer.id_of(MIDDLE)
    assert (prompt.ids[0], prompt.ids.count(middle)) == (text.tokenizer.bos_id, 1), (
        "a client's text must not become a control token"
    )
    another_file = text.tokenizer.id_of(FILE)
    assert another_file in built.sampling.stop_token_ids
    assert another_file in built.hidden_ids
    assert another_file not in job(text).sampling.stop_token_ids


def test_each_prompt_has_the_same_suffix_and_ids_are_unchanged(text: Text) -> None:
    several = job(text, prompt=["a", "b"], suffix="c")
    shown = [text.tokenizer.decode(prompt.ids[1:], skip_control=False) for prompt in several.prompts]
    assert shown == [f"{PREFIX}a{SUFFIX}c{MIDDLE}", f"{PREFIX}b{SUFFIX}c{MIDDLE}"]
    of_ids = job(text, prompt=[2 + ord("a")], suffix="c")
    assert of_ids.prompts == several.prompts[:1]


def test_infill_omits_bos_on_request(text: Text) -> None:
    (prompt,) = job(text, suffix="c", add_special_tokens=False).prompts
    assert text.tokenizer.decode(prompt.ids, skip_control=False) == f"{PREFIX}ab{SUFFIX}c{MIDDLE}"


def test_the_text_before_a_gap_may_be_empty(text: Text) -> None:
    (prompt,) = job(text, prompt="", suffix="c").prompts
    assert text.tokenizer.decode(prompt.ids[1:], skip_control=False) == f"{PREFIX}{SUFFIX}c{MIDDLE}"


@pytest.mark.parametrize("suffix", [None, ""])
def test_no_suffix_continues_the_prompt(text: Text, suffix: str | None) -> None:
    (prompt,) = job(text, suffix=suffix).prompts
    assert text.tokenizer.decode(prompt.ids[1:], skip_control=False) == "ab"


@pytest.mark.parametrize("other", [{"echo": True}, {"truncate_prompt_tokens": 8}])
def test_a_suffix_excludes_echo_and_truncation(text: Text, other: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="suffix: excludes") as refusal:
        job(text, suffix="c", **other)
    assert refusal.value.param == "suffix"


def test_a_suffix_without_such_tokens_is_refused_by_name() -> None:
    plain = load_text(None, byte_metadata(), "bytes.gguf")
    with pytest.raises(RequestError, match="suffix: this model's vocabulary has no tokens to fill gaps") as refusal:
        job(plain, suffix="c")
    assert (refusal.value.param, refusal.value.code) == ("suffix", "no_infill")


def test_a_suffix_that_is_too_long_is_refused(text: Text) -> None:
    with pytest.raises(ContextLengthError):
        job(text, suffix="c" * 62)
    with pytest.raises(ContextLengthError) as refusal:
        job(text, suffix="c" * 2000)
    assert refusal.value.param == "suffix"
