"""Keys that files leave out: from the file, else from config.json, else from the table of known models, else what the
architecture means without them.

Nothing is guessed: where none of these has a value, the model cannot be computed, and the way out is config.json.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ballast.errors import ConfigError
from ballast.families.family import KnownModel, Value
from ballast.model.metadata.hf_config import HfConfig
from ballast.model.metadata.keys import Keys
from ballast.model.metadata.known_models import common_value, names

log = logging.getLogger(__name__)


class Settings:
    """The places, in order. Every value that the file does not have is said in the log, unless its architecture never
    writes it."""

    def __init__(self, keys: Keys, config: HfConfig | None, models: Sequence[KnownModel]) -> None:
        self.keys = keys
        self.config = config or HfConfig()
        self._has_config = config is not None
        self._models = models

    def value(self, key: str, config_key: str, configured: Value | str | None) -> object:
        """The value of `key`, unchecked where it is the file's. `configured` is what config.json has for it, under
        the name `config_key`. Raises ConfigError."""
        value = self.keys.get(key)
        if value is not None:
            return value
        file = self.keys.gguf.path
        if configured is not None:
            log.info("%s: no %s; using %s=%s of config.json", file, self.keys.full(key), config_key, configured)
            return configured
        known = common_value(self._models, key)
        if known is not None:
            log.warning("%s: no %s; using %s of %s", file, self.keys.full(key), known, names(self._models))
            return known
        default = (self.keys.architecture.defaults or {}).get(key)
        if default is not None:
            return default
        raise self._missing(key, config_key)

    def _missing(self, key: str, config_key: str) -> ConfigError:
        if len(self._models) > 1:
            why = f"its dimensions match {names(self._models)}, which have different values"
        elif self._models:
            why = f"its dimensions match {names(self._models)}, whose value is unknown"
        else:
            why = "its dimensions do not match a known model"
        lacks = f"{self.keys.gguf.path} lacks {self.keys.full(key)}, and {why}"
        if self._has_config:
            return ConfigError(config_key, "none", f"{lacks}; put the value into config.json")
        return ConfigError(
            "model_path",
            "none",
            f"{lacks}; pass --model_path with a directory with the model's config.json, which has {config_key}",
        )
