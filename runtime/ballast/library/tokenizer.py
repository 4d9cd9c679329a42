"""The model's tokenizer with the most used methods of transformers' tokenizers."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ballast.errors import RequestError, shown
from ballast.generation.request_builder import RequestBuilder
from ballast.library.prompts import ChatMessage, is_conversation
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.openai.request import ChatCompletionRequest, checked_body

Ids = list[int]

_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "padding": (False, "do_not_pad"),
    "truncation": (False, "do_not_truncate"),
    "return_tensors": (),
    "return_assistant_tokens_mask": (False,),
    "return_attention_mask": (True,),
    "clean_up_tokenization_spaces": (False, True),
    "spaces_between_special_tokens": (False, True),
    "documents": ([],),
    "tokenizer_kwargs": ({},),
    "max_length": (),
    "stride": (0,),
}
"""Arguments of transformers → values without an effect, in addition to None."""


class Encoded(dict[str, Ids | list[Ids]]):
    """Token ids of one or more texts."""

    @property
    def input_ids(self) -> Ids | list[Ids]:
        """The ids."""
        return self["input_ids"]

    @property
    def attention_mask(self) -> Ids | list[Ids]:
        """All ones, because nothing is padded."""
        return self["attention_mask"]


class ModelTokenizer:
    """Does not need the engine, so it also works in forked processes. Thread-safe. Methods raise RequestError."""

    is_fast = True
    pad_token_id: int | None = None
    """None: prompts are never padded."""
    pad_token: str | None = None

    def __init__(self, builder: RequestBuilder) -> None:
        self._builder = builder
        self._tokenizer = builder.text.tokenizer

    def encode(self, text: str, *, add_special_tokens: bool = True, **others: Any) -> Ids:
        """Token ids of a text. `add_special_tokens`: put BOS first if the model's prompts begin with it."""
        _check_harmless(others)
        if not isinstance(text, str):
            raise RequestError(f"text={shown(text)}: must be a string; call the tokenizer itself for several texts")
        return self._tokenizer.encode(text, add_bos=add_special_tokens and self._tokenizer.add_bos)

    def __call__(self, text: str | Sequence[str], *, add_special_tokens: bool = True, **others: Any) -> Encoded:
        """Token ids of one or more texts, as `input_ids`."""
        one = isinstance(text, str)
        many = [text] if isinstance(text, str) else text
        return _encoded([self.encode(each, add_special_tokens=add_special_tokens, **others) for each in many], one=one)

    def decode(self, token_ids: int | Iterable[int], *, skip_special_tokens: bool = False, **others: Any) -> str:
        """The text of token ids; bytes that are not UTF-8 become U+FFFD."""
        _check_harmless(others)
        ids = [token_ids] if isinstance(token_ids, int) else [operator.index(each) for each in token_ids]
        return self._tokenizer.decode(ids, skip_control=skip_special_tokens)

    def batch_decode(
        self, sequences: Iterable[Iterable[int]], *, skip_special_tokens: bool = False, **others: Any
    ) -> list[str]:
        """The text of each sequence of token ids."""
        return [self.decode(each, skip_special_tokens=skip_special_tokens, **others) for each in sequences]

    def apply_chat_template(
        self,
        conversation: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        return_dict: bool = False,
        **others: Any,
    ) -> Any:
        """The prompt of one or more conversations: token ids, or text with `tokenize=False`.

        `others` are variables of the template, such as `enable_thinking`.
        """
        _check_harmless({name: value for name, value in others.items() if name in _HARMLESS})
        variables = {name: value for name, value in others.items() if name not in _HARMLESS}
        fields = {
            "tools": tools and list(tools),
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "chat_template_kwargs": variables or None,
        }
        one = is_conversation(conversation)
        many: Any = [conversation] if one else conversation
        found = [self._prompt(messages, fields, tokenize=tokenize) for messages in many]
        if return_dict and tokenize:
            return _encoded(found, one=one)
        return found[0] if one else found

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The ids of one or more tokens, spelled as in the vocabulary; None for an unknown token."""
        return self._tokenizer.id_of(tokens) if isinstance(tokens, str) else [self._tokenizer.id_of(t) for t in tokens]

    def convert_ids_to_tokens(self, ids: int | Iterable[int]) -> Any:
        """The vocabulary's spellings of one or more ids."""
        return self._tokenizer.spelling(ids) if isinstance(ids, int) else [self._tokenizer.spelling(i) for i in ids]

    def __len__(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def vocab_size(self) -> int:
        """Number of ids, including added tokens."""
        return self._tokenizer.vocab_size

    @property
    def model_max_length(self) -> int:
        """Maximum number of tokens of a prompt and its reply."""
        return self._builder.limits.max_model_tokens

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins prompts."""
        return self._tokenizer.bos_id

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a turn."""
        return self._tokenizer.eos_id

    @property
    def bos_token(self) -> str | None:
        """Spelling of `bos_token_id`."""
        return self._spelled(self._tokenizer.bos_id)

    @property
    def eos_token(self) -> str | None:
        """Spelling of `eos_token_id`."""
        return self._spelled(self._tokenizer.eos_id)

    @property
    def all_special_ids(self) -> list[int]:
        """Control tokens, which `skip_special_tokens` leaves out."""
        return sorted(each for each in self._tokenizer.added_ids if self._tokenizer.is_control(each))

    @property
    def chat_template(self) -> str | None:
        """The source of the template; None if the model has none."""
        template = self._builder.text.template
        return None if template is None else template.source

    def _spelled(self, token_id: int | None) -> str | None:
        return None if token_id is None else self._tokenizer.spelling(token_id)

    def _prompt(self, messages: Sequence[ChatMessage], fields: Mapping[str, Any], *, tokenize: bool) -> Any:
        given = {name: value for name, value in fields.items() if value is not None}
        body = {"messages": [dict(message) for message in messages], **given}
        request = checked_body(
            ChatCompletionRequest, body, self._builder.limits.max_model_tokens, IgnoredFields(refuse_unknown=True)
        )
        return list(self._builder.chat_prompt(request).ids) if tokenize else self._builder.chat_text(request)


def _encoded(found: list[Ids], *, one: bool) -> Encoded:
    masks = [[1] * len(ids) for ids in found]
    return Encoded(input_ids=found[0] if one else found, attention_mask=masks[0] if one else masks)


def _check_harmless(others: Mapping[str, Any]) -> None:
    """Raise for an unsupported or unknown argument."""
    for name, value in others.items():
        if name not in _HARMLESS:
            raise TypeError(f"the tokenizer does not have an argument {name}")
        if value is not None and value not in _HARMLESS[name]:
            raise RequestError(
                f"{name}={shown(value)}: texts are neither padded nor truncated, and ids are lists", param=name
            )
