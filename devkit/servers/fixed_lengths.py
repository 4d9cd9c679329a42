"""Fixed reply and cache lengths for servers without a model file, for which no memory is planned."""

from __future__ import annotations

from dataclasses import replace

from ballast.config.options import Config


def with_fixed_lengths(config: Config) -> Config:
    """The configuration with replies of 1024 tokens and a cache of 32768 tokens, unless options set other values."""
    scheduling = config.scheduling
    return replace(
        config,
        scheduling=replace(
            scheduling,
            max_new_tokens=scheduling.max_new_tokens or 1024,
            cache_lens=scheduling.cache_lens or 32768,
        ),
    )
