"""The tiny models' tokenizers: byte-level BPE trained on corpus.txt, with the real models' special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ballast.families.registry import RELEASES, source_of
from ballast.text.gguf_vocab import COMPOSED_FIRST, SPLITS, TokenType

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
_NUM_LEARNT = 1024
"""Number of BPE tokens: 256 bytes, learnt tokens, and for V3 its first three special tokens."""

# V3's added tokens in the order of their ids. Only those marked True are `special`: the others appear in decoded text.
_V3_ADDED = (
    ("<think>", False),
    ("</think>", False),
    ("<｜fim▁hole｜>", False),
    ("<｜fim▁begin｜>", False),
    ("<｜fim▁end｜>", False),
    ("<｜User｜>", False),
    ("<｜Assistant｜>", False),
    ("<|EOT|>", True),
    ("<｜tool▁calls▁begin｜>", False),
    ("<｜tool▁calls▁end｜>", False),
    ("<｜tool▁call▁begin｜>", False),
    ("<｜tool▁call▁end｜>", False),
    ("<｜tool▁outputs▁begin｜>", False),
    ("<｜tool▁outputs▁end｜>", False),
    ("<｜tool▁output▁begin｜>", False),
    ("<｜tool▁output▁end｜>", False),
    ("<｜tool▁sep｜>", False),
)

# As in the real models: system texts come first, the reasoning of earlier turns is dropped, and after tool outputs the
# model continues without a new assistant turn. Unlike the real ones, this template lists the tools.
_V3_TEMPLATE = (
    "{{ bos_token }}"
    "{{ messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | join('\\n\\n') }}"
    "{% if tools %}"
    "{{ '\\n\\n' if messages | selectattr('role', 'equalto', 'system') | list else '' }}"
    "{{ '## Tools\\n\\nCall a tool when the request needs it.\\n' }}"
    "{% for tool in tools %}{{ '\\n' + (tool.function or tool) | tojson }}{% endfor %}"
    "{% endif %}"
    "{% set state = namespace(after_tool=false) %}"
    "{% for message in messages %}"
    "{% if state.after_tool and message.role != 'tool' %}{{ '<｜tool▁outputs▁end｜>' }}{% endif %}"
    "{% if message.role == 'user' %}{{ '<｜User｜>' + message.content }}"
    "{% elif message.role == 'assistant' %}"
    "{% if not state.after_tool %}{{ '<｜Assistant｜>' }}{% endif %}"
    "{{ (message.content or '').split('</think>')[-1] }}"
    "{% if message.tool_calls %}"
    "{{ '<｜tool▁calls▁begin｜>' }}"
    "{% for call in message.tool_calls %}"
    "{{ '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name }}"
    "{{ '\\n```json\\n' + call.function.arguments + '\\n```<｜tool▁call▁end｜>' }}"
    "{% if not loop.last %}{{ '\\n' }}{% endif %}"
    "{% endfor %}"
    "{{ '<｜tool▁calls▁end｜>' }}"
    "{% endif %}"
    "{{ eos_token }}"
    "{% elif message.role == 'tool' %}"
    "{{ '\\n' if state.after_tool else '<｜tool▁outputs▁begin｜>' }}"
    "{{ '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}"
    "{% endif %}"
    "{% if message.role != 'system' %}{% set state.after_tool = message.role == 'tool' %}{% endif %}"
    "{% endfor %}"
    "{% if state.after_tool %}{{ '<｜tool▁outputs▁end｜>' }}"
    "{% elif add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
    "{% if thinking and add_generation_prompt %}{{ '<think>\\n' }}{% endif %}"
)

_V2_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content + '\\n\\n' }}"
    "{% elif message.role == 'user' %}{{ 'User: ' + message.content + '\\n\\n' }}"
    "{% elif message.role == 'assistant' %}{{ 'Assistant: ' + message.content + eos_token }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


Family = Literal[
    "v2",
    "v3",
    "v32",
    "v4",
    "kimi",
    "qwen3",
    "qwen35",
    "qwen38",
    "glm",
    "glm53",
    "minimax",
    "hy3",
    "gpt-oss",
    "step",
    "mimo",
    "laguna",
    "mistral",
]


@dataclass(frozen=True, slots=True)
class _OfFamily:
    """The tokens of a family other than DeepSeek. Its models do not add BOS."""

    release: str
    """The release whose template is in the file."""
    pre: str
    bos: str
    eos: str
    roles: tuple[str, ...]
    """Tokens around messages, in addition to the tokens that divide replies."""


_OTHERS: dict[str, _OfFamily] = {
    "kimi": _OfFamily(
        "kimi-k2", "kimi-k2", "[BOS]", "[EOS]", ("<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>")
    ),
    "qwen3": _OfFamily(
        "qwen3", "qwen2", "<|endoftext|>", "<|im_end|>", ("<|im_start|>", "<tool_response>", "</tool_response>")
    ),
    "qwen35": _OfFamily(
        "qwen3.5", "qwen35", "<|endoftext|>", "<|im_end|>", ("<|im_start|>", "<tool_response>", "</tool_response>")
    ),
    "qwen38": _OfFamily(
        "qwen3.8", "qwen35", "<|endoftext|>", "<|im_end|>", ("<|im_start|>", "<tool_response>", "</tool_response>")
    ),
    "glm": _OfFamily(
        "glm-4.7",
        "glm4",
        "[gMASK]",
        "<|endoftext|>",
        ("<|system|>", "<|user|>", "<|assistant|>", "<tool_response>", "</tool_response>"),
    ),
    "minimax": _OfFamily("minimax-m2", "minimax-m2", "]~!b[", "[e~[", ("]~b]",)),
    "hy3": _OfFamily(
        "hy3",
        "hunyuan-dense",
        "<｜hy_begin_of_sentence:opensource｜>",
        "<｜hy_eos:opensource｜>",
        (
            *("<｜hy_User:opensource｜>", "<｜hy_Assistant:opensource｜>", "<｜reasoning_mode:opensource｜>"),
            *("<tool_responses:opensource>", "</tool_responses:opensource>"),
            *("<tool_response:opensource>", "</tool_response:opensource>"),
        ),
    ),
    "gpt-oss": _OfFamily("gpt-oss", "gpt-4o", "<|startoftext|>", "<|endoftext|>", ()),
    "step": _OfFamily(
        "step-3.5-flash", "deepseek-v3", BOS, "<|im_end|>", ("<|im_start|>", "<tool_response>", "</tool_response>")
    ),
    "mistral": _OfFamily(
        "mistral-small-4",
        "tekken",
        "<s>",
        "</s>",
        tuple(
            f"[{slash}{name}]"
            for name in ("INST", "SYSTEM_PROMPT", "AVAILABLE_TOOLS", "TOOL_RESULTS", "MODEL_SETTINGS")
            for slash in ("", "/")
        ),
    ),
    "mimo": _OfFamily(
        "mimo-v2.5", "qwen2", "<|endoftext|>", "<|im_end|>", ("<|im_start|>", "<tool_response>", "</tool_response>")
    ),
    "laguna": _OfFamily(
        "laguna-s-2.1",
        "laguna",
        "〈|EOS|〉",
        "〈|EOS|〉",
        (
            *("<system>", "</system>", "<user>", "</user>", "<assistant>", "</assistant>"),
            *("<tool_response>", "</tool_response>"),
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class TinyTokenizer:
    """A `tokenizers` backend with the metadata around it. All ids 0…num_tokens-1 have a token."""

    backend: tokenizers.Tokenizer
    pre: str
    """`tokenizer.ggml.pre`."""
    pad: str
    chat_template: str
    bos: str = BOS
    eos: str = EOS
    adds_bos: bool = True

    @property
    def num_tokens(self) -> int:
        return int(self.backend.get_vocab_size())

    def token_id(self, text: str) -> int:
        found = self.backend.token_to_id(text)
        assert found is not None, text
        return int(found)

    def tokens(self) -> list[str]:
        """Every token's spelling in the byte alphabet, by id."""
        by_id = {number: text for text, number in self.backend.get_vocab().items()}
        return [by_id[number] for number in range(len(by_id))]

    def merges(self) -> list[str]:
        """Every merge as two spellings with a space between, best first."""
        return [" ".join(pair) for pair in _model_json(self.backend)["merges"]]

    def token_types(self) -> list[TokenType]:
        """Token types as in conversions: a token that looks like a control token is one, even if tokenizer.json
        disagrees."""
        types = [TokenType.NORMAL] * self.num_tokens
        for number, added in self.backend.get_added_tokens_decoder().items():
            is_control = added.special or added.content.startswith(("<｜", "<|", "<sop", "]~", "["))
            types[number] = TokenType.CONTROL if is_control else TokenType.USER_DEFINED
        return types

    def config(self, context_length: int) -> dict[str, Any]:
        """tokenizer_config.json."""
        return {
            "add_bos_token": self.adds_bos,
            "add_eos_token": False,
            "bos_token": self.bos,
            "chat_template": self.chat_template,
            "clean_up_tokenization_spaces": False,
            "eos_token": self.eos,
            "model_max_length": context_length,
            "pad_token": self.pad,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": None,
        }


def make_tokenizer(family: Family) -> TinyTokenizer:
    """The random models' tokenizer."""
    texts = Path(__file__).with_name("corpus.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    if family == "v2" or family == "v3":
        return train_tokenizer(family, texts, _NUM_LEARNT)
    if family in ("v32", "v4"):
        talking = train_tokenizer("v3", texts, _NUM_LEARNT)
        talking.backend.add_tokens([AddedToken("｜DSML｜", special=False, normalized=True)])
        if family == "v32":
            return replace(talking, chat_template=source_of(RELEASES["deepseek-v3.2"][1]))
        talking.backend.add_tokens([AddedToken("<｜latest_reminder｜>", special=False, normalized=True)])
        return replace(talking, chat_template=source_of(RELEASES["deepseek-v4"][1]))
    if family == "glm53":
        template = Path(__file__).with_name("glm-5.3-flash.jinja").read_text(encoding="utf-8")
        return replace(make_tokenizer("glm"), chat_template=template)
    own = _OTHERS[family]
    form, release = RELEASES[own.release]
    backend = _train(SPLITS[own.pre], [], texts, _NUM_LEARNT)
    if own.pre in COMPOSED_FIRST:
        backend.normalizer = normalizers.NFC()
    backend.add_special_tokens([_special(text) for text in dict.fromkeys((own.bos, own.eos))])
    for text in dict.fromkeys((*own.roles, *form.vocabulary, *form.ends, *form.reply.spellings.values())):
        backend.add_tokens([AddedToken(text, special=False, normalized=True)])
    return TinyTokenizer(backend, own.pre, own.eos, source_of(release), bos=own.bos, eos=own.eos, adds_bos=False)


def tokenizer_of(backend: tokenizers.Tokenizer) -> TinyTokenizer:
    """A tokenizer with the V3 metadata around a trained backend."""
    return TinyTokenizer(backend, "deepseek-v3", PAD, _V3_TEMPLATE)


def train_tokenizer(family: Literal["v2", "v3"], texts: Iterable[str], num_learnt: int) -> TinyTokenizer:
    """Learn `num_learnt` tokens from `texts`, which must be long enough.

    V2: BOS and EOS follow the learnt tokens. V3: BOS, EOS and padding come first, other special tokens last.
    """
    if family == "v2":
        backend = _train(SPLITS["deepseek-llm"], [], texts, num_learnt)
        backend.add_special_tokens([_special(BOS), _special(EOS)])
        return TinyTokenizer(backend, "deepseek-llm", EOS, _V2_TEMPLATE)
    backend = _train(SPLITS["deepseek-v3"], [_special(BOS), _special(EOS), _special(PAD)], texts, num_learnt)
    for text, special in _V3_ADDED:
        backend.add_tokens([AddedToken(text, special=special, normalized=True)])
    return tokenizer_of(backend)


def _train(
    splits: Sequence[str], first: list[AddedToken], texts: Iterable[str], num_learnt: int
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.Sequence([])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splits),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_learnt,
        special_tokens=first,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    assert backend.get_vocab_size() == num_learnt, "the texts are too short for this many tokens"
    return backend


def _special(text: str) -> AddedToken:
    return AddedToken(text, special=True, normalized=False)


def _model_json(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    model: dict[str, Any] = json.loads(backend.to_str())["model"]
    return model
