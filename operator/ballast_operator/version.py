"""The version of the operator, and of the images that it uses by default."""

__version__ = "0.2.0"
