"""The part of the spec for the engine's settings."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator

from ballast_operator.api.base import ApiType, ConfigKey, ObjectName, cel, exactly_one, rules
from ballast_operator.folders import MODEL_DIRECTORY

MAX_TOKENS = 2**30

_PRODUCT = "self.maxBatchSize * self.maxNewTokens"
REPLIES_RULE = f"!has(self.maxNewTokens) || {_PRODUCT} < {MAX_TOKENS}"
REPLIES_MESSAGE = (
    f"max_batch_size * max_new_tokens = %d * %d = %d must be less than {MAX_TOKENS}, the largest cache_lens; "
    "the largest maxNewTokens that passes is %d"
)
CACHE_RULE = (
    f"!has(self.cacheLens) || !has(self.maxNewTokens) || {_PRODUCT} >= {MAX_TOKENS} || self.cacheLens > {_PRODUCT}"
)
"""If REPLIES_RULE fails, no cache would pass, so this rule reports nothing."""
CACHE_MESSAGE = (
    "cache_lens (%d) must be greater than max_batch_size * max_new_tokens = %d * %d = %d; "
    "the smallest cacheLens that passes is %d"
)

BLOCK_TOKENS = 32
"""Tokens of a block of the server's KV cache (--block_tokens)."""
BLOCK_RULE = f"!has(self.cacheLens) || has(self.maxNewTokens) || self.cacheLens >= self.maxBatchSize * {BLOCK_TOKENS}"
BLOCK_MESSAGE = (
    f"cache_lens (%d) holds no block of {BLOCK_TOKENS} tokens for each of max_batch_size = %d requests; "
    "without max_new_tokens, the smallest cacheLens that passes is %d"
)

EXACTLY_ONE_FIELD = "exactly one of configMapRef and inline must be set"

RESERVED_ARGUMENTS = (
    "host",
    "port",
    "admin_port",
    "gguf_path",
    "model_path",
    "max_batch_size",
    "max_new_tokens",
    "cache_lens",
    "chunk_size",
    "prefill_chunk_size",
    "max_stall_ms",
    "backend_type",
    "drain_timeout_s",
    "log_format",
    "api_key_file",
    "optimize_config_path",
    "packed_dir",
    "kv_disk_dir",
    "force_think",
    "no_force_think",
    "tls_cert_file",
    "tls_key_file",
    "root_path",
    "config",
)
"""Options of `ballast serve` that the operator sets, and options that would break its probes."""
OPERATORS_OPTIONS = tuple(name for name in RESERVED_ARGUMENTS if not name.startswith("no_"))
"""The same without the opposites of flags."""
RESERVED_RULE = (
    "self.all(word, !word.startsWith('--') || "
    f"!{list(RESERVED_ARGUMENTS)}.exists(name, name.startsWith(word.split('=')[0].substring(2).replace('-', '_'))))"
)
"""Abbreviations are rejected too: the server does not know them, so the pod could not start."""

FILE_ARGUMENTS = ("chat_template", "expert_profile")
"""Options of `ballast serve` that name a file to read and that users may set. A value without a slash is the name of a
template."""
_FILES = "|".join(name.replace("_", "[-_]") for name in FILE_ARGUMENTS)
_FILE_ARGUMENT = rf"\n--({_FILES})(=|\n)"
_MODELS_FILE = rf"([^-/\n][^/\n]*|{MODEL_DIRECTORY}/[^\n]*)\n"
_JOINED = "('\\n' + self.join('\\n\\n') + '\\n')"
FILES_RULE = (
    f"{_JOINED}.findAll(r'{_FILE_ARGUMENT}').size() == {_JOINED}.findAll(r'{_FILE_ARGUMENT}\\n?{_MODELS_FILE}').size() "
    "&& !self.exists(word, word.matches('(^|=|/)[.][.](/|$)'))"
)
"""The value of each such option is a name, or a path below the model's directory."""
FILES_MESSAGE = (
    f"extraArgs must not read files outside {MODEL_DIRECTORY}, where model.source is mounted: "
    f"{', '.join('--' + name for name in FILE_ARGUMENTS)} take a path below it"
)


class ConfigMapKeyRef(ApiType):
    """One key of a ConfigMap."""

    name: ObjectName = Field(description="Name of the ConfigMap, in the namespace of the InferenceService.")
    key: ConfigKey = Field(description="Key whose value is used.")


class PlacementRules(ApiType):
    """Rules that place tensors. Exactly one field is set."""

    model_config = ConfigDict(json_schema_extra=rules(cel(exactly_one("configMapRef", "inline"), EXACTLY_ONE_FIELD)))

    config_map_ref: ConfigMapKeyRef | None = Field(
        default=None, description="A ConfigMap. It is read when a pod starts; a change of it restarts nothing."
    )
    inline: Annotated[str, StringConstraints(min_length=1, max_length=65536)] | None = Field(
        default=None, description="The rules as YAML. A change restarts the pods."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> PlacementRules:
        if (self.config_map_ref is None) == (self.inline is None):
            raise ValueError(EXACTLY_ONE_FIELD)
        return self


class Engine(ApiType):
    """Settings of the engine."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                REPLIES_RULE,
                f"max_batch_size * max_new_tokens must be less than {MAX_TOKENS}",
                f"'{REPLIES_MESSAGE}'.format([self.maxBatchSize, self.maxNewTokens, {_PRODUCT}, "
                f"{MAX_TOKENS - 1} / self.maxBatchSize])",
                ".maxNewTokens",
            ),
            cel(
                CACHE_RULE,
                "cache_lens must be greater than max_batch_size * max_new_tokens",
                f"'{CACHE_MESSAGE}'.format([self.cacheLens, self.maxBatchSize, self.maxNewTokens, {_PRODUCT}, "
                f"{_PRODUCT} + 1])",
                ".cacheLens",
            ),
            cel(
                BLOCK_RULE,
                "cache_lens must hold a block for each of max_batch_size requests",
                f"'{BLOCK_MESSAGE}'.format([self.cacheLens, self.maxBatchSize, self.maxBatchSize * {BLOCK_TOKENS}])",
                ".cacheLens",
            ),
            cel(
                "self.backendType == 'ktransformers' || self.chunkSize >= self.maxBatchSize",
                "chunk_size must be at least max_batch_size: every request that decodes takes one token per step",
                field_path=".chunkSize",
            ),
            cel(
                "!has(self.prefillChunkSize) || self.prefillChunkSize >= self.chunkSize",
                "prefill_chunk_size must be at least chunk_size",
                field_path=".prefillChunkSize",
            ),
        )
    )

    max_batch_size: int = Field(
        default=4, ge=1, le=4096, description="Maximum number of requests in one step (--max_batch_size)."
    )
    max_new_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description="Maximum tokens that one request may generate (--max_new_tokens). Default: as many as cacheLens "
        "holds for a full batch, up to the model's context and 32768.",
    )
    cache_lens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description="KV tokens that all requests share (--cache_lens); greater than maxBatchSize * maxNewTokens. "
        "Default: depends on the pod's memory.",
    )
    chunk_size: int = Field(
        default=256,
        ge=1,
        le=MAX_TOKENS,
        description="Maximum tokens in a step in which requests decode (--chunk_size).",
    )
    prefill_chunk_size: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description="Maximum prompt tokens in a step in which no request decodes (--prefill_chunk_size). "
        "Default: chosen at start.",
    )
    max_stall_ms: int | None = Field(
        default=None,
        ge=0,
        le=3_600_000,
        description="Maximum milliseconds that prompts may add to a step in which requests decode (--max_stall_ms). "
        "Default: derived from measured costs.",
    )
    force_think: bool = Field(
        default=False, description="Begin every reply inside <think>, as R1 needs it (--force_think)."
    )
    backend_type: Literal["balance_serve", "ktransformers"] = Field(
        default="balance_serve",
        description="balance_serve: continuous batching; ktransformers: one request at a time (--backend_type).",
    )
    placement_rules: PlacementRules | None = Field(
        default=None,
        description="Placement of routed experts on devices (--optimize_config_path). Without it the plan decides.",
    )
    extra_args: list[Annotated[str, StringConstraints(min_length=1, max_length=512)]] = Field(
        default_factory=list,
        max_length=32,
        description="Additional arguments of `ballast serve`, one word per item. Options that other fields set are "
        "rejected, and so are TLS, a root path, a file of options, and files outside the model's source (mounted as "
        f"{MODEL_DIRECTORY}).",
        json_schema_extra=rules(
            cel(
                RESERVED_RULE,
                f"extraArgs must not set {', '.join('--' + name for name in RESERVED_ARGUMENTS)}: "
                "other fields of the spec do, or the operator depends on it",
            ),
            cel(FILES_RULE, FILES_MESSAGE),
        ),
    )
    drain_timeout_seconds: int = Field(
        default=60,
        ge=0,
        le=3600,
        description="Maximum time that a pod waits for its running requests when it stops (--drain_timeout_s).",
    )
    load_timeout_seconds: int | None = Field(
        default=None,
        ge=30,
        le=86400,
        description="Maximum time from a container's start to its first token. Default: 5 minutes plus one second per "
        "100 MiB of resources.memory.",
    )

    @model_validator(mode="after")
    def _relations(self) -> Engine:
        cache, new_tokens = self.cache_lens, self.max_new_tokens
        least = self.max_batch_size * BLOCK_TOKENS
        if cache is not None and new_tokens is None and cache < least:
            raise ValueError(BLOCK_MESSAGE % (cache, self.max_batch_size, least))
        if new_tokens is not None:
            product = self.max_batch_size * new_tokens
            if product >= MAX_TOKENS:
                largest = (MAX_TOKENS - 1) // self.max_batch_size
                raise ValueError(REPLIES_MESSAGE % (self.max_batch_size, new_tokens, product, largest))
            if cache is not None and cache <= product:
                raise ValueError(CACHE_MESSAGE % (cache, self.max_batch_size, new_tokens, product, product + 1))
        if self.backend_type == "balance_serve" and self.chunk_size < self.max_batch_size:
            raise ValueError(f"chunk_size ({self.chunk_size}) must be at least max_batch_size ({self.max_batch_size})")
        if self.prefill_chunk_size is not None and self.prefill_chunk_size < self.chunk_size:
            raise ValueError(
                f"prefill_chunk_size ({self.prefill_chunk_size}) must be at least chunk_size ({self.chunk_size})"
            )
        return self

    @field_validator("extra_args")
    @classmethod
    def _not_reserved(cls, words: list[str]) -> list[str]:
        for word in words:
            given = word.partition("=")[0].removeprefix("--").replace("-", "_")
            name = next((name for name in RESERVED_ARGUMENTS if name.startswith(given)), None)
            if word.startswith("--") and name is not None:
                raise ValueError(
                    f"extraArgs must not set --{name}: another field of the spec does, or the operator depends on it"
                )
        for name, value in _files(words):
            if "/" in value and not posixpath.normpath(value).startswith(f"{MODEL_DIRECTORY}/"):
                raise ValueError(f"--{name} {value}: {FILES_MESSAGE}")
        return words


def _files(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and value of each argument that names a file to read."""
    for word, following in pairwise([*words, ""]):
        if found := re.fullmatch(rf"--({_FILES})(?:=(.*))?", word, re.DOTALL):
            yield found[1], following if found[2] is None else found[2]
