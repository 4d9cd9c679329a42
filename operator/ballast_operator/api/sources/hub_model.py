"""A model of a hub: the fields that all hubs share."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator, model_validator

from ballast_operator.api.base import ApiType, ConfigKey, ObjectName, cel, exactly_one

_PART = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-\d{5}\.gguf")

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
"""Proxy variables for access to a hub, in upper or lower case."""

QUANT_OR_FILES = "exactly one of quant and files must be set"
ONE_MODEL = "files must be the shards of one model"

QUANT_OR_FILES_RULE = cel(exactly_one("quant", "files"), QUANT_OR_FILES)

Revision = Annotated[str, StringConstraints(max_length=256, pattern=r"^\w[\w./-]*$")]
GgufFile = Annotated[
    str,
    StringConstraints(
        min_length=6,
        max_length=512,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*\.gguf$",
    ),
]


class TokenRef(ApiType):
    """A key of a Secret."""

    name: ObjectName = Field(description="Name of the Secret, in the namespace of the InferenceService.")
    key: ConfigKey = Field(default="token", description="Key of the Secret whose value is the hub's token.")


class HubModel(ApiType):
    """One model of a repository."""

    repo: Annotated[str, StringConstraints(max_length=193, pattern=f"^{_PART}/{_PART}$")] = Field(
        description="Repository on the hub, such as unsloth/DeepSeek-V3.1-GGUF."
    )
    quant: Annotated[str, StringConstraints(max_length=256, pattern=r"^\w[\w./-]*$")] | None = Field(
        default=None, description="Quantisation, such as Q4_K_M, as `ballast pull REPO` lists them."
    )
    files: Annotated[list[GgufFile], Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="Paths of the GGUF files of one model. One shard is enough: the others are included."
    )
    revision: Revision = Field(
        default="main", description="Branch, tag or commit. Only a commit always has the same files."
    )

    token_secret_ref: TokenRef | None = Field(
        default=None,
        description="Secret with the hub's token, for repositories that need one. Only the downloading pod gets it; "
        "the operator never reads it.",
    )

    @property
    def name(self) -> str:
        """The model's name, as `ballast pull` and `ballast serve` take it."""
        return f"{self.repo}:{self.quant or (self.files or [''])[0]}@{self.revision}"

    @property
    def served_name(self) -> str:
        """The same without the revision, for clients."""
        return self.name.rpartition("@")[0]

    @field_validator("repo", "quant", "revision")
    @classmethod
    def _no_parent_folders(cls, text: str | None) -> str | None:
        if text is not None and (".." in text or not text.isascii()):
            raise ValueError(f"{text}: it must not contain '..' and must be ASCII")
        return text

    @field_validator("files")
    @classmethod
    def _of_one_model(cls, files: list[str] | None) -> list[str] | None:
        shards = [_SHARD.fullmatch(file) for file in files or []]
        stems = {file if shard is None else shard["stem"] for file, shard in zip(files or [], shards, strict=True)}
        if len(stems) > 1:
            raise ValueError(f"{ONE_MODEL}, and these are of {', '.join(sorted(stems))[:200]}")
        return files

    @model_validator(mode="after")
    def _quant_or_files(self) -> HubModel:
        if (self.quant is None) == (self.files is None):
            raise ValueError(QUANT_OR_FILES)
        return self
