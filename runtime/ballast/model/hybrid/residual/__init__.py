"""The residual stream of tokens: one row per token, or several that hyper-connections mix."""
