"""What a pull can fail for, told apart by who must act."""

from __future__ import annotations

from ballast.errors import ConfigError, ModelError, OutOfMemoryError


class UnreachableError(ModelError):
    """The hub does not answer, or gives up in the middle."""


class WrongBytesError(ModelError):
    """The bytes that came are not those that the hub named."""


class TokenError(ConfigError):
    """The hub requires authentication, or denies access."""


class NotFoundError(ConfigError):
    """There is no such repository, revision or quantisation."""


class BusyError(ConfigError):
    """Another process fetches the same."""


class NotWritableError(ConfigError):
    """The folder of models cannot be written."""


class FullDiskError(OutOfMemoryError):
    """The folder of models has too little room."""
