"""The library's tokenizer compared with the transformers one, built from the same files."""

from __future__ import annotations

from typing import Any

import pytest

from ballast import LLM, SamplingParams
from ballast.errors import RequestError

CHAT = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "What is 2 + 2? <｜User｜>"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "Thanks, größe 漢字"},
]
TEXTS = ["Hello, world", "  two  spaces\n\n", "größe 漢字 🎉", ""]


@pytest.fixture(scope="module")
def tokenizer(llm: LLM) -> Any:
    return llm.get_tokenizer()


@pytest.fixture(scope="module")
def theirs(tokenizer: Any) -> Any:
    import transformers

    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer._backend,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        chat_template=tokenizer.chat_template,
    )


@pytest.mark.parametrize("text", TEXTS)
def test_texts_have_the_ids_of_transformers_and_round_trip(tokenizer: Any, theirs: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == theirs.decode(ids) == text
    assert tokenizer.encode(text) == [tokenizer.bos_token_id, *ids]
    assert tokenizer(text).input_ids == tokenizer(text)["input_ids"] == tokenizer.encode(text)


def test_many_texts_at_once(tokenizer: Any) -> None:
    found = tokenizer(TEXTS, add_special_tokens=False)
    assert found.input_ids == [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    assert found.attention_mask == [[1] * len(ids) for ids in found.input_ids]
    assert tokenizer.batch_decode(found.input_ids) == TEXTS


def test_special_tokens_are_shown_unless_they_are_skipped(tokenizer: Any) -> None:
    ids = [tokenizer.bos_token_id, *tokenizer.encode("a", add_special_tokens=False), tokenizer.eos_token_id]
    assert tokenizer.decode(ids) == f"{tokenizer.bos_token}a{tokenizer.eos_token}"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a"
    assert tokenizer.decode(tokenizer.eos_token_id) == tokenizer.eos_token
    assert {tokenizer.bos_token_id, tokenizer.eos_token_id} <= set(tokenizer.all_special_ids)


def test_tokens_and_ids_are_converted(tokenizer: Any, theirs: Any) -> None:
    ids = tokenizer.encode("Hello world")
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokens == theirs.convert_ids_to_tokens(ids)
    assert tokenizer.convert_tokens_to_ids(tokens) == ids
    assert tokenizer.convert_tokens_to_ids(tokenizer.eos_token) == tokenizer.eos_token_id
    assert len(tokenizer) == tokenizer.vocab_size == len(theirs)


@pytest.mark.parametrize("opens", [False, True])
def test_a_conversation_is_rendered_as_by_transformers(tokenizer: Any, theirs: Any, opens: bool) -> None:
    plain = [CHAT[0], {"role": "user", "content": "What is 2 + 2?"}, *CHAT[2:]]
    text = tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=opens)
    assert text == theirs.apply_chat_template(plain, tokenize=False, add_generation_prompt=opens)
    ids = tokenizer.apply_chat_template(plain, add_generation_prompt=opens)
    assert ids == theirs.apply_chat_template(plain, add_generation_prompt=opens, return_dict=False)
    assert tokenizer.apply_chat_template([plain, plain], tokenize=False, add_generation_prompt=opens) == [text] * 2
    assert tokenizer.apply_chat_template(plain, add_generation_prompt=opens, return_dict=True).input_ids == ids


def test_the_ids_of_a_template_are_the_prompt_of_a_chat(llm: LLM, tokenizer: Any) -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)
    chatted, generated = llm.chat(CHAT, params)[0], llm.generate({"prompt_token_ids": ids}, params)[0]
    assert list(chatted.prompt_token_ids) == ids
    assert chatted.outputs[0].token_ids == generated.outputs[0].token_ids
    plain = [{"role": "user", "content": "What is 12 + 7?"}]
    text = tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    assert llm.generate(text, params)[0].prompt_token_ids == llm.chat(plain, params)[0].prompt_token_ids


def test_a_client_cannot_forge_control_tokens_by_text(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(CHAT, tokenize=False)
    ids = tokenizer.apply_chat_template(CHAT)
    assert "2 + 2? <｜User｜>" in text
    assert ids.count(tokenizer.convert_tokens_to_ids("<｜User｜>")) == 2


def test_tools_and_variables_reach_the_template(tokenizer: Any) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    template = "{{ tools | length if tools else 0 }} {{ mood }} {{ messages[0].content }}"
    text = tokenizer.apply_chat_template(CHAT[1:2], [tool], chat_template=template, tokenize=False, mood="good")
    assert text.startswith("1 good What")


def test_arguments_that_would_change_the_result_are_refused(tokenizer: Any) -> None:
    with pytest.raises(RequestError, match=r"return_tensors=pt: .*ids are lists"):
        tokenizer("a", return_tensors="pt")
    with pytest.raises(RequestError, match="truncation=True"):
        tokenizer.encode("a", truncation=True)
    with pytest.raises(TypeError, match="not have an argument skip_specials"):
        tokenizer.decode([1], skip_specials=True)
    with pytest.raises(RequestError, match="must be a string"):
        tokenizer.encode(["a"])
    with pytest.raises(RequestError, match="not in the vocabulary"):
        tokenizer.decode([10**9])
    assert tokenizer.encode("a", padding=False, truncation=None) == tokenizer.encode("a")
