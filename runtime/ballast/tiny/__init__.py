"""Small models: the built-in trained one, and random ones of every architecture for tests."""

from ballast.tiny.builtin import BUILT_IN, write_built_in
from ballast.tiny.model import TinyModel, write_tiny_model
from ballast.tiny.presets import BALLAST_TINY, K2, V2, V2_LITE, V3
from ballast.tiny.shape import TinyShape, TinyYarn

__all__ = [
    "BALLAST_TINY",
    "BUILT_IN",
    "K2",
    "V2",
    "V2_LITE",
    "V3",
    "TinyModel",
    "TinyShape",
    "TinyYarn",
    "write_built_in",
    "write_tiny_model",
]
