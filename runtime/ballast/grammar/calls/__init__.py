"""Grammars of tool calls, in each format that a model writes."""
