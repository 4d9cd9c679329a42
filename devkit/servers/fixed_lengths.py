"""Fixed lengths of replies and of the cache for servers without a model file, whose memory is not planned."""

from __future__ import annotations

from dataclasses import replace

from ballast.config.options import Config


def with_fixed_lengths(config: Config) -> Config:
    """The configuration with replies of 1024 tokens and a cache of 32768, where options do not say otherwise."""
    scheduling = config.scheduling
    return replace(
        config,
        scheduling=replace(
            scheduling,
            max_new_tokens=scheduling.max_new_tokens or 1024,
            cache_lens=scheduling.cache_lens or 32768,
        ),
    )
