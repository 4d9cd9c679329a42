"""Tiers of the KV cache for evicted blocks: host memory for a GPU's cache, and a folder on disk."""
