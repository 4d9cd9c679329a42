"""The description of a model family, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, NamedTuple

from ballast.families.marks import Mark

Value = bool | int | float

REASONING_CHANNEL = "analysis"
CALL_CHANNEL = "commentary"
FINAL_CHANNEL = "final"
"""The channels of messages: reasoning; calls and texts that introduce them; the answer."""

CallStyle = Literal[
    "fenced",
    "plain",
    "either",
    "numbered",
    "json",
    "keyed",
    "tagged",
    "dsml",
    "dsml_tools",
    "invoke",
    "function",
    "named",
    "channels",
]
"""How calls are written between their marks: the name and a fence with JSON; the name, a separator and JSON; either of
them; `functions.NAME:N`, a separator and JSON; JSON with name and arguments; the name, and keys and values; tags that
are spelled out; tags with a mark in each, of all calls in `function_calls` or in `tool_calls`; invoke tags that are
spelled out, of all calls between two marks; function tags that are spelled out, with values directly between their
tags; the name, a separator and JSON, without a mark at the end; messages to the function, in a reply whose messages are
on channels."""


@dataclass(frozen=True, slots=True)
class Release:
    """Releases with the same template whose replies begin the same way."""

    name: str
    """Its name for `--chat_template`."""
    file: str
    """The template, in the family's folder `templates`."""
    thinks: bool = False
    """Whether a reply begins with reasoning when neither it nor the prompt has a tag."""
    options: Mapping[str, object] | None = None
    """Default values for variables of the template; a request may override them."""
    has_switch: bool = False
    """Whether the variables `thinking` and `enable_thinking` switch thinking on and off."""
    divides_content: bool = False
    """Whether it takes content with `</think>` apart itself: what is before the first one, from the last `<think>` on,
    is the reasoning, and what follows the last one the answer, both without line breaks at the division."""
    object_arguments: bool = False
    """Whether it goes through the arguments of calls; otherwise it writes them as JSON text."""
    architectures: tuple[str, ...] = ()
    """`general.architecture` of its models' files; empty: the family's."""


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """Structure of replies: the tokens that divide them, and the text between these."""

    spellings: Mapping[Mark, str]
    """How the vocabulary writes each token that the family has."""
    styles: tuple[tuple[str, CallStyle], ...] = ()
    """How calls are forced: the style of the first text that the template contains, otherwise `read_style`."""
    read_style: CallStyle | None = None
    """How calls are read, and held where the model is free to make one; None: as they are forced."""

    @property
    def thinking(self) -> Mapping[Mark, str]:
        """The tokens around the reasoning."""
        return {mark: text for mark, text in self.spellings.items() if mark in (Mark.THINK, Mark.END_THINK)}

    @property
    def calling(self) -> Mapping[Mark, str]:
        """The tokens of tool calls."""
        return {mark: text for mark, text in self.spellings.items() if mark not in (Mark.THINK, Mark.END_THINK)}

    @property
    def has_channels(self) -> bool:
        """Whether a reply is a sequence of messages, each on a channel: reasoning, answer and calls."""
        return self.read_style == "channels"

    @property
    def think_tags(self) -> tuple[str, str]:
        """The texts before and after the reasoning."""
        if not self.has_channels:
            return self.spellings[Mark.THINK], self.spellings[Mark.END_THINK]
        begin, message, end = (self.spellings[mark] for mark in (Mark.CHANNEL, Mark.MESSAGE, Mark.END))
        return f"{begin}{REASONING_CHANNEL}{message}", end

    @property
    def numbers_calls(self) -> bool:
        """Whether the model names its calls itself, `functions.NAME:N`."""
        return self.read_style == "numbered"

    def style_of(self, template: str) -> CallStyle:
        """How calls are written in conversations that `template` renders."""
        return next((style for text, style in self.styles if text in template), self.read_style or "plain")

    def read_style_of(self, template: str) -> CallStyle:
        """How calls are read in replies to what `template` renders."""
        return self.read_style or self.style_of(template)


class Dimensions(NamedTuple):
    """The dimensions that identify a model."""

    hidden: int
    ffn_dim: int
    """Width of a dense layer; 0 for a file that has none."""
    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    num_experts: int
    num_experts_used: int
    num_shared_experts: int
    expert_dim: int


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that is known by its dimensions. `values`: by GGUF key without prefix, those that a file may lack and
    those that tell models of the same dimensions apart."""

    name: str
    dimensions: Dimensions
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Family:
    """One family: its files and its text."""

    name: str
    """The name of its folder."""
    architecture: str
    """`general.architecture` of its files, unless a release names others."""
    models: tuple[KnownModel, ...]
    """Values that older conversions of its models lack."""
    releases: tuple[Release, ...]
    published: Mapping[str, str]
    """Fingerprint of a published template → name of the release whose template replaces it."""
    reply: ReplyForm
    vocabulary: tuple[str, ...]
    """Tokens that identify the family: no earlier family's vocabulary has all of them."""
    without_template: str | None = None
    """The release whose template a file without one gets, if several releases have its architecture."""
    ends: tuple[str, ...] = ()
    """Tokens that end a reply, in addition to those of the file."""
    never_ends: tuple[str, ...] = ()
    """Tokens that do not end a reply, even if the file declares them as end tokens."""

    def source(self, release: Release) -> str:
        """The text of a release's template."""
        return (files("ballast.families") / self.name / "templates" / release.file).read_text(encoding="utf-8")


def yarn_values(factor: float, beta_fast: float, log_multiplier: float | None) -> dict[str, Value]:
    """The keys of YaRN over 4096 positions. `log_multiplier` None: files need their own."""
    values: dict[str, Value] = {
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": 4096,
        "rope.scaling.yarn_beta_fast": beta_fast,
        "rope.scaling.yarn_beta_slow": 1.0,
    }
    return values if log_multiplier is None else values | {"rope.scaling.yarn_log_multiplier": log_multiplier}


def routing_values(gating: int, groups: tuple[int, int], scale: float, *, norm: bool) -> dict[str, Value]:
    """The keys of a router: SOFTMAX, SIGMOID or SOFTMAX_OF_CHOSEN, groups and groups used, scale of the weights,
    whether they sum to 1."""
    return {
        "expert_gating_func": gating,
        "expert_group_count": groups[0],
        "expert_group_used_count": groups[1],
        "expert_weights_norm": norm,
        "expert_weights_scale": scale,
    }


SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN, SQRT_SOFTPLUS = 1, 2, 3, 4
EPSILON = "attention.layer_norm_rms_epsilon"
THETA = "rope.freq_base"
