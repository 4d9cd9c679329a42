"""Reads the metadata of a model file, GGUF keys and the config.json next to it, into a ModelSpec."""

from ballast.model.metadata.hf_config import HfConfig, read_config
from ballast.model.metadata.read import read_spec

__all__ = ["HfConfig", "read_config", "read_spec"]
