"""Attention to the positions that an indexer selects."""
