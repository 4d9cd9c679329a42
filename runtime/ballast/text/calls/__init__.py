"""Readers of the tool calls in replies, one for each form that families write."""
