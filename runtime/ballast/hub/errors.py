"""Errors of a pull, by who must act."""

from __future__ import annotations

from ballast.errors import ConfigError, ModelError, OutOfMemoryError


class UnreachableError(ModelError):
    """The hub does not answer, or breaks off the transfer."""


class WrongBytesError(ModelError):
    """The received bytes do not match the hub's checksum."""


class TokenError(ConfigError):
    """The hub requires authentication, or denies access."""


class NotFoundError(ConfigError):
    """There is no such repository, revision or quantisation."""


class BusyError(ConfigError):
    """Another process downloads the same repository."""


class NotWritableError(ConfigError):
    """The folder of models cannot be written."""


class FullDiskError(OutOfMemoryError):
    """The folder of models has too little room."""
