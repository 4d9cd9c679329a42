"""A model of an S3-compatible store."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints, field_validator

from ballast_operator.api.base import ApiType, ObjectName, rules
from ballast_operator.api.sources.pulled_source import CLAIM_OR_FOLDER_RULE, Endpoint, KeptOnVolume

Quant = Annotated[str, StringConstraints(max_length=256, pattern=r"^\w[\w./-]*$")]


class CredentialsRef(ApiType):
    """A Secret with the keys AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if they are temporary, AWS_SESSION_TOKEN."""

    name: ObjectName = Field(description="Name of the Secret, in the same namespace.")


class S3Model(ApiType):
    """A model of an S3-compatible store, with the credentials."""

    bucket: Annotated[str, StringConstraints(max_length=63, pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")] = Field(
        description="Name of the bucket."
    )
    prefix: (
        Annotated[str, StringConstraints(max_length=150, pattern=r"^[A-Za-z0-9_.@+=-]+(/[A-Za-z0-9_.@+=-]+)*$")] | None
    ) = Field(default=None, description="Folder of the bucket that holds the model. Default: the whole bucket.")
    quant: Quant | None = Field(
        default=None,
        description="Quantisation, or the path of a GGUF file below the prefix. Needed if the prefix has several "
        "models; `ballast pull s3://bucket/prefix` lists them.",
    )
    endpoint: Endpoint | None = Field(
        default=None,
        description="URL of the store, such as https://minio.example:9000. The bucket is part of the path. Default: "
        "AWS S3 of the region.",
    )
    region: Annotated[str, StringConstraints(max_length=64, pattern=r"^[a-z0-9][a-z0-9-]*$")] = Field(
        default="us-east-1", description="Region of the bucket."
    )
    credentials_secret_ref: CredentialsRef | None = Field(
        default=None,
        description="Secret with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if needed, AWS_SESSION_TOKEN. Only the "
        "downloading pod gets it; the operator never reads it. Not needed for public buckets and for pods with an "
        "identity of the cloud.",
    )

    @property
    def name(self) -> str:
        """The model's name, as `ballast pull` and `ballast serve` take it."""
        folder = f"/{self.prefix}" if self.prefix is not None else ""
        return f"s3://{self.bucket}{folder}{f':{self.quant}' if self.quant is not None else ''}"

    @property
    def served_name(self) -> str:
        """The name for clients."""
        return self.name

    @field_validator("prefix", "quant")
    @classmethod
    def _no_parent_folders(cls, text: str | None) -> str | None:
        if text is not None and (not text.isascii() or {".", ".."} & set(text.split("/"))):
            raise ValueError(f"{text}: no part may be . or .., and it must be ASCII")
        return text


class S3Source(S3Model, KeptOnVolume):
    """A model of an S3-compatible store, and its volume."""

    model_config = ConfigDict(json_schema_extra=rules(CLAIM_OR_FOLDER_RULE))
