"""What a model file says of its model: GGUF keys, and config.json beside them, to a ModelSpec."""

from ballast.model.metadata.hf_config import HfConfig, read_config
from ballast.model.metadata.read import read_spec

__all__ = ["HfConfig", "read_config", "read_spec"]
