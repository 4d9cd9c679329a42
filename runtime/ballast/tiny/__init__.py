"""Tiny models of the DeepSeek family with random weights: what the demo serves and the tests measure against."""

from ballast.tiny.model import TinyModel, write_tiny_model
from ballast.tiny.shape import K2, V2, V2_LITE, V3, TinyShape, TinyYarn

__all__ = ["K2", "V2", "V2_LITE", "V3", "TinyModel", "TinyShape", "TinyYarn", "write_tiny_model"]
