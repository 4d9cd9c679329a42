"""Tiny models that tests only read."""

from collections.abc import Callable

from ballast.tiny import TinyModel

MakeTiny = Callable[..., TinyModel]
"""By the arguments of `write_tiny_model` but for the folder."""
