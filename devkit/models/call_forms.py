"""Every form of tool calls: what its grammar allows, and what its reader reads.

Marks stand for the tokens of calls in the texts here, so that a value may spell such a token in letters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ballast.engine.sampling.constraint import ConstraintState
from ballast.families.family import CallStyle
from ballast.families.marks import Mark
from ballast.families.registry import FAMILIES
from ballast.grammar.calls.tools import tool_calls
from ballast.grammar.compiler import GrammarCompiler
from ballast.text.calls.dsml_calls import BLOCKS
from ballast.text.calls.forms import reader_of
from ballast.text.calls.reader import ReadCalls
from ballast.text.marks import Start
from ballast.text.output_parser import OutputParser
from ballast.text.reply_parts import Message
from devkit.models.vocabulary import byte_tokenizer

Tools = Sequence[Mapping[str, Any]]
_MARK = re.compile(f"([{''.join(Mark)}])")
C, END_C, D = Mark.CALL, Mark.END_CALL, Mark.TAG


class CallForm:
    """One form, with a vocabulary of single bytes and the family's tokens."""

    def __init__(self, family: str, style: CallStyle) -> None:
        self.style = style
        self._family = FAMILIES[family]
        self.marks: dict[str, int] = {}
        """Mark → its token, once `compiler` has been used."""

    @cached_property
    def compiler(self) -> GrammarCompiler:
        """Compiles for the vocabulary."""
        tokens = sorted({*self._family.reply.spellings.values(), *self._family.vocabulary})
        self.tokenizer = byte_tokenizer(user_defined=tokens)
        for mark, spelling in self._family.reply.calling.items():
            self.marks[mark] = self.tokenizer.id_of(spelling) or 0
        return GrammarCompiler(self.tokenizer)

    def ids(self, text: str) -> list[int]:
        """The tokens of `text`."""
        pieces = [piece for piece in _MARK.split(text) if piece]
        return [
            token
            for piece in pieces
            for token in (
                [self.marks[piece]] if piece in self.marks else self.tokenizer.encode(piece, parse_special=False)
            )
        ]

    def start(self, tools: Tools, **options: Any) -> ConstraintState:
        """The grammar of calls before the first token."""
        compiler = self.compiler
        return compiler.compile(tool_calls(tools, self.tokenizer, self.style, **options)).start()

    def allowed(self, state: ConstraintState) -> np.ndarray:
        """[vocabulary] bool."""
        mask = state.allowed()
        assert mask is not None
        return np.unpackbits(mask, count=self.tokenizer.vocab_size, bitorder="little").view(np.bool_)

    def refused_at(self, tools: Tools, text: str, **options: Any) -> str | None:
        """What the grammar allows of a whole reply; None: all of it."""
        state, ids = self.start(tools, **options), self.ids(text)
        for taken, token in enumerate((*ids, min(self.tokenizer.eos_ids))):
            if not self.allowed(state)[token]:
                return self.tokenizer.decode(ids[:taken], skip_control=False)
            state.accept(token)
        return None

    def reader(self, tools: Tools) -> ReadCalls:
        """Makes readers of replies to requests with `tools`."""
        return reader_of(self._family.reply.read_style or self.style, tools)

    def read(self, tools: Tools, pieces: Sequence[str], *, is_cut: bool = False) -> Message:
        """The reply that arrives in `pieces`."""
        parser, message = OutputParser(Start.CONTENT, self.reader(tools), new_id=lambda: "call"), Message()
        for piece in pieces:
            message.take(parser.push(piece))
        message.take(parser.finish(is_cut=is_cut))
        return message

    def write(self, name: str, values: Mapping[str, Any]) -> str:
        """A call as the family's template writes it."""
        arguments = json.dumps(values, ensure_ascii=False)
        bare = {
            key: each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for key, each in values.items()
        }
        match self.style:
            case "keyed":
                if Mark.CALLS in self._family.reply.spellings:
                    pairs = [f"{Mark.KEY}{k}{Mark.END_KEY}\n{Mark.VALUE}{v}{Mark.END_VALUE}\n" for k, v in bare.items()]
                    inner = f"{C}{name}{Mark.SEPARATOR}\n{''.join(pairs)}{END_C}"
                    return f"{Mark.CALLS}\n{inner}\n{Mark.END_CALLS}"
                pairs = [f"{Mark.KEY}{k}{Mark.END_KEY}{Mark.VALUE}{v}{Mark.END_VALUE}" for k, v in bare.items()]
                return f"{C}{name}{''.join(pairs)}{END_C}"
            case "tagged":
                tags = [f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in bare.items()]
                return f"{C}\n<function={name}>\n{''.join(tags)}</function>\n{END_C}"
            case "function":
                tags = [f"<parameter={k}>{v}</parameter>\n" for k, v in bare.items()]
                return f"{C}\n<function={name}>\n{''.join(tags)}</function>\n{END_C}"
            case "invoke":
                tags = [f'<parameter name="{k}">{v}</parameter>\n' for k, v in bare.items()]
                return f'{C}\n<invoke name="{name}">\n{"".join(tags)}</invoke>\n{END_C}'
            case "dsml" | "dsml_tools":
                kinds = {key: "true" if isinstance(each, str) else "false" for key, each in values.items()}
                tags = [f'<{D}parameter name="{k}" string="{kinds[k]}">{v}</{D}parameter>\n' for k, v in bare.items()]
                inner = f'<{D}invoke name="{name}">\n{"".join(tags)}</{D}invoke>'
                return f"\n\n<{D}{BLOCKS[self.style]}>\n{inner}\n</{D}{BLOCKS[self.style]}>"
            case "json":
                return f'{C}\n{{"name": "{name}", "arguments": {arguments}}}\n{END_C}'
            case "named":
                return f"{C}{name}{Mark.SEPARATOR}{arguments}"
            case "numbered":
                inner = f"functions.{name}:0{Mark.SEPARATOR}{arguments}"
            case "fenced":
                inner = f"function{Mark.SEPARATOR}{name}\n```json\n{arguments}\n```"
            case _:
                inner = f"{name}{Mark.SEPARATOR}{arguments}"
        return f"{Mark.CALLS}{C}{inner}{END_C}{Mark.END_CALLS}"


FORMS: Mapping[str, CallForm] = {
    "Qwen3-Coder": CallForm("qwen3", "tagged"),
    "Qwen3": CallForm("qwen3", "json"),
    "Step": CallForm("step", "tagged"),
    "GLM": CallForm("glm", "keyed"),
    "Laguna": CallForm("laguna", "keyed"),
    "Hunyuan 3": CallForm("hunyuan", "keyed"),
    "MiniMax-M2": CallForm("minimax", "invoke"),
    "MiMo-V2": CallForm("mimo", "function"),
    "Kimi": CallForm("kimi", "numbered"),
    "Mistral": CallForm("mistral", "named"),
    "DeepSeek V3": CallForm("deepseek", "fenced"),
    "DeepSeek V3.1": CallForm("deepseek", "plain"),
    "DeepSeek V3.2": CallForm("deepseek32", "dsml"),
    "DeepSeek V4": CallForm("deepseek4", "dsml_tools"),
}


def tool(parameters: Mapping[str, Any], *, strict: bool = False, name: str = "f") -> list[dict[str, Any]]:
    """A request's tools: one function."""
    return [{"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}]
