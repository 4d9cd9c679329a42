"""A model of a hub, which the operator has pulled onto a volume before engines start."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator

from ballast_operator.api.base import ApiType, ConfigKey, ObjectName, cel, exactly_one, rules

_PART = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-\d{5}\.gguf")

QUANT_OR_FILES = "exactly one of quant and files must be set"
CLAIM_OR_FOLDER = "exactly one of pvc and hostPath must be set"
ONE_MODEL = "files must be the shards of one model"

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


class PulledClaim(ApiType):
    """A claim that models are pulled onto."""

    claim_name: ObjectName = Field(
        description="PersistentVolumeClaim that the model is pulled onto; engines read it. Several models may share it."
    )


class PulledFolder(ApiType):
    """A directory of one node that models are pulled into."""

    path: Annotated[str, StringConstraints(max_length=4096, pattern=r"^/[^:]*$")] = Field(
        description="Absolute directory on the node, which user 10001 may write to. Needs "
        "scheduling.nodeSelector with kubernetes.io/hostname, and the operator's --allowed-host-path."
    )


class HuggingFaceSource(ApiType):
    """Which model of a hub, and where it is kept."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(exactly_one("quant", "files"), QUANT_OR_FILES), cel(exactly_one("pvc", "hostPath"), CLAIM_OR_FOLDER)
        )
    )

    repo: Annotated[str, StringConstraints(max_length=193, pattern=f"^{_PART}/{_PART}$")] = Field(
        description="Repository on the hub, such as unsloth/DeepSeek-V3.1-GGUF."
    )
    quant: Annotated[str, StringConstraints(max_length=256, pattern=r"^\w[\w./-]*$")] | None = Field(
        default=None, description="Quantisation, such as Q4_K_M, as `ballast pull REPO` lists them."
    )
    files: Annotated[list[GgufFile], Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="GGUF files of one model by their paths. One shard is enough: the others come along."
    )
    revision: Annotated[str, StringConstraints(max_length=256, pattern=r"^\w[\w./-]*$")] = Field(
        default="main", description="Branch, tag or commit. Only a commit always means the same files."
    )
    endpoint: Annotated[str, StringConstraints(max_length=1024, pattern=r"^https?://[^\s/@]+(/[^\s@]*)?$")] = Field(
        default="https://huggingface.co", description="URL of the hub, or of a mirror."
    )
    token_secret_ref: TokenRef | None = Field(
        default=None,
        description="Secret with the hub's token, for repositories that ask who pulls. It is given to the pulling pod "
        "alone, and never read by the operator.",
    )
    pvc: PulledClaim | None = Field(default=None, description="A PersistentVolumeClaim.")
    host_path: PulledFolder | None = Field(default=None, description="A directory of one node.")

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
    def _no_way_up(cls, text: str | None) -> str | None:
        if text is not None and (".." in text or not text.isascii()):
            raise ValueError(f"{text}: dots must not follow each other, and letters are those of ASCII")
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
    def _one_of_each(self) -> HuggingFaceSource:
        if (self.quant is None) == (self.files is None):
            raise ValueError(QUANT_OR_FILES)
        if (self.pvc is None) == (self.host_path is None):
            raise ValueError(CLAIM_OR_FOLDER)
        return self
