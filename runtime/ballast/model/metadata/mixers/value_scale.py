"""The factor of values, in models whose files may leave it out."""

from __future__ import annotations

import logging
import math

from ballast.model.metadata.layers import Widths
from ballast.model.metadata.settings import Settings

log = logging.getLogger(__name__)

_KEY = "attention.value_scale"
_MOST = 10.0


def read_value_scale(settings: Settings, widths: Widths) -> float:
    """The file's, else that of config.json, else what the publisher computes it from: the root of the model's width by
    that of all heads' values, to three decimals (0.707 of MiMo-V2-Flash, 0.612 of MiMo-V2.5-Pro). Files of conversions
    before May 2026 lack it. Raises ModelError for a senseless value."""
    keys, configured = settings.keys, settings.config.attention_value_scale
    if keys.get(_KEY) is not None:
        return keys.number(_KEY, most=_MOST)
    if configured:
        log.info(
            "%s: no %s; using attention_value_scale=%s of config.json", keys.gguf.path, keys.full(_KEY), configured
        )
        return configured
    by_heads = max(1, widths.hidden // widths.num_heads)
    values = widths.num_heads * keys.whole("attention.value_length", default=by_heads)
    scale = round(math.sqrt(widths.hidden / values), 3)
    log.warning("%s: no %s; using %s, which follows from the widths", keys.gguf.path, keys.full(_KEY), scale)
    return scale
